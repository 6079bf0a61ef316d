"""Stage configurations: frozen dataclasses, validated on creation, built from flags, recipes and defaults.

Precedence, highest first: flags, the recipe (``--recipe FILE``), the model folder's ``recovery.toml``, the
defaults below. A recipe is TOML with one table per stage ([midtrain], [distill], [interpolate], [eval],
[cycle]) and one for settings shared by all stages ([model]). Unknown tables and keys are errors.
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

from recovery.engines import check_engine, is_server
from recovery.errors import UsageError
from recovery.losses.config import LossConfig
from recovery.methods import method_named
from recovery.teacher_spec import TeacherSpec
from recovery.vllm_client import check_address, is_address

RECIPE_NAME = "recovery.toml"
SHARED = "model"
# The default peak rates of full fine-tuning are the usual ones for models of RATED_AT parameters; smaller models take
# higher rates. The power and the bound come from trials on a model of 135 million parameters (docs/log.md).
RATED_AT, RATE_POWER, LARGEST_RATE_FACTOR = 8e9, 0.6, 12.0


@dataclass(frozen=True)
class ModelConfig:
    """How a model is loaded. ``token_budget`` is padded tokens per micro-batch; it affects memory, not results.

    ``rollout_tokens`` bounds the prompt and completion tokens held at once while sampling.

    ``engine`` is the rollout engine (:mod:`recovery.engines`): "transformers", "vllm" in this process, or the address
    of a server, which reads weights from ``engine_folder`` (a folder both can read; None: a temporary one).
    ``engine_memory`` is the size of vLLM's KV cache in GiB (None: chosen from free memory), ``engine_sleep`` releases
    it between calls; ``engine_drift`` is the largest allowed mean difference of log-probabilities between engine and
    model, in nats per token. ``server_wait`` is how long a server may be unavailable, ``server_timeout`` how long one
    request may take (seconds).
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
        if not 0 <= self.seed < 2**31:  # the tracker stores it in 32 bits
            raise UsageError(f"{flag('seed')} is {self.seed}, but must be at least 0 and below 2**31")
        self._check_engine()

    @property
    def served(self) -> bool:
        """Whether the rollout engine is a server."""
        return is_server(self.engine)

    def _check_engine(self) -> None:
        check_engine(self.engine)
        for name in ("engine_drift", "server_timeout"):
            _above_zero(name, getattr(self, name))
        _at_least("server_wait", self.server_wait, 0)
        if self.engine_memory is not None:
            _above_zero("engine_memory", self.engine_memory)
        for idle, message in (
            (self.engine_memory is not None and self.engine != "vllm", "--engine-memory needs --engine vllm"),
            (self.engine_sleep and self.engine != "vllm", "--engine-sleep needs --engine vllm"),
            (
                self.engine_folder is not None and not self.served,
                "--engine-folder needs the address of a server as --engine",
            ),
        ):
            if idle:
                raise UsageError(message)


