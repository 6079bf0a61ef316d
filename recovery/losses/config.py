"""Configuration of the loss: plain numbers, validated on creation. Does not import torch.

A method is a setting of these (and of the source of its states); see :mod:`recovery.losses.objective` for their
effect and :mod:`recovery.losses.divergences` for the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from recovery.errors import UsageError
from recovery.losses.divergences import DIVERGENCES

# Divergences to the teacher. "sampled" is the policy gradient on the sampled token, "top_k" the divergence over the
# teacher's most likely tokens and one bucket for the rest, for teachers on a server.
WHOLE_VOCABULARY = tuple(DIVERGENCES)
TEACHER_DIVERGENCES = (*WHOLE_VOCABULARY, "sampled", "top_k")
MIXTURES = tuple(name for name, divergence in DIVERGENCES.items() if divergence.ends is not None)
UNBOUNDED = tuple(name for name, divergence in DIVERGENCES.items() if not divergence.bounded)


@dataclass(frozen=True)
class LossConfig:
    """Weights and divergence of the loss, and the limits on one step.

    Attributes:
        lam: weight of the teacher; 1 - lam is that of the reward.
        divergence: divergence to the teacher, one of :data:`TEACHER_DIVERGENCES`.
        beta: the mixture of the divergences that have one, such as "jsd": 0 is the forward KL and 1 the reverse KL.
        anchor: weight of KL(student | base) on the same states; 0 is off.
        clip: epsilon of the importance ratio's clip, 1 - epsilon to 1 + epsilon (PPO, arXiv 1707.06347).
        drop: tokens whose ratio is above this, or below its inverse, are ignored.
        entry_clip: maximum contribution of one vocabulary entry to a token's divergence, nats (OPSD uses 0.05).
        floor: lower bound of log-probabilities: the teacher's in the reverse KL, the student's in the forward KL.
        top_k: number of entries that the teacher returns, for "top_k".
        ratio_cap: maximum of a token's weight, the product of the importance ratios of the tokens before it, if a
            completion was sampled by another engine or by older weights (truncated importance sampling); 0 is off.
        temperature: divides the logits of both sides; also the sampling temperature of the ratio.
        metric: name of the loss on the teacher's rows among the metrics; left out, it follows from the divergence.

    Raises:
        UsageError: a number is out of range, or a setting would have no effect in combination with the others.
    """

    lam: float = 1.0
    divergence: str = "reverse_kl"
    beta: float = 0.5
    anchor: float = 0.0
    clip: float | None = None
    drop: float | None = None
    entry_clip: float | None = None
    floor: float | None = None
    top_k: int = 0
    ratio_cap: float = 2.0
    temperature: float = 1.0
    metric: str | None = None

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_teacher()
        self._check_policy()

    @property
    def loss_metric(self) -> str:
        """Name of the loss on the teacher's rows among the metrics."""
        if self.metric is not None:
            return self.metric
        if self.divergence == "sampled":
            return "policy_loss"
        return self.divergence if self.lam == 1.0 else "mixed_loss"

    @property
    def loss_title(self) -> str:
        """What the figure of that metric is called, if it is a divergence; otherwise empty."""
        if self.loss_metric == "top_k":
            return "KL over the teacher's likeliest tokens"
        whole = DIVERGENCES.get(self.loss_metric)
        return "" if whole is None else whole.title

    def _check_ranges(self) -> None:
        """Check each value alone. Every comparison is written so that a NaN fails it."""
        if self.divergence not in TEACHER_DIVERGENCES:
            known = ", ".join(TEACHER_DIVERGENCES)
            raise UsageError(f"--divergence {self.divergence!r} is not known: choose one of {known}")
        _refuse(not 0.0 <= self.lam <= 1.0, f"--lambda {self.lam} must lie between 0 (reward) and 1 (teacher)")
        _refuse(not 0.0 <= self.beta <= 1.0, f"--beta {self.beta} must lie between 0 and 1")
        _refuse(not 0.0 <= self.anchor < math.inf, f"--anchor {self.anchor} must be 0 or above")
        _refuse(not 0.0 < self.temperature < math.inf, f"--temperature {self.temperature} must be above 0")
        _refuse(self.top_k < 0, f"--top-k {self.top_k} must be 0 (off) or above")
        _refuse(not 0.0 <= self.ratio_cap < math.inf, f"--ratio-cap {self.ratio_cap} must be 0 (off) or above")
        check_limits(self.clip, self.drop, self.entry_clip, self.floor)

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
        """Check that the trust region has a policy gradient to act on."""
        if self.divergence == "sampled" or self.lam < 1.0:
            return
        for flag, given in (("clip", self.clip), ("drop", self.drop)):
            _refuse(
                given is not None,
                f"--{flag} {given} acts on importance ratios: it needs --divergence sampled or --lambda below 1",
            )


def check_limits(
    clip: float | None = None, drop: float | None = None, entry_clip: float | None = None, floor: float | None = None
) -> None:
    """Check that limits are in range; None is off.

    Raises:
        UsageError: names the flag.
    """
    _refuse(clip is not None and not 0.0 < clip < 1.0, f"--clip {clip} must lie between 0 and 1, exclusive")
    _refuse(drop is not None and not 1.0 < drop < math.inf, f"--drop {drop} must be above 1, the ratio without drift")
    _refuse(
        entry_clip is not None and not 0.0 < entry_clip < math.inf, f"--entry-clip {entry_clip} must be above 0 (nats)"
    )
    _refuse(
        floor is not None and not -math.inf < floor < 0.0,
        f"--floor {floor} must be below 0: it is a log-probability, as in -10",
    )


def _refuse(wrong: bool, reason: str) -> None:
    if wrong:
        raise UsageError(reason)
