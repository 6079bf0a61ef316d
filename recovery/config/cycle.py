"""Settings of whole cycles."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from recovery.config.distill import DistillConfig
from recovery.config.evaluation import EvalConfig
from recovery.config.midtrain import MidtrainConfig
from recovery.errors import UsageError
from recovery.settings import check_settings, same_as, setting

# What pruning may delete, and why it is not needed. An undecided cycle is never touched.
PRUNE_POLICIES = {
    "rejected": "of a cycle that was rejected or rolled back",
    "midtrained": "the mid-trained model of an accepted cycle",
    "replaced": "replaced by the accepted one",
    "states": "training states of a stage that is done",
    "interrupted": "left by a prune that was stopped",
}
ALL = "all"
NO_TEACHER = "none"  # as a knowledge teacher: base alone


@dataclass(frozen=True)
class CycleConfig:
    """Whole cycles, one for each folder of ``docs``, with the settings of each stage.

    If the rules of ``gate`` are undecided, up to ``gate_samples`` items of a suite are evaluated, then the distillation
    is extended, at most ``gate_extend`` times.
    """

    docs: tuple[Path, ...] = setting((), "Documents, as for midtrain; may be repeated.", metavar="SOURCE")
    knowledge_teacher: str | None = setting(
        "midtrained", "Teacher for questions about the documents; 'none' for base alone.", metavar="NAME"
    )
    replay_documents: float = same_as(MidtrainConfig, "replay_documents", value=0.5, shown=None)
    evaluate: bool = setting(True, "Evaluate each checkpoint of a cycle.")
    gate: tuple[str, ...] = setting(
        (),
        "Accept or reject each cycle by this rule, e.g. 'ifeval >= 0.98*base' or 'standard'; may be "
        "repeated (docs/evidence.md).",
        metavar="RULE",
    )
    gate_alpha: float = setting(0.05, "Error probability of a gate's verdict.", above=0, below=0.5, by_model=False)
    gate_samples: int = setting(
        4000, "Maximum items per suite that an undecided gate may evaluate.", minimum=1, by_model=False
    )
    gate_extend: int = setting(
        1, "How many times an undecided gate may extend the distillation.", minimum=0, by_model=False
    )
    prune: tuple[str, ...] = setting(
        (),
        "After each cycle delete what `recover prune --policy NAME` would; 'all' for every policy; may be "
        "repeated. An undecided cycle keeps its weights.",
        metavar="NAME",
        choices=(ALL, *PRUNE_POLICIES),
        by_model=False,
    )
    midtrain: MidtrainConfig = field(default_factory=MidtrainConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)

    @property
    def trial(self) -> bool:
        """Whether a stage is a trial, so that nothing is decided by the cycles' figures."""
        return self.midtrain.trial or self.distill.trial or (self.evaluate and self.eval.trial)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.gate and not self.evaluate:
            raise UsageError("--gate needs the evaluations it judges: set evaluate to true")
        if self.knowledge_teacher not in (None, NO_TEACHER) and self.distill.scores_completions:
            replace(self.distill, knowledge_teacher=self.knowledge_teacher)  # refused now, not after mid-training
        # With "auto" it depends on the memory at hand, and the plan of the distillation checks it.
        if self.distill.blend != 1.0 and (self.midtrain.tuning, self.distill.tuning) == ("full", "lora"):
            raise UsageError(
                f"--blend {self.distill.blend:g} moves all weights of the mid-trained model, which are frozen below "
                f"the new LoRA adapter of the recovery: use the same tuning in both stages, or omit it"
            )
