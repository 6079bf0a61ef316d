"""Settings of evaluation, of interpolation, which evaluates candidates, and of a whole cycle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from recovery.config.distill import DistillConfig
from recovery.config.midtrain import MidtrainConfig
from recovery.config.model import ModelConfig, TrainingConfig
from recovery.engines import TRANSFORMERS, check_address
from recovery.errors import UsageError
from recovery.settings import check_settings, same_as, setting, share

LLAMA_CPP = "llama.cpp"


@dataclass(frozen=True)
class EvalConfig(ModelConfig):
    """What is evaluated. A ``limit`` selects the same items for every checkpoint."""

    checkpoint: str = "latest"
    limit: int | None = setting(1000, "Maximum items per suite.", minimum=1)
    earlier_limit: int = setting(
        5000,
        "Maximum items of a suite about all earlier cycles' documents together, evenly from each; 0: only "
        "--limit applies.",
        minimum=0,
    )
    near_misses: int = setting(
        100, "Maximum questions about what no document holds, of each corpus; 0: none.", minimum=0
    )
    max_new_tokens: int = same_as(MidtrainConfig, "max_new_tokens")
    question_tokens: int = setting(48, "Maximum tokens of an answer to a question.", minimum=1)
    prompts: Path | None = same_as(MidtrainConfig, "prompts")
    behaviour: tuple[Path, ...] = setting(
        (),
        "A suite of your own: prompts with checks, a reference answer or the tag 'refusal'; may be repeated.",
        metavar="FILE",
    )
    ifeval: str | None = setting(
        None, "Also evaluate on IFEval's own prompts: a file of them, or 'hub' to fetch it.", metavar="PATH"
    )
    ifeval_tokens: int = setting(1280, "Maximum tokens of a response to one of IFEval's own prompts.", minimum=1)
    complete_loops: bool = setting(
        False,
        "Stop a response that repeats itself, and fill it up with the repetition: halves the time of "
        "small models that loop.",
    )
    texts: Path | None = setting(
        None,
        "Also measure bits per byte on these texts, which are never trained on.",
        metavar="SOURCE",
    )
    tasks: tuple[str, ...] = setting(
        (),
        "Also run an lm-eval task: its name or YAML file, =PATH for local data; comma-separated or repeated.",
        flag="--task",
        metavar="NAME[=PATH]",
    )
    served_at: str | None = setting(
        None,
        "Measure what a server answers that serves CHECKPOINT: llama.cpp's, vLLM, SGLang, Ollama. Recorded as an "
        "artifact of CHECKPOINT.",
        flag="--served",
        metavar="ADDRESS",
    )
    runtime: str | None = setting(
        None,
        "Measure CHECKPOINT, a GGUF file that was exported, in a server that is started on it.",
        choices=(LLAMA_CPP,),
    )
    file: Path | None = None  # the file of --runtime: CHECKPOINT is then the one that it was exported from
    despite_differences: bool = setting(
        False, "Measure a server also if its template, tokens or weights are not the checkpoint's."
    )
    trial: bool = same_as(TrainingConfig, "trial")

    @property
    def of_artifact(self) -> bool:
        """Whether what is served is measured, and not the weights of a checkpoint."""
        return self.served_at is not None or self.runtime is not None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.served_at is not None:
            check_address(self.served_at, "--served")
            if self.runtime is not None:
                raise UsageError("--served names a server that runs, --runtime starts one: omit one of them")
        if self.despite_differences and not self.of_artifact:
            raise UsageError("--despite-differences needs --served or --runtime")
        if self.of_artifact and self.engine != TRANSFORMERS:
            raise UsageError(f"--engine {self.engine} samples from a checkpoint, not from what is served: omit it")
        if self.complete_loops and self.engine != "transformers":
            raise UsageError(f"--complete-loops needs --engine transformers, not {self.engine}: omit one of them")


@dataclass(frozen=True)
class InterpolateConfig(ModelConfig):
    """Weights between two checkpoints: (1 - alpha) ``origin`` + alpha ``student`` (WiSE-FT, arXiv 2109.01903).

    Of the ``alphas`` that ``keep`` enough of base's score, the one with the most correct training questions about the
    documents is chosen; if none does, the one with the highest score. No test prompt is used.
    """

    student: str = setting("latest", "The mid-trained checkpoint: a name, a folder, a hub id.", metavar="NAME")
    origin: str = setting(
        "base",
        "The other end: a checkpoint, or 'start', the one that the student was trained from.",
        metavar="NAME",
    )
    alphas: tuple[float, ...] = share(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        "Weight of the student, from 0 (origin) to 1; repeated, the candidates.",
        most=1,
        flag="--alpha",
        shown="0.1, 0.2 ... 1",
    )
    keep: float = share(
        0.98, "Share of base's score on development prompts that the chosen candidate must reach.", most=1
    )
    development: int = setting(300, "Development prompts per candidate.", minimum=1)
    questions: int = setting(
        200,
        "Training questions about the documents per candidate; 0: none, and the largest alpha is chosen.",
        minimum=0,
    )
    prompts: Path | None = same_as(MidtrainConfig, "prompts")
    max_new_tokens: int = same_as(MidtrainConfig, "max_new_tokens")
    question_tokens: int = same_as(EvalConfig, "question_tokens")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alphas:
            raise UsageError("--alpha is empty: give one value, or several to choose from")


# Settings of whole cycles.

# What pruning may delete, and why it is not needed. A cycle without a decision is never touched.
PRUNE_POLICIES = {
    "rejected": "of a cycle that was rejected or rolled back",
    "midtrained": "the mid-trained model of an accepted cycle",
    "replaced": "replaced by the accepted one",
    "states": "training states of a stage that is done",
    "interrupted": "left by a prune that was stopped",
}
ALL = "all"
NO_TEACHER = "none"  # value of knowledge_teacher: base is the only teacher


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
    gate_samples: int | None = setting(
        None,
        "Maximum items per suite that an undecided gate may evaluate.",
        minimum=1,
        by_model=False,
        shown="four times --limit",
    )
    gate_extend: int = setting(
        1, "How many times an undecided gate may extend the distillation.", minimum=0, by_model=False
    )
    prune: tuple[str, ...] = setting(
        (),
        "After each cycle delete what `recover prune --policy NAME` would; 'all' for every policy; may be "
        "repeated. A cycle without a decision keeps its weights.",
        metavar="NAME",
        choices=(ALL, *PRUNE_POLICIES),
        by_model=False,
    )
    midtrain: MidtrainConfig = field(default_factory=MidtrainConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)

    @property
    def gate_budget(self) -> int:
        """The most items of a suite that an undecided gate may evaluate; 0 if all are evaluated anyway."""
        return self.gate_samples or 4 * (self.eval.limit or 0)

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
