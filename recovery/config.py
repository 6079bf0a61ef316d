"""Settings of the stages: frozen dataclasses, checked once, built from flags, a recipe, the model's own and defaults.

Precedence, highest first: flags, the recipe (``--recipe FILE``), the model folder's ``recovery.toml``, the
defaults below. A recipe is TOML with one table a stage ([midtrain], [distill], [interpolate], [eval],
[cycle]) and one for what all stages share ([model]). A table or key that means nothing is refused by name.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from recovery.errors import UsageError
from recovery.methods import method_named
from recovery.objectives.dials import Dials
from recovery.server import check_address, is_address

RECIPE_NAME = "recovery.toml"
SHARED = "model"
SELF_TEACHERS = ("self", "start", "ema")
ENGINES = ("transformers", "vllm")
# Peak rates of full fine-tuning are those that models of so many parameters are usually trained with; smaller models
# take higher ones. The power and the bound are from trials on a model of 135 million parameters (docs/log.md).
RATED_AT, RATE_POWER, LARGEST_RATE_FACTOR = 8e9, 0.6, 12.0


@dataclass(frozen=True)
class ModelConfig:
    """How a model is loaded. ``token_budget`` is padded tokens a micro-batch: memory only, never results.

    ``rollout_tokens`` bounds prompts and answers held at once while sampling, where no gradient is kept.

    ``engine`` samples: "transformers", "vllm" in this process, or the address of a vLLM server, to which weights go
    through ``engine_folder`` (a place both can read; None: a temporary one here). ``engine_memory`` is in GiB,
    for vLLM's cache of keys and values (None: chosen from what is free); ``engine_sleep`` gives it back between two
    calls; ``engine_drift`` is by how much the log-probabilities of engine and model may differ, nats a token in the
    mean. ``server_wait`` is how long a server may be gone, ``server_timeout`` how long one request may take (seconds).
    """

    precision: str = "auto"
    device: str = "auto"
    template_args: Mapping[str, Any] = field(default_factory=dict)
    token_budget: int = 16384
    rollout_tokens: int = 32768
    engine: str = "transformers"
    engine_memory: float | None = None
    engine_sleep: bool = False
    engine_drift: float = 0.1
    engine_folder: Path | None = None
    server_wait: float = 600.0
    server_timeout: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("precision", self.precision, ("auto", "float32", "bfloat16"))
        _at_least("token_budget", self.token_budget, 16)
        _at_least("rollout_tokens", self.rollout_tokens, 16)
        if not 0 <= self.seed < 2**31:  # the tracker keeps it in 32 bits
            raise UsageError(f"{flag('seed')} is {self.seed}, but must be at least 0 and below 2**31")
        self._check_engine()

    @property
    def served(self) -> bool:
        """Whether a server samples."""
        return is_address(self.engine)

    def _check_engine(self) -> None:
        if self.served:
            check_address(self.engine, "--engine")
        elif self.engine not in ENGINES:
            raise UsageError(
                f"--engine {self.engine!r} is not known: use transformers, vllm, or a server's address such as "
                f"http://127.0.0.1:8000"
            )
        for name in ("engine_drift", "server_timeout"):
            _above_zero(name, getattr(self, name))
        _at_least("server_wait", self.server_wait, 0)
        if self.engine_memory is not None:
            _above_zero("engine_memory", self.engine_memory)
        for idle, said in (
            (self.engine_memory is not None and self.engine != "vllm", "--engine-memory is for --engine vllm"),
            (self.engine_sleep and self.engine != "vllm", "--engine-sleep is for --engine vllm"),
            (self.engine_folder is not None and not self.served, "--engine-folder is for the --engine of a server"),
        ):
            if idle:
                raise UsageError(said)


@dataclass(frozen=True)
class TrainingConfig(ModelConfig):
    """How weights are changed. ``lr`` overrides ``full_lr`` (None: by the model's size) and ``lora_lr``; ``warmup`` is
    a share of steps.

    ``shard`` "full" cuts the student's layers over the processes there are, ``offload`` keeps the pieces in the
    CPU's memory; with one process neither does anything. ``compile`` has torch compile layers that are not cut.
    """

    tuning: str = "auto"
    lora_rank: int = 32
    lora_alpha: int = 64
    gradient_checkpointing: bool = False
    compile: bool = False
    shard: str = "none"
    offload: bool = False
    optimizer: str = "adamw"
    lr: float | None = None
    full_lr: float | None = None
    lora_lr: float = 1e-4
    warmup: float = 0.05
    schedule: str = "cosine"
    min_lr_ratio: float = 0.1
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    checkpoint_every: int = 50
    _usual_lr: ClassVar[float] = 2e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("tuning", self.tuning, ("auto", "lora", "full"))
        _one_of("optimizer", self.optimizer, ("adamw", "muon"))
        _one_of("shard", self.shard, ("none", "full"))
        if self.offload and self.shard == "none":
            raise UsageError("--offload keeps the pieces of a cut model in the CPU's memory: add --shard full")
        if self.shard == "full" and self.optimizer == "muon":
            raise UsageError("--optimizer muon needs whole matrices: take --shard none, or adamw")
        if self.shard == "full" and self.compile:
            raise UsageError("--compile is for layers that are not cut: take --shard none, or leave it out")
        _one_of("schedule", self.schedule, ("constant", "linear", "cosine"))
        for name in ("lora_lr", "max_grad_norm"):
            _above_zero(name, getattr(self, name))
        for name in ("lr", "full_lr"):
            if getattr(self, name) is not None:
                _above_zero(name, getattr(self, name))
        _share("warmup", self.warmup)
        _share("min_lr_ratio", self.min_lr_ratio, upper=1.0)
        for name in ("lora_rank", "lora_alpha", "checkpoint_every"):
            _at_least(name, getattr(self, name), 1)

    def rate(self, tuning: str, parameters: float) -> float:
        """The peak learning rate for ``tuning`` "full" or "lora" of a model with so many parameters."""
        if self.lr is not None:
            return self.lr
        if tuning == "lora":
            return self.lora_lr
        if self.full_lr is not None:
            return self.full_lr
        factor = (RATED_AT / parameters) ** RATE_POWER
        return float(f"{self._usual_lr * min(LARGEST_RATE_FACTOR, max(1.0, factor)):.2g}")


@dataclass(frozen=True)
class MidtrainConfig(TrainingConfig):
    """Continued training on documents.

    Length is ``steps``, or ``epochs`` over this cycle's documents. ``batch_tokens`` are target tokens a step
    (None: up to 8,192, fewer for a small corpus, so that it still gets some fifty updates); no row is longer.
    ``replay`` is the share of them that is chat answered by the clean base, or the chat in ``replay_data``;
    ``replay_loss`` says what is learnt of it: "answers" (their tokens, cross-entropy) or "kl" (the clean model's whole
    distribution at each of them, forward KL, arXiv 2605.26097). ``replay_documents`` is the share of the document
    tokens that comes from earlier cycles (None: 0, or the cycle's own default inside ``recover cycle``). ``anchor``
    weighs the KL to base on the documents; ``project`` takes out of each gradient what would raise the loss on such
    chat (A-GEM, arXiv 1812.00420).

    ``augment`` is how many other wordings each fact of this cycle's documents gets (0: off), in texts and in chats that
    tell about a subject; such chats tell each section too. They have
    ``augment_share`` of the tokens that would be these documents', and of that ``augment_questions`` are questions with
    answers: those that came with the documents, and some about facts that no probe asks for; less where there is so
    little of it that it would be seen more than four times as often as the documents. A ``writer`` (a checkpoint, or
    the address of a chat server) rewrites passages too (arXiv 2508.09494): what the passage supports is kept, and its
    tokens count as sampled by this stage.
    """

    docs: Path | None = None
    student: str = "latest"
    steps: int | None = None
    epochs: float | None = None
    batch_tokens: int | None = None
    row_length: int = 2048
    replay: float = 0.0
    replay_loss: str = "answers"
    replay_prompts: int = 1000
    replay_data: Path | None = None
    replay_documents: float | None = None
    anchor: float = 0.0
    project: bool = False
    held_out: float = 0.05
    augment: int = 0
    augment_share: float = 0.3
    augment_questions: float = 0.5
    writer: str | None = None
    max_new_tokens: int = 256
    prompts: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            raise UsageError("--steps and --epochs both set the length of mid-training: give one of them")
        if self.steps is not None:
            _at_least("steps", self.steps, 1)
        if self.epochs is not None:
            _above_zero("epochs", self.epochs)
        if self.batch_tokens is not None:
            _at_least("batch_tokens", self.batch_tokens, 16)
        _at_least("row_length", self.row_length, 16)
        _at_least("replay_prompts", self.replay_prompts, 1)
        _at_least("max_new_tokens", self.max_new_tokens, 1)
        _share("replay", self.replay)
        _one_of("replay_loss", self.replay_loss, ("answers", "kl"))
        if self.distils_replay and not (self.replay or self.project):
            raise UsageError("--replay-loss kl is for --replay or --project: set the share of chat, as in --replay 0.3")
        _at_least("anchor", self.anchor, 0)
        if self.replay_data is not None and not (self.replay or self.project):
            raise UsageError("--replay-data is for --replay or --project: set the share of chat, as in --replay 0.3")
        _share("replay_documents", self.replay_documents or 0.0)
        _share("held_out", self.held_out, upper=0.5)
        self._check_augmentation()

    def _check_augmentation(self) -> None:
        _at_least("augment", self.augment, 0)
        _share("augment_share", self.augment_share)
        _share("augment_questions", self.augment_questions)
        if self.augment and not self.augment_share:
            raise UsageError("--augment-share 0 leaves no token to the other wordings: raise it, or set --augment 0")
        if self.writer is not None and not self.augment:
            raise UsageError("--writer rewrites passages for --augment: set how many wordings, as in --augment 4")
        if self.writer is not None and is_address(self.writer):
            check_address(self.writer, "--writer")

    @property
    def distils_replay(self) -> bool:
        """Whether the clean model scores the replayed chat."""
        return self.replay_loss == "kl"

    @property
    def passes(self) -> float:
        """Epochs where no number of steps is given."""
        return 3.0 if self.epochs is None else self.epochs


@dataclass(frozen=True)
class DistillConfig(TrainingConfig):
    """Every method, as dials; the defaults are on-policy distillation: the student answers, the teachers score.

    ``method`` names the preset whose values these are (:mod:`recovery.methods`). ``alpha`` is the share of a step's
    prompts that the student answers itself; the others bring answers of ``answers``: "given" (``data`` or the prompts'
    own), "teacher", "self" (the student as it started), or "rejection" (those of them whose reward reaches
    ``keep_above``). ``lam`` weighs the teacher, 1 - lam the ``reward``. ``teacher`` is a checkpoint, or "label" (the
    answer itself), "none", "self", "start" or "ema" (the student now, as it started, its moving average), which need
    a ``context`` that the student does not see. ``batch_epochs`` are updates on one batch of answers;
    ``focus`` is the share of prompts drawn by what the student's newest answers missed (those with checks; the others
    are drawn evenly). ``positions`` "one" scores a single position of each; ``skip_first`` tokens of a response are
    not scored; ``continuation`` tokens (0: none) are spoken by the teacher from a prefix of the student's answer and
    imitated.
    ``experts`` ("TAG=NAME") score the prompts that carry their tag; a ``teacher`` may be several with weights
    ("NAME=0.5,NAME=0.5"). ``alarm`` stops a run that collapses and keeps the last state before; ``max_tokens``
    (sampled, scored and trained together) ends one that has had its share.

    A ``teacher`` may also be the address of a vLLM server ("http://..."): it gives ``top_k`` log-probabilities a token.
    ``overlap`` samples the next answers while this batch trains, on an engine that is a server; where other weights
    or another engine sampled, tokens count by the importance ratios before them, at most ``ratio_cap`` (0: all alike).

    ``until`` stops when the student's score is proven to reach that share of base's, by a paired test with
    ``margin`` on ``development`` prompts each ``check_every`` steps (0: never). ``plateau`` is the window in
    steps over which the divergence must still fall (0: off). ``knowledge_share`` of the prompts are questions
    about the documents, scored by ``knowledge_teacher``, those about earlier cycles' by ``earlier_teacher`` if
    set; ``document_loss`` is a share of trained tokens.
    """

    student: str = "latest"
    teacher: str = "base"
    knowledge_teacher: str | None = None
    knowledge_share: float = 0.2
    earlier_teacher: str | None = None
    experts: tuple[str, ...] = ()
    document_loss: float = 0.0
    prompts: Path | None = None
    prompts_per_step: int = 32
    samples_per_prompt: int = 4
    focus: float = 0.0
    max_new_tokens: int = 256
    temperature: float = 1.0
    steps: int = 200
    method: str = "opd"
    alpha: float = 1.0
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
    overlap: bool = False
    batch_epochs: int = 1
    positions: str = "all"
    skip_first: int = 0
    continuation: int = 0
    answers: str = "given"
    data: Path | None = None
    reward: str = "verifiable"
    keep_above: float = 1.0
    context: str = "none"
    context_file: Path | None = None
    context_template: str | None = None
    ema_decay: float = 0.99
    alarm: bool = True
    geometry_every: int = 10
    max_tokens: int | None = None
    until: float = 0.99
    margin: float = 0.02
    check_every: int = 25
    development: int = 1000
    plateau: int = 50
    token_views: int = 6
    row_length: int = 2048
    _usual_lr: ClassVar[float] = 5e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dials()
        self._check_states()
        self._check_teacher()
        self._check_remote()
        self._check_idle()
        counts = ("prompts_per_step", "samples_per_prompt", "max_new_tokens", "steps", "check_every", "batch_epochs")
        for name in counts:
            _at_least(name, getattr(self, name), 1)
        for name in ("knowledge_share", "document_loss", "margin", "focus"):
            _share(name, getattr(self, name))
        _share("until", self.until, upper=1.0)
        for name in ("plateau", "token_views"):
            _at_least(name, getattr(self, name), 0)
        if self.max_tokens is not None:
            _at_least("max_tokens", self.max_tokens, 1)
        if self.until and self.development < 1000:
            raise UsageError(
                f"--until {self.until} needs --development of at least 1000 prompts to be decided (given: "
                f"{self.development}); --until 0 switches the test off"
            )
        if self.earlier_teacher and not self.knowledge_teacher:
            raise UsageError("--earlier-teacher goes with --knowledge-teacher, which scores the newest documents")
        if self.knowledge_teacher and self.prompts_per_step * self.knowledge_share < 0.5:
            raise UsageError(
                f"--knowledge-teacher {self.knowledge_teacher} gets none of the {self.prompts_per_step} prompts of a "
                f"step: raise --knowledge-share or --prompts-per-step, or leave the teacher out"
            )

    def dials(self) -> Dials:
        """The part of these settings that the loss needs. Raises UsageError where a dial is out of its range."""
        # Its temperature is not the one at which answers are sampled: a divergence is always taken at 1.
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(Dials) if f.name != "temperature"}
        off = {name: None for name in ("clip", "drop", "entry_clip", "floor") if given[name] == 0}  # over a preset
        return Dials(**(given | off))

    @property
    def routes(self) -> dict[str, str]:
        """Which expert scores prompts of which tag. Raises UsageError where that is not said as TAG=NAME."""
        pairs = [expert.partition("=") for expert in self.experts]
        for tag, equals, name in pairs:
            if not (tag and equals and name):
                raise UsageError(f"--expert {tag + equals + name!r} is not TAG=NAME: a prompt's tag and a checkpoint")
        return {tag: name for tag, _, name in pairs}

    @property
    def teacher_weights(self) -> dict[str, float]:
        """The teachers by name with weights that sum to 1; one alone has 1. Raises UsageError where they do not."""
        if "=" not in self.teacher or self.remote_teacher:
            return {self.teacher: 1.0}
        try:
            pairs = [part.rsplit("=", 1) for part in self.teacher.split(",")]
            found = {name.strip(): float(weight) for name, weight in pairs}
        except ValueError:
            raise UsageError(f"--teacher {self.teacher!r}: several are given as NAME=0.5,NAME=0.5") from None
        if min(found.values()) <= 0 or abs(sum(found.values()) - 1) > 1e-6:
            raise UsageError(f"--teacher {self.teacher!r}: the weights must be above 0 and sum to 1")
        return found

    @property
    def self_taught(self) -> bool:
        """Whether the student itself, told more than it is asked, is the teacher."""
        return self.teacher in SELF_TEACHERS

    @property
    def recovering(self) -> bool:
        """Whether the aim is to come back to a checkpoint: only then is there a score to be reached (``until``)."""
        return self.lam == 1.0 and self.teacher != "label" and not self.self_taught and self.context == "none"

    @property
    def rewarded(self) -> bool:
        """Whether answers are judged by the reward."""
        return self.lam < 1.0 or (self.answers == "rejection" and self.alpha < 1.0)

    @property
    def remote_teacher(self) -> bool:
        """Whether a server teaches."""
        return is_address(self.teacher)

    @property
    def weighed(self) -> bool:
        """Whether the student's answers carry the log-probabilities they were sampled with, to be weighed by."""
        return self.engine != "transformers" and self.temperature == 1.0

    def _check_remote(self) -> None:
        if self.overlap and not self.served:
            raise UsageError(
                f"--overlap samples on a server while this process trains; --engine {self.engine} is none: give an "
                f"address, or leave --overlap out"
            )
        if self.overlap and (self.temperature != 1.0 or self.batch_epochs > 1):
            raise UsageError("--overlap needs --temperature 1, where ratios are taken, and --batch-epochs 1")
        if not self.remote_teacher:
            return
        check_address(self.teacher, "--teacher")
        if self.divergence not in ("top_k", "sampled"):
            raise UsageError(
                f"--teacher {self.teacher} gives no logits, which --divergence {self.divergence} compares: use "
                f"--divergence top_k with --top-k 20, or --divergence sampled"
            )
        if self.continuation or (self.answers == "teacher" and self.alpha < 1.0):
            raise UsageError(
                f"--teacher {self.teacher} only scores: --continuation and --answers teacher need a checkpoint"
            )

    def _check_states(self) -> None:
        _share("alpha", self.alpha, upper=1.0)
        _one_of("positions", self.positions, ("all", "one"))
        _one_of("answers", self.answers, ("given", "teacher", "self", "rejection"))
        for name in ("skip_first", "continuation", "geometry_every"):
            _at_least(name, getattr(self, name), 0)
        if self.lam < 1.0 and self.alpha == 0.0:
            raise UsageError("--alpha 0 leaves no answer of the student to reward: raise it, or set --lambda 1")
        if self.alpha > 0 and self.teacher == "label":
            raise UsageError(
                "--teacher label knows only the data's answers, not the student's own: set --alpha 0, or name a teacher"
            )
        if self.lam < 1.0 and self.samples_per_prompt < 2:
            raise UsageError("--samples-per-prompt 1 leaves no group to compare rewards in: take 4 to 8")
        _above_zero("temperature", self.temperature)
        if self.temperature != 1.0 and (self.lam < 1.0 or self.divergence == "sampled"):
            raise UsageError(
                f"--temperature {self.temperature:g}: importance ratios are taken at temperature 1, so sample there"
            )
        if self.alpha < 1.0 and (self.lam == 0.0 or self.divergence == "sampled"):
            raise UsageError(
                f"--alpha {self.alpha:g}: a policy gradient needs the student's own answers, so set --alpha 1"
            )
        if self.alpha < 1.0 and self.context != "none":
            raise UsageError(
                f"--context {self.context} is told to a teacher of the student's own answers: set --alpha 1"
            )
        if self.continuation and (self.alpha < 1.0 or self.lam < 1.0 or self.self_taught or self.context != "none"):
            raise UsageError("--continuation needs --alpha 1, --lambda 1, no --context, a checkpoint as the --teacher")
        if self.continuation and (self.knowledge_teacher or self.experts):
            raise UsageError(
                "--continuation is spoken by the one --teacher: leave --knowledge-teacher and --expert out"
            )

    def _check_idle(self) -> None:
        """Refuse what would silently do nothing beside the other dials."""
        taught = self.knowledge_teacher or self.experts
        for idle, said in (
            (self.data is not None and self.alpha == 1.0, "--data is for --alpha below 1, where answers are imitated"),
            (self.data is not None and self.answers != "given", f"--data is not --answers {self.answers}: give one"),
            (bool(taught) and self.alpha == 0.0, "--knowledge-teacher and --expert score own answers: raise --alpha"),
            (self.context_file is not None and self.context == "none", "--context-file needs a --context"),
            (self.context_template is not None and self.context == "none", "--context-template needs a --context"),
            (self.keep_above != 1.0 and self.answers != "rejection", "--keep-above is for --answers rejection"),
        ):
            if idle:
                raise UsageError(said)

    def _check_teacher(self) -> None:
        weights = self.teacher_weights
        if len(weights) > 1 and (self.divergence == "sampled" or self.continuation):
            raise UsageError(
                "several teachers with weights are compared over the vocabulary: leave --divergence sampled"
            )
        if (self.routes or self.knowledge_teacher) and self.lam == 0.0:
            raise UsageError("--expert and --knowledge-teacher name teachers, and --lambda 0 asks none: raise it")
        if self.lam > 0.0 and self.teacher == "none":
            raise UsageError(f"--lambda {self.lam:g} asks for a teacher: name one with --teacher, or set --lambda 0")
        if self.lam == 0.0 and self.teacher not in ("none", "base"):
            raise UsageError(f"--lambda 0 leaves --teacher {self.teacher} nothing to say: raise it, or --teacher none")
        if self.self_taught and self.alpha < 1.0:
            raise UsageError(f"--teacher {self.teacher} scores the student's own answers: set --alpha 1")
        if self.self_taught and self.context == "none":
            raise UsageError(f"--teacher {self.teacher} knows no more than the student: give it a --context")
        if self.context != "none" and not self.self_taught and self.teacher in ("none", "label"):
            raise UsageError(
                f"--context {self.context} is for a teacher that reads it; --teacher {self.teacher} reads none"
            )
        if not 0.0 < self.ema_decay < 1.0:
            raise UsageError(f"--ema-decay {self.ema_decay:g} must lie between 0 and 1")
        for name in ("context_file", "data"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise UsageError(f"{flag(name)} {path} is not a file")


@dataclass(frozen=True)
class InterpolateConfig(ModelConfig):
    """Weights between two checkpoints: (1 - alpha) ``origin`` + alpha ``student`` (WiSE-FT, arXiv 2109.01903).

    ``origin`` is a checkpoint, or "start": the one the student was trained from. Of ``alphas`` the one is taken that
    answers most training questions about the documents (``questions`` of them, 0: none, and the largest is taken) among
    those whose score on ``development`` prompts reaches the share ``keep`` of base's; where none does, the one with the
    highest such score. No test prompt is asked.
    """

    student: str = "latest"
    origin: str = "base"
    alphas: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    keep: float = 0.98
    development: int = 300
    questions: int = 200
    prompts: Path | None = None
    max_new_tokens: int = 256
    question_tokens: int = 48

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alphas:
            raise UsageError("--alpha names no place between the two: give one, or several to choose from")
        for alpha in self.alphas:
            _share("alpha", alpha, upper=1.0)
        _share("keep", self.keep, upper=1.0)
        _at_least("questions", self.questions, 0)
        for name in ("development", "max_new_tokens", "question_tokens"):
            _at_least(name, getattr(self, name), 1)


@dataclass(frozen=True)
class EvalConfig(ModelConfig):
    """What is measured. ``limit`` bounds the items of each suite, the same ones for every checkpoint.

    ``ifeval`` is a file of IFEval's own prompts or "hub"; an answer to one may take ``ifeval_tokens``.
    ``complete_loops`` ends answers that repeat themselves and takes the repetition as the rest of them.
    ``texts`` is a folder of texts that nothing is learnt from: bits per byte on them say what became of the language.
    ``behaviour`` are files of prompts with checks, each a suite of one's own; ``tasks`` are lm-eval's, by name or file,
    or "NAME=PATH" to run one on local data.
    """

    checkpoint: str = "latest"
    limit: int | None = 1000
    max_new_tokens: int = 256
    question_tokens: int = 48
    prompts: Path | None = None
    behaviour: tuple[Path, ...] = ()
    ifeval: str | None = None
    ifeval_tokens: int = 1280
    complete_loops: bool = False
    texts: Path | None = None
    tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit is not None:
            _at_least("limit", self.limit, 1)
        for name in ("max_new_tokens", "question_tokens", "ifeval_tokens"):
            _at_least(name, getattr(self, name), 1)
        if self.complete_loops and self.engine != "transformers":
            raise UsageError(
                f"--complete-loops is for the transformers engine, not for {self.engine}: leave one of them out"
            )


@dataclass(frozen=True)
class CycleConfig:
    """Whole cycles: one for each folder of ``docs``. The stages' own settings are theirs.

    ``gate`` are the rules by which a cycle is accepted or rejected. Where they stay undecided, up to ``gate_samples``
    items of a suite are asked, then the distillation goes on, ``gate_extend`` times at most.
    """

    docs: tuple[Path, ...] = ()
    knowledge_teacher: str | None = "midtrained"
    replay_documents: float = 0.5
    evaluate: bool = True
    gate: tuple[str, ...] = ()
    gate_alpha: float = 0.05
    gate_samples: int = 4000
    gate_extend: int = 1
    midtrain: MidtrainConfig = field(default_factory=MidtrainConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)

    def __post_init__(self) -> None:
        _share("replay_documents", self.replay_documents)
        if not 0 < self.gate_alpha < 0.5:
            raise UsageError(
                f"--gate-alpha {self.gate_alpha:g} must lie between 0 and 0.5: how often a gate may be wrong"
            )
        _at_least("gate_samples", self.gate_samples, 1)
        _at_least("gate_extend", self.gate_extend, 0)
        if self.gate and not self.evaluate:
            raise UsageError("--gate needs the evaluations it judges: leave evaluate on")


SECTIONS: dict[str, type[Any]] = {
    "midtrain": MidtrainConfig,
    "distill": DistillConfig,
    "interpolate": InterpolateConfig,
    "eval": EvalConfig,
    "cycle": CycleConfig,
}
# What a run is about is said on the command line; a recipe says how it is done.
_NOT_IN_RECIPES = {"docs", "student", "checkpoint", "midtrain", "distill", "eval"}

Config = TypeVar("Config", MidtrainConfig, DistillConfig, InterpolateConfig, EvalConfig, CycleConfig)


@dataclass(frozen=True)
class Recipe:
    """A parsed TOML file of settings: table → key → value, all known. ``origin`` names the file in errors.

    ``recommended`` marks what a model recommends for itself, which a method's preset overrides.
    """

    origin: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recommended: bool = False

    def settings(self, section: str) -> dict[str, Any]:
        """What the file says for one stage: the shared table first, the stage's own over it."""
        known = _names(SECTIONS[section])
        shared = {k: v for k, v in self.tables.get(SHARED, {}).items() if k in known}
        return shared | dict(self.tables.get(section, {}))


def read_recipe(path: Path) -> Recipe:
    """Read and check a TOML recipe. Raises UsageError naming the file and the key."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"the recipe {path} cannot be read: {error}") from error
    shared = _names(ModelConfig) | _names(TrainingConfig)
    for table, values in tables.items():
        if table != SHARED and table not in SECTIONS:
            raise UsageError(f"{path}: there is no table [{table}]{_meant(table, [SHARED, *SECTIONS])}")
        if not isinstance(values, Mapping):
            raise UsageError(f"{path}: {table} stands outside a table: put it under [{SHARED}] or a stage's name")
        known = (shared if table == SHARED else _names(SECTIONS[table])) - _NOT_IN_RECIPES
        for key in values:
            if key not in known:
                raise UsageError(f"{path}: [{table}] has no setting '{key}'{_meant(key, known)}")
    return Recipe(str(path), tables)


def model_recipe(folder: Path) -> Recipe:
    """The settings a model folder recommends for itself; an empty recipe where it has none."""
    path = folder / RECIPE_NAME
    return dataclasses.replace(read_recipe(path), recommended=True) if path.is_file() else Recipe(recommended=True)


def build(kind: type[Config], flags: Mapping[str, Any], *recipes: Recipe) -> Config:
    """One stage's settings. ``flags`` are what the user typed; of ``recipes`` the first to say a thing wins.

    Flags that mean nothing to this stage are the caller's affair and are left out here.
    Raises UsageError where values do not fit their type or one another.
    """
    section = next(name for name, value in SECTIONS.items() if value is kind)
    if kind is DistillConfig:
        recipes = _with_preset(flags, recipes)
    values: dict[str, Any] = {}
    for recipe in reversed(recipes):
        said = recipe.settings(section)
        _one_length(values, said)
        values |= {key: _fit(kind, key, value, recipe.origin) for key, value in said.items()}
    typed = {key: value for key, value in flags.items() if key in _names(kind) and value is not None}
    _one_length(values, typed)
    values |= {key: _fit(kind, key, value, "") for key, value in typed.items()}
    return kind(**values)


def build_cycle(flags: Mapping[str, Any], *recipes: Recipe) -> CycleConfig:
    """The settings of whole cycles. A flag that several stages have goes to each of them; ``midtrain_lr``,
    ``distill_steps`` and their like go to one. ``knowledge_teacher`` "none" means that base teaches alone.
    """
    mine = {"docs", "knowledge_teacher", "gate", "gate_alpha", "gate_samples", "gate_extend"}
    shared = {k: v for k, v in flags.items() if k not in mine}
    own = {k: v for k, v in flags.items() if k in mine | {"replay_documents"}}

    def of(stage: str) -> dict[str, Any]:
        prefix = f"{stage}_"
        return shared | {k.removeprefix(prefix): v for k, v in shared.items() if k.startswith(prefix)}

    config = build(CycleConfig, own, *recipes)
    return dataclasses.replace(
        config,
        knowledge_teacher=None if config.knowledge_teacher == "none" else config.knowledge_teacher,
        midtrain=build(MidtrainConfig, of("midtrain"), *recipes),
        distill=build(DistillConfig, of("distill"), *recipes),
        eval=build(EvalConfig, shared, *recipes),
    )


def to_json(config: Any) -> dict[str, Any]:
    """A configuration in JSON's own types, for the tracker."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def from_json(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """The inverse of :func:`to_json`. Raises UsageError for what another version wrote and this one lacks."""
    known = _names(kind)
    unknown = sorted(set(values) - known)
    if unknown:
        raise UsageError(f"the stage was started with settings this version does not know: {', '.join(unknown)}")
    return kind(**{key: _fit(kind, key, value, "the tracker") for key, value in values.items()})


def flag(name: str) -> str:
    """The flag that sets a field: ``batch_tokens`` → ``--batch-tokens``."""
    return "--" + name.replace("_", "-")


def _with_preset(flags: Mapping[str, Any], recipes: tuple[Recipe, ...]) -> tuple[Recipe, ...]:
    """The recipes with the preset of the method they or the flags name, above what a model recommends for itself."""
    said = [flags, *(recipe.settings("distill") for recipe in recipes)]
    name = next((str(values["method"]) for values in said if values.get("method")), "opd")
    preset = Recipe(f"the method {name}", {"distill": method_named(name).settings})
    return (*(r for r in recipes if not r.recommended), preset, *(r for r in recipes if r.recommended))


def _one_length(values: dict[str, Any], over: Mapping[str, Any]) -> None:
    # Steps typed by the user replace epochs recommended by the model, and the other way round.
    if "steps" in over and "epochs" not in over:
        values.pop("epochs", None)
    if "epochs" in over and "steps" not in over:
        values.pop("steps", None)


def _names(kind: type[Any]) -> set[str]:
    return {f.name for f in dataclasses.fields(kind)}


def _fit(kind: type[Any], key: str, value: Any, origin: str) -> Any:
    """``value`` as the type of the field, or UsageError: TOML and JSON know no paths and no tuples."""
    wanted = typing.get_type_hints(kind)[key]
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    for option in options:
        done, fitted = _as_type(option, value)
        if done:
            return fitted
    where = f"{origin}: {key}" if origin else flag(key)
    names = " or ".join("nothing" if o is type(None) else getattr(o, "__name__", str(o)) for o in options)
    raise UsageError(f"{where} is {value!r}, but must be {names}")


def _as_type(option: Any, value: Any) -> tuple[bool, Any]:
    if option is type(None):
        return value is None, None
    if option in (MidtrainConfig, DistillConfig, EvalConfig):
        return isinstance(value, Mapping | option), from_json(option, value) if isinstance(value, Mapping) else value
    origin = typing.get_origin(option)
    if origin is tuple:
        inner, listed = typing.get_args(option)[0], isinstance(value, list | tuple)
        return listed, tuple(inner(v) for v in value) if listed else ()
    if origin is not None:
        return isinstance(value, Mapping), dict(value) if isinstance(value, Mapping) else {}
    if option is Path:
        return isinstance(value, str | Path), Path(value) if isinstance(value, str | Path) else None
    if option is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number, float(value) if number else 0.0
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    return isinstance(value, option), value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_json(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _meant(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f": did you mean '{close[0]}'?" if close else f" (known: {', '.join(sorted(known))})"


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{flag(name)} {value!r} is not known: use {', '.join(allowed[:-1])} or {allowed[-1]}")


def _at_least(name: str, value: float, least: int) -> None:
    if value < least:
        raise UsageError(f"{flag(name)} is {value}, but must be at least {least}")


def _above_zero(name: str, value: float) -> None:
    if not value > 0:
        raise UsageError(f"{flag(name)} is {value}, but must be above 0")


def _share(name: str, value: float, upper: float = 0.95) -> None:
    if not 0 <= value <= upper:
        raise UsageError(f"{flag(name)} is {value}, but must be between 0 and {upper}")
