"""Configuration of the loss: plain numbers, validated on creation. Does not import torch.

The declarations hold for the command line as well: :class:`recovery.config.distill.DistillConfig` repeats them by name.

A method is a setting of these (and of the source of its states); see :mod:`recovery.losses.objective` for their
effect and :mod:`recovery.losses.divergences` for the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

from recovery.errors import UsageError
from recovery.losses.divergences import DIVERGENCES
from recovery.settings import check_settings, check_value, flag_of, setting, share

# Divergences to the teacher. "sampled" is the policy gradient on the sampled token, "top_k" the divergence over the
# teacher's most likely tokens and one bucket for the rest, for teachers on a server.
WHOLE_VOCABULARY = tuple(DIVERGENCES)
TEACHER_DIVERGENCES = (*WHOLE_VOCABULARY, "sampled", "top_k")
MIXTURES = tuple(name for name, divergence in DIVERGENCES.items() if divergence.ends is not None)
UNBOUNDED = tuple(name for name, divergence in DIVERGENCES.items() if not divergence.bounded)
# Settings of a divergence to a teacher, none of which acts where the loss is the cross-entropy of responses.
OF_DIVERGENCES = ("divergence", "beta", "entry_clip", "floor", "top_k")
# Settings that act with some divergences and shares of a teacher only.
CONDITIONAL = ("top_k", "beta", "entry_clip", "floor", "ratio_cap", "clip", "drop")


def why_idle(name: str, divergence: str, lam: float = 1.0, beta: float = 0.5) -> str:
    """Return why a setting of the loss has no effect, to follow its flag and value; "" if it acts.

    The one place that decides it: for the settings as a whole, for the terms of a loss (``divergence`` may be any of
    theirs), and for presets, whose settings are dropped where they would have no effect. ``lam`` is the teacher's
    weight, and ``beta`` the mixture.
    """
    whole = DIVERGENCES.get(divergence)
    # The importance ratio r = p(y) / p_old(y) of a policy gradient: the sampled form, or a reward's share of the loss.
    has_ratio = divergence in ("sampled", "policy_gradient") or lam < 1.0
    acts = {
        "beta": divergence in MIXTURES,
        "top_k": divergence == "top_k",
        "entry_clip": whole is not None,
        "floor": whole is not None and whole.at(beta) in UNBOUNDED,
        "clip": has_ratio,
        "drop": has_ratio,
        # With lambda between 0 and 1 the cap acts on merged spans of a teacher with another tokenizer.
        "ratio_cap": divergence != "sampled" and lam > 0.0,
    }
    if acts[name]:
        ignored = lam == 0.0 and name in ("top_k", "entry_clip", "floor")
        return "acts on a teacher's divergence, which --lambda 0 disables" if ignored else ""
    ratios = "acts on importance ratios: it needs --divergence sampled or --lambda below 1"
    alone = "--divergence sampled" if divergence == "sampled" else "--lambda 0"
    return {
        "beta": f"needs a divergence to a mixture: --divergence {' or '.join(MIXTURES)}, not {divergence}",
        "top_k": f"needs --divergence top_k, not {divergence}",
        "entry_clip": "needs a divergence over the whole vocabulary: --divergence "
        f"{', '.join(WHOLE_VOCABULARY)}, not {divergence}",
        "floor": f"needs --divergence {' or '.join(UNBOUNDED)}"
        if whole is None
        else f"has no effect on --divergence {divergence}, which is bounded: omit it",
        "clip": ratios,
        "drop": ratios,
        "ratio_cap": f"has no effect with {alone}, a policy gradient with ratios of its own: omit it, or use --clip or "
        "--drop",
    }[name]


@dataclass(frozen=True)
class LossConfig:
    """Weights and divergence of the loss, and the limits on one step; None is off.

    ``clip`` follows PPO (arXiv 1707.06347), ``entry_clip`` OPSD (0.05 there), ``ratio_cap`` truncated importance
    sampling. ``floor`` bounds the teacher's log-probabilities in the reverse KL and the student's in the forward KL.
    ``temperature`` divides the logits of both sides; it is also the sampling temperature of the importance ratio.
    ``metric`` names the loss on the teacher's rows among the metrics; without it the name follows from the divergence.

    Raises:
        UsageError: a number is out of range, or a setting would have no effect in combination with the others.
    """

    lam: float = share(1.0, "Weight of the teacher; the rest is the weight of --reward.", most=1, flag="--lambda")
    divergence: str = setting(
        "reverse_kl",
        "Divergence of student and teacher, over the whole vocabulary. sampled: from the sampled tokens "
        "alone; top_k: over the teacher's likeliest tokens, with one bucket for the rest.",
        choices=TEACHER_DIVERGENCES,
    )
    beta: float = share(0.5, "Mixture of the divergences that have one, such as jsd.", most=1)
    anchor: float = setting(0.0, "Weight of the KL penalty to base.", minimum=0)
    clip: float | None = setting(None, "Importance ratios are clipped to 1 ± this; 0: off.", above=0, below=1)
    drop: float | None = setting(
        None, "Tokens whose importance ratio is above this, or below its inverse, are left out; 0: off.", above=1
    )
    entry_clip: float | None = setting(
        None,
        "Upper bound of each vocabulary entry's term in the divergence (OPSD's per-token clip), nats; 0: off.",
        above=0,
    )
    floor: float | None = setting(None, "Lower bound of log-probabilities, such as -10; 0: off.", below=0)
    top_k: int = setting(0, "Number of the teacher's tokens, for --divergence top_k.", minimum=0)
    ratio_cap: float = setting(
        2.0,
        "Upper bound of the importance ratios, which correct for another engine or, with a teacher of "
        "another tokenizer, for older weights; 0: off.",
        minimum=0,
    )
    temperature: float = setting(1.0, "Temperature of both sides.", above=0)
    metric: str | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.divergence == "top_k" and self.top_k < 1:
            raise UsageError("--divergence top_k needs --top-k: the number of entries that the teacher returns")
        for name in CONDITIONAL:
            value = getattr(self, name)
            if value != getattr(LossConfig, name) and (why := why_idle(name, self.divergence, self.lam, self.beta)):
                shown = f"{value:g}" if name == "ratio_cap" else value
                raise UsageError(f"{flag_of(LossConfig, name)} {shown} {why}")

    @property
    def loss_metric(self) -> str:
        """Name of the loss on the teacher's rows among the metrics."""
        if self.metric is not None:
            return self.metric
        if self.divergence == "sampled" or self.lam == 0.0:
            return "policy_loss"
        return self.divergence if self.lam == 1.0 else "mixed_loss"

    @property
    def loss_title(self) -> str:
        """What the figure of that metric is called, if it is a divergence; otherwise empty."""
        if self.loss_metric == "top_k":
            return "KL over the teacher's likeliest tokens"
        whole = DIVERGENCES.get(self.loss_metric)
        return "" if whole is None else whole.title


def check_limits(divergence: str, beta: float = 0.5, **limits: float | None) -> None:
    """Check limits of one step with a divergence, or another term of a loss; None is off.

    Raises:
        UsageError: a limit is out of range, or has no effect on this divergence.
    """
    for name, limit in limits.items():
        check_value(LossConfig, name, limit)
        if limit is not None and (why := why_idle(name, divergence, beta=beta)):
            raise UsageError(f"{flag_of(LossConfig, name)} {limit} {why}")