@dataclass(frozen=True)
class TrainingConfig(ModelConfig):
    """Optimisation settings. ``lr`` overrides ``full_lr`` (None: from the model's size) and ``lora_lr``; ``warmup`` is
    a fraction of the steps.

    ``shard`` "full" shards the student's layers over all processes (FSDP2), ``offload`` keeps the shards in CPU
    memory; both have no effect with one process. ``compile`` compiles the layers with torch if they are not sharded.
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
            raise UsageError("--offload keeps the shards of a model in CPU memory: add --shard full")
        if self.shard == "full" and self.optimizer == "muon":
            raise UsageError("--optimizer muon needs whole matrices: use --shard none, or --optimizer adamw")
        if self.shard == "full" and self.compile:
            raise UsageError("--compile does not work with sharded layers: use --shard none, or omit --compile")
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
        """Return the peak learning rate for ``tuning`` "full" or "lora" of a model with ``parameters`` parameters."""
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

    Length is ``steps``, or ``epochs`` over this cycle's documents. ``batch_tokens`` are target tokens per step
    (None: up to 8,192, fewer for a small corpus, so that it still gets about fifty updates); no row is longer.
    ``replay`` is the share of them that is chat: completions of the clean base, or the chat in ``replay_data``.
    ``replay_loss`` is the loss on it: "answers" (cross-entropy on the tokens) or "kl" (forward KL to the clean model's
    distribution at each token, arXiv 2605.26097). ``replay_documents`` is the share of the document tokens that comes
    from earlier cycles (None: 0, or the cycle's own default inside ``recover cycle``). ``anchor`` is the weight of the
    KL to base on the documents; ``project`` removes from each gradient the component that would raise the loss on such
    chat (A-GEM, arXiv 1812.00420).

    ``augment`` is the number of paraphrases of each fact of this cycle's documents (0: off), in texts and in chats
    about a subject or a section. They take ``augment_share`` of the tokens that would otherwise be these documents',
    and ``augment_questions`` of that share are questions with answers: those that came with the documents, and some
    about facts that no probe covers. The share is reduced if this text would be repeated more than four times as often
    as the documents. A ``writer`` (a checkpoint, or the address of a chat server) also rewrites passages (arXiv
    2508.09494): only text that the passage supports is used, and the writer's tokens count as sampled by this stage.
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
            raise UsageError("--replay-loss kl needs --replay or --project: set the share of chat, as in --replay 0.3")
        _at_least("anchor", self.anchor, 0)
        if self.replay_data is not None and not (self.replay or self.project):
            raise UsageError("--replay-data needs --replay or --project: set the share of chat, as in --replay 0.3")
        _share("replay_documents", self.replay_documents or 0.0)
        _share("held_out", self.held_out, upper=0.5)
        self._check_augmentation()

    def _check_augmentation(self) -> None:
        _at_least("augment", self.augment, 0)
        _share("augment_share", self.augment_share)
        _share("augment_questions", self.augment_questions)
        if self.augment and not self.augment_share:
            raise UsageError("--augment-share 0 leaves no tokens for the paraphrases: raise it, or set --augment 0")
        if self.writer is not None and not self.augment:
            raise UsageError(
                "--writer rewrites passages for --augment: set the number of paraphrases, as in --augment 4"
            )
        if self.writer is not None and is_address(self.writer):
            check_address(self.writer, "--writer")

    @property
    def distils_replay(self) -> bool:
        """Whether the clean model scores the replayed chat."""
        return self.replay_loss == "kl"

    @property
    def passes(self) -> float:
        """Number of epochs, used if ``steps`` is not given."""
        return 3.0 if self.epochs is None else self.epochs


@dataclass(frozen=True)
class DistillConfig(TrainingConfig):
    """Settings of every distillation method; the defaults are on-policy distillation.

    ``method`` names the preset of these values (:mod:`recovery.methods`). ``alpha`` is the share of a step's prompts
    that the student completes itself; the others use the completions of ``answers``: "given" (``data`` or the prompts'
    own), "teacher", "self" (the initial student), or "rejection" (those of "self" whose reward reaches
    ``keep_above``). ``lam`` is the weight of the teacher, 1 - lam that of the ``reward``. ``teacher`` is a checkpoint,
    or "label" (the answer itself), "none", "self", "start" or "ema" (the current student, the initial student, its
    moving average); the last three need a ``context`` that the student does not see. ``batch_epochs`` is the number of
    updates on one batch of completions; ``focus`` is the share of prompts drawn in proportion to how often the
    student's latest completions failed their checks (the rest are drawn uniformly). ``positions`` "one" scores a single
    position of each completion; the first ``skip_first`` tokens of a response are not scored; ``continuation`` tokens
    (0: none) are sampled by the teacher from a prefix of the student's completion and used as labels. ``experts``
    ("TAG=NAME") score the prompts with their tag; ``teacher`` may be several with weights ("NAME=0.5,NAME=0.5").
    ``alarm`` stops a run that collapses and restores the last state before; ``max_tokens`` is the run's token budget
    (sampled, scored and trained together).

    A ``teacher`` may also be the address of a vLLM server ("http://..."), which returns ``top_k`` log-probabilities per
    token. ``overlap`` samples the next completions while this batch trains; it needs a server as engine. If older
    weights or another engine sampled, each token is weighted by the product of the importance ratios of the tokens
    before it, at most ``ratio_cap`` (0: no weighting).

    ``until`` stops the run when a paired test with ``margin`` on ``development`` prompts shows that the student's score
    reaches that share of base's, tested every ``check_every`` steps (0: never). ``plateau`` is the window in steps over
    which the divergence must still fall (0: off). ``knowledge_share`` of the prompts are questions about the documents,
    scored by ``knowledge_teacher``, those about earlier cycles' documents by ``earlier_teacher`` if set;
    ``document_loss`` is the share of trained tokens that are documents.
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
        self.loss_config()
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
                f"--until {self.until} needs --development of at least 1000 prompts for its test (given: "
                f"{self.development}); --until 0 switches the test off"
            )
        if self.earlier_teacher and not self.knowledge_teacher:
            raise UsageError("--earlier-teacher needs --knowledge-teacher, which scores the newest documents")
        if self.knowledge_teacher and self.prompts_per_step * self.knowledge_share < 0.5:
            raise UsageError(
                f"--knowledge-teacher {self.knowledge_teacher} gets none of the {self.prompts_per_step} prompts of a "
                f"step: raise --knowledge-share or --prompts-per-step, or omit the teacher"
            )

    def loss_config(self) -> LossConfig:
        """Return the settings of the loss. Raise UsageError if one is out of range."""
        # The temperature of the loss is not the sampling temperature: a divergence is always computed at 1.
        own = ("temperature", "metric")
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(LossConfig) if f.name not in own}
        off = {name: None for name in ("clip", "drop", "entry_clip", "floor") if given[name] == 0}  # over a preset
        return LossConfig(**(given | off))

    @property
    def routes(self) -> dict[str, str]:
        """Expert by prompt tag. Raise UsageError if an entry is not TAG=NAME."""
        pairs = [expert.partition("=") for expert in self.experts]
        for tag, equals, name in pairs:
            if not (tag and equals and name):
                raise UsageError(f"--expert {tag + equals + name!r} is not TAG=NAME: a prompt's tag and a checkpoint")
        return {tag: name for tag, _, name in pairs}

    @property
    def teaching(self) -> TeacherSpec:
        """The parsed ``teacher``. Raise UsageError if its weights do not sum to 1."""
        return TeacherSpec.parse(self.teacher)

    @property
    def recovering(self) -> bool:
        """Whether the aim is to recover the behaviour of a checkpoint; only then does ``until`` apply."""
        return (
            self.lam == 1.0
            and self.teaching.kind != "label"
            and not self.teaching.is_student
            and self.context == "none"
        )

    @property
    def rewarded(self) -> bool:
        """Whether completions are scored by the reward."""
        return self.lam < 1.0 or (self.answers == "rejection" and self.alpha < 1.0)

    @property
    def weighed(self) -> bool:
        """Whether the student's completions keep their sampling log-probabilities for importance weights."""
        return self.engine != "transformers" and self.temperature == 1.0

    def _check_remote(self) -> None:
        if self.overlap and not self.served:
            raise UsageError(
                f"--overlap samples on a server while this process trains; --engine {self.engine} is not a server: "
                f"give an address, or omit --overlap"
            )
        if self.overlap and (self.temperature != 1.0 or self.batch_epochs > 1):
            raise UsageError(
                "--overlap needs --temperature 1, at which importance ratios are computed, and --batch-epochs 1"
            )
        if not self.teaching.remote:
            return
        check_address(self.teacher, "--teacher")
        if self.divergence not in ("top_k", "sampled"):
            raise UsageError(
                f"--teacher {self.teacher} returns no logits, which --divergence {self.divergence} needs: use "
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
            raise UsageError("--alpha 0 leaves no completion of the student to reward: raise it, or set --lambda 1")
        if self.alpha > 0 and self.teaching.kind == "label":
            raise UsageError(
                "--teacher label scores only answers from the data, not the student's completions: set --alpha 0, or "
                "name a teacher"
            )
        if self.lam < 1.0 and self.samples_per_prompt < 2:
            raise UsageError("--samples-per-prompt 1 leaves no group to compare rewards in: use 4 to 8")
        _above_zero("temperature", self.temperature)
        if self.temperature != 1.0 and (self.lam < 1.0 or self.divergence == "sampled"):
            raise UsageError(f"--temperature {self.temperature:g}: importance ratios need --temperature 1: set it")
        if self.alpha < 1.0 and (self.lam == 0.0 or self.divergence == "sampled"):
            raise UsageError(
                f"--alpha {self.alpha:g}: a policy gradient needs the student's own completions: set --alpha 1"
            )
        if self.alpha < 1.0 and self.context != "none":
            raise UsageError(
                f"--context {self.context} is for a teacher that scores the student's own completions: set --alpha 1"
            )
        if self.continuation and (
            self.alpha < 1.0 or self.lam < 1.0 or self.teaching.is_student or self.context != "none"
        ):
            raise UsageError("--continuation needs --alpha 1, --lambda 1, no --context, and a checkpoint as --teacher")
        if self.continuation and (self.knowledge_teacher or self.experts):
            raise UsageError("--continuation is sampled from a single --teacher: omit --knowledge-teacher and --expert")

    def _check_idle(self) -> None:
        """Refuse settings that would have no effect in combination with the others."""
        taught = self.knowledge_teacher or self.experts
        for idle, message in (
            (self.data is not None and self.alpha == 1.0, "--data needs --alpha below 1: its answers are imitated"),
            (
                self.data is not None and self.answers != "given",
                f"--data and --answers {self.answers} exclude each other: give one",
            ),
            (
                bool(taught) and self.alpha == 0.0,
                "--knowledge-teacher and --expert score own completions: raise --alpha",
            ),
            (self.context_file is not None and self.context == "none", "--context-file needs a --context"),
            (self.context_template is not None and self.context == "none", "--context-template needs a --context"),
            (self.keep_above != 1.0 and self.answers != "rejection", "--keep-above needs --answers rejection"),
        ):
            if idle:
                raise UsageError(message)

    def _check_teacher(self) -> None:
        teaching = self.teaching
        if len(teaching.weights) > 1 and (self.divergence == "sampled" or self.continuation):
            raise UsageError(
                "several weighted teachers exclude --divergence sampled and --continuation: choose another --divergence"
            )
        if (self.routes or self.knowledge_teacher) and self.lam == 0.0:
            raise UsageError("--expert and --knowledge-teacher name teachers, which --lambda 0 disables: raise it")
        if self.lam > 0.0 and teaching.kind == "none":
            raise UsageError(f"--lambda {self.lam:g} needs a teacher: name one with --teacher, or set --lambda 0")
        if self.lam == 0.0 and self.teacher not in ("none", "base"):
            raise UsageError(f"--lambda 0 disables --teacher {self.teacher}: raise it, or set --teacher none")
        if self.teaching.is_student and self.alpha < 1.0:
            raise UsageError(f"--teacher {self.teacher} scores the student's own completions: set --alpha 1")
        if self.teaching.is_student and self.context == "none":
            raise UsageError(f"--teacher {self.teacher} is the student itself: give it a --context")
        if self.context != "none" and not self.teaching.is_student and teaching.kind in ("none", "label"):
            raise UsageError(
                f"--context {self.context} needs a teacher that reads it; --teacher {self.teacher} reads none"
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

    ``origin`` is a checkpoint, or "start": the one the student was trained from. Candidates are the ``alphas`` whose
    score on ``development`` prompts reaches the share ``keep`` of base's; the one with the most correct training
    questions about the documents is chosen (``questions`` of them; with 0 the largest alpha). If there is no candidate,
    the alpha with the highest score is chosen. No test prompt is used.
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
            raise UsageError("--alpha is empty: give one value, or several to choose from")
        for alpha in self.alphas:
            _share("alpha", alpha, upper=1.0)
        _share("keep", self.keep, upper=1.0)
        _at_least("questions", self.questions, 0)
        for name in ("development", "max_new_tokens", "question_tokens"):
            _at_least(name, getattr(self, name), 1)


@dataclass(frozen=True)
class EvalConfig(ModelConfig):
    """What is evaluated. ``limit`` bounds the items of each suite, the same ones for every checkpoint.

    ``ifeval`` is a file of IFEval's own prompts or "hub"; its completions have at most ``ifeval_tokens`` tokens.
    ``complete_loops`` stops decoding completions that repeat themselves and fills the rest with the repetition.
    ``texts`` is a folder of held-out texts: bits per byte on them measure general language modelling.
    ``behaviour`` are files of prompts with checks, each a custom suite; ``tasks`` are lm-eval's, by name or file,
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
            raise UsageError(f"--complete-loops needs --engine transformers, not {self.engine}: omit one of them")


@dataclass(frozen=True)
class CycleConfig:
    """Whole cycles, one for each folder of ``docs``, with the settings of each stage.

    ``gate`` are the rules by which a cycle is accepted or rejected. If they are undecided, up to ``gate_samples`` items
    of a suite are evaluated, then the distillation is extended, at most ``gate_extend`` times.
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
                f"--gate-alpha {self.gate_alpha:g} must lie between 0 and 0.5: it is the error rate of a gate"
            )
        _at_least("gate_samples", self.gate_samples, 1)
        _at_least("gate_extend", self.gate_extend, 0)
        if self.gate and not self.evaluate:
            raise UsageError("--gate needs the evaluations it judges: set evaluate to true")


SECTIONS: dict[str, type[Any]] = {
    "midtrain": MidtrainConfig,
    "distill": DistillConfig,
    "interpolate": InterpolateConfig,
    "eval": EvalConfig,
    "cycle": CycleConfig,
}
# The inputs of a run are given on the command line; a recipe holds only its settings.
_NOT_IN_RECIPES = {"docs", "student", "checkpoint", "midtrain", "distill", "eval"}

Config = TypeVar("Config", MidtrainConfig, DistillConfig, InterpolateConfig, EvalConfig, CycleConfig)


@dataclass(frozen=True)
class Recipe:
    """A parsed TOML file of settings: table → key → value, all known. ``origin`` names the file in errors.

    ``recommended`` marks the recommendations of a model folder, which a method's preset overrides.
    """

    origin: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recommended: bool = False

    def settings(self, section: str) -> dict[str, Any]:
        """Return the settings of one stage: the shared table, overridden by the stage's own."""
        known = _names(SECTIONS[section])
        shared = {k: v for k, v in self.tables.get(SHARED, {}).items() if k in known}
        return shared | dict(self.tables.get(section, {}))


def read_recipe(path: Path) -> Recipe:
    """Read and check a TOML recipe. Raise UsageError, naming the file and the key, if it is invalid."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"the recipe {path} cannot be read: {error}") from error
    shared = _names(ModelConfig) | _names(TrainingConfig)
    for table, values in tables.items():
        if table != SHARED and table not in SECTIONS:
            raise UsageError(f"{path}: there is no table [{table}]{_meant(table, [SHARED, *SECTIONS])}")
        if not isinstance(values, Mapping):
            raise UsageError(f"{path}: {table} is outside a table: put it under [{SHARED}] or a stage's name")
        known = (shared if table == SHARED else _names(SECTIONS[table])) - _NOT_IN_RECIPES
        for key in values:
            if key not in known:
                raise UsageError(f"{path}: [{table}] has no setting '{key}'{_meant(key, known)}")
    return Recipe(str(path), tables)


def model_recipe(folder: Path) -> Recipe:
    """Return the settings that a model folder recommends; an empty recipe if it has none."""
    path = folder / RECIPE_NAME
    return dataclasses.replace(read_recipe(path), recommended=True) if path.is_file() else Recipe(recommended=True)


def build(kind: type[Config], flags: Mapping[str, Any], *recipes: Recipe) -> Config:
    """Build one stage's settings. ``flags`` are the user's; earlier ``recipes`` override later ones.

    Flags that this stage does not have are ignored.
    Raise UsageError if values do not fit their type or one another.
    """
    section = next(name for name, value in SECTIONS.items() if value is kind)
    if kind is DistillConfig:
        recipes = _with_preset(flags, recipes)
    values: dict[str, Any] = {}
    for recipe in reversed(recipes):
        settings = recipe.settings(section)
        _one_length(values, settings)
        values |= {key: _fit(kind, key, value, recipe.origin) for key, value in settings.items()}
    typed = {key: value for key, value in flags.items() if key in _names(kind) and value is not None}
    _one_length(values, typed)
    values |= {key: _fit(kind, key, value, "") for key, value in typed.items()}
    return kind(**values)


def build_cycle(flags: Mapping[str, Any], *recipes: Recipe) -> CycleConfig:
    """Build the settings of whole cycles. A flag that several stages have is set for each of them; ``midtrain_lr``,
    ``distill_steps`` and the like for one. ``knowledge_teacher`` "none" means that base is the only teacher.
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
    """Return a configuration as JSON types, for the tracker."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def from_json(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Invert :func:`to_json`. Raise UsageError if a setting is unknown to this version."""
    known = _names(kind)
    unknown = sorted(set(values) - known)
    if unknown:
        raise UsageError(f"the stage was started with settings this version does not know: {', '.join(unknown)}")
    return kind(**{key: _fit(kind, key, value, "the tracker") for key, value in values.items()})


def flag(name: str) -> str:
    """Return the flag that sets a field: ``batch_tokens`` → ``--batch-tokens``."""
    return "--" + name.replace("_", "-")


def _with_preset(flags: Mapping[str, Any], recipes: tuple[Recipe, ...]) -> tuple[Recipe, ...]:
    """Return the recipes with the preset of the selected method inserted before a model's recommendations."""
    sources = [flags, *(recipe.settings("distill") for recipe in recipes)]
    name = next((str(values["method"]) for values in sources if values.get("method")), "opd")
    preset = Recipe(f"the method {name}", {"distill": method_named(name).settings})
    return (*(r for r in recipes if not r.recommended), preset, *(r for r in recipes if r.recommended))


def _one_length(values: dict[str, Any], over: Mapping[str, Any]) -> None:
    # Steps given by the user replace epochs recommended by the model, and vice versa.
    if "steps" in over and "epochs" not in over:
        values.pop("epochs", None)
    if "epochs" in over and "steps" not in over:
        values.pop("steps", None)


def _names(kind: type[Any]) -> set[str]:
    return {f.name for f in dataclasses.fields(kind)}


def _fit(kind: type[Any], key: str, value: Any, origin: str) -> Any:
    """Convert ``value`` to the type of the field, or raise UsageError; TOML and JSON have no paths and no tuples."""
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
