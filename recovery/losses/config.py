"""Configuration of the loss: plain numbers, validated on creation. Does not import torch.

The declarations hold for the command line as well: :class:`recovery.config.distill.DistillConfig` repeats them by name.

A method is a setting of these (and of the source of its states); see :mod:`recovery.losses.objective` for their
effect and :mod:`recovery.losses.divergences` for the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

from recovery.errors import UsageError
from recovery.losses.divergences import DIVERGENCES
from recovery.settings import check_settings, check_value, setting

# Divergences to the teacher. "sampled" is the policy gradient on the sampled token, "top_k" the divergence over the
# teacher's most likely tokens and one bucket for the rest, for teachers on a server.
WHOLE_VOCABULARY = tuple(DIVERGENCES)
TEACHER_DIVERGENCES = (*WHOLE_VOCABULARY, "sampled", "top_k")
MIXTURES = tuple(name for name, divergence in DIVERGENCES.items() if divergence.ends is not None)
UNBOUNDED = tuple(name for name, divergence in DIVERGENCES.items() if not divergence.bounded)


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

    lam: float = setting(
        1.0,
        "Weight of the teacher; the rest is the weight of --reward.",
        minimum=0,
        maximum=1,
        flag="--lambda",
    )
    divergence: str = setting(
        "reverse_kl",
        "Divergence of student and teacher, over the whole vocabulary. sampled: from the sampled tokens "
        "alone; top_k: over the teacher's likeliest tokens, with one bucket for the rest.",
        choices=TEACHER_DIVERGENCES,
    )
    beta: float = setting(0.5, "Mixture of the divergences that have one, such as jsd.", minimum=0, maximum=1)
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
        self._check_teacher()
        self._check_policy()

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

    def _check_teacher(self) -> None:
        """Check the options of the teacher's divergence against that divergence."""
        name = self.divergence
        if name == "top_k":
            _refuse(self.top_k < 1, "--divergence top_k needs --top-k: the number of entries that the teacher returns")
        else:
            _refuse(self.top_k > 0, f"--top-k {self.top_k} needs --divergence top_k, not {name}")
        whole = DIVERGENCES.get(name)
        if name not in MIXTURES:
            _refuse(self.beta != 0.5, f"--beta {self.beta} needs a divergence to a mixture: --divergence "
                                      f"{' or '.join(MIXTURES)}, not {name}")  # fmt: skip
        resolved = name if whole is None else whole.at(self.beta)
        if self.entry_clip is not None:
            _refuse(whole is None, f"--entry-clip {self.entry_clip} needs a divergence over the whole vocabulary: "
                                   f"--divergence {', '.join(WHOLE_VOCABULARY)}, not {name}")  # fmt: skip
        if self.floor is not None:
            _refuse(whole is None, f"--floor {self.floor} needs --divergence {' or '.join(UNBOUNDED)}")
            bounded = resolved not in UNBOUNDED
            _refuse(bounded, f"--floor {self.floor} has no effect on --divergence {name}, which is bounded: omit it")
        if self.lam == 0.0:
            for flag, given in (("entry-clip", self.entry_clip), ("floor", self.floor), ("top-k", self.top_k or None)):
                _refuse(
                    given is not None, f"--{flag} {given} acts on a teacher's divergence, which --lambda 0 disables"
                )

    def _check_policy(self) -> None:
        """Check that the trust region has a policy gradient to act on, and the cap a divergence."""
        # With lambda between 0 and 1 the cap acts on merged spans of a teacher with another tokenizer.
        if self.divergence == "sampled" or self.lam == 0.0:
            alone = "--divergence sampled" if self.divergence == "sampled" else "--lambda 0"
            _refuse(
                self.ratio_cap != LossConfig.ratio_cap,
                f"--ratio-cap {self.ratio_cap:g} has no effect with {alone}, a policy gradient with ratios of its own: "
                f"omit it, or use --clip or --drop",
            )
        if self.divergence == "sampled" or self.lam < 1.0:
            return
        for flag, given in (("clip", self.clip), ("drop", self.drop)):
            _refuse(
                given is not None,
                f"--{flag} {given} acts on importance ratios: it needs --divergence sampled or --lambda below 1",
            )


def check_limits(**limits: float | None) -> None:
    """Check limits of a step as :class:`LossConfig` declares them; None is off.

    Raises:
        UsageError: names the flag.
    """
    for name, limit in limits.items():
        check_value(LossConfig, name, limit)


def _refuse(wrong: bool, reason: str) -> None:
    if wrong:
        raise UsageError(reason)
