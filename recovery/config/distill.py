"""Settings of distillation, whatever its method."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from recovery.config.defaults import USUAL_RATES
from recovery.config.midtrain import MidtrainConfig
from recovery.config.model import TrainingConfig
from recovery.data.sources import parse
from recovery.engines import check_address
from recovery.errors import UsageError
from recovery.losses.config import OF_DIVERGENCES, LossConfig, why_idle
from recovery.methods import METHODS
from recovery.settings import flag_of, same_as, setting, share
from recovery.teacher_spec import KINDS, TeacherSpec

# Settings of how the student's own completions are scored.
OF_COMPLETIONS = ("positions", "skip_first")


@dataclass(frozen=True)
class DistillConfig(TrainingConfig):
    """Settings of every distillation method; the defaults are on-policy distillation.

    A ``teacher`` is a checkpoint, several with weights ("NAME=0.5,NAME=0.5"), the address of a vLLM server, which
    returns ``top_k`` log-probabilities per token, "label" (the answer itself), "none", or, with a ``context``, "self",
    "start" or "ema" (the current student, the initial student, its moving average). If another engine sampled, each
    token is weighted by the product of the importance ratios of the tokens before it. With ``batch_epochs`` above 1 the
    later updates use states of slightly older weights; these are reweighted likewise for a teacher with another
    tokenizer, but not for others if the engine is transformers. A policy gradient has its own ratio.
    """

    student: str = same_as(MidtrainConfig, "student")
    blend: float = share(
        1.0,
        "Start from this share of the student's weights, and the rest of those of the checkpoint that it "
        "was trained from; 1: from the student itself.",
        most=1,
    )
    teacher: str = setting(
        "base",
        "Teacher for behaviour: base, a folder, a hub id (also with another tokenizer) or the address of "
        "a vLLM server. Some methods take label, none, self, start or ema.",
        metavar="NAME",
    )
    knowledge_teacher: str | None = setting(
        None,
        "Teacher for questions about the documents, e.g. midtrained.",
        metavar="NAME",
        shown="none; inside a cycle midtrained",
    )
    knowledge_share: float = share(
        0.2, "Largest share of prompts that are questions about the documents: less if each were asked over 32 times."
    )
    earlier_share: float | None = share(
        None,
        "Share of these questions that are about earlier cycles' documents, for any number of cycles.",
        shown="drawn from all documents alike; inside a cycle 0.5",
    )
    earlier_teacher: str | None = setting(
        None,
        "Teacher for questions about earlier cycles' documents.",
        metavar="NAME",
        shown="the knowledge teacher; inside a cycle the checkpoint before its mid-training",
    )
    near_miss_share: float = share(
        0.0, "Share of prompts that ask about what no document holds, scored by the teacher for behaviour."
    )
    writer_questions: bool = setting(
        False, "Ask the knowledge teacher also the questions among the texts of rewritten.jsonl."
    )
    experts: tuple[str, ...] = setting(
        (),
        "A checkpoint that scores the prompts with this tag; may be repeated.",
        flag="--expert",
        metavar="TAG=NAME",
    )
    document_loss: float = share(0.0, "Share of trained tokens that are document text.")
    document_teacher: bool = setting(
        False, "The knowledge teacher scores document text; without it the text's own tokens are the targets."
    )
    document_texts: bool = setting(False, "Document text includes the texts of rewritten.jsonl.")
    prompts: Path | None = same_as(MidtrainConfig, "prompts")
    without_kinds: tuple[str, ...] = setting(
        (),
        "A kind of instruction to leave out of the training prompts, e.g. punctuation:no_comma, or a "
        "group: length_constraints; may be repeated. To measure what comes back without being asked for.",
        flag="--without-kind",
        metavar="KIND",
    )
    prompts_per_step: int = setting(32, "Distinct prompts per step.", minimum=1)
    prompts_before: int | None = setting(
        None,
        "Ordinary prompts to pass over first, in the order of --seed: those that earlier runs used.",
        minimum=0,
        shown="0; inside a cycle as many as the cycles before it drew",
    )
    samples_per_prompt: int = setting(4, "Completions sampled per prompt.", minimum=1)
    focus: float = share(
        0.0, "Share of prompts drawn by the kinds of instruction that recent completions failed; the rest uniformly."
    )
    max_new_tokens: int = same_as(MidtrainConfig, "max_new_tokens")
    temperature: float = setting(1.0, "Sampling temperature.", above=0)
    steps: int = same_as(MidtrainConfig, "steps", value=200)
    method: str = setting(
        "opd", "A preset: see `recover methods`.", metavar="NAME", shown="the recipe's, else opd", by_model=True
    )
    alpha: float = share(
        1.0,
        "Share of a step's prompts that the student completes (lmbda in TRL's GKD); the others have "
        "responses of --answers.",
        most=1,
    )
    lam: float = same_as(LossConfig, "lam")
    divergence: str = same_as(LossConfig, "divergence")
    beta: float = same_as(LossConfig, "beta")
    anchor: float = same_as(LossConfig, "anchor")
    # 0 switches off what a preset sets: it is None to the loss, which checks the range again.
    clip: float | None = same_as(LossConfig, "clip", minimum=0, above=None)
    drop: float | None = same_as(LossConfig, "drop", minimum=0, above=None)
    entry_clip: float | None = same_as(LossConfig, "entry_clip", minimum=0, above=None)
    floor: float | None = same_as(LossConfig, "floor", maximum=0, below=None)
    top_k: int = same_as(LossConfig, "top_k")
    ratio_cap: float = same_as(LossConfig, "ratio_cap")
    min_aligned: float = share(
        0.9, "Minimum share of the response tokens that align with tokens of a teacher with another tokenizer.", most=1
    )
    overlap: bool = setting(False, "Sample the next completions while this batch trains; needs a server as --engine.")
    batch_epochs: int = setting(1, "Updates per batch of completions.", minimum=1)
    positions: str = setting("all", "Positions of a completion that are scored.", choices=("all", "one"))
    skip_first: int = setting(0, "Tokens at the start of a completion that are not scored.", minimum=0)
    continuation: int = setting(
        0,
        "Tokens that the teacher samples after a prefix of the student's completion, to imitate; 0: none.",
        minimum=0,
    )
    answers: str = setting(
        "given",
        "Source of the responses to imitate; self: the initial student; rejection: its own that the reward accepts.",
        choices=("given", "teacher", "self", "rejection"),
    )
    data: Path | None = setting(
        None, "Conversations to imitate: JSON Lines, or a table, of messages.", metavar="SOURCE"
    )
    reward: str = setting(
        "verifiable",
        "verifiable, all-checks, exact, normalised, or a callable as package.module:function.",
        metavar="NAME",
    )
    reward_timeout: float = setting(
        300.0, "Seconds that the reward of one response may take; 0: no limit.", minimum=0.0, metavar="SECONDS"
    )
    keep_above: float = setting(1.0, "Minimum reward of a completion that rejection keeps.")
    context: str = setting("none", "Context that the teacher sees and the student does not.", choices=("none", *KINDS))
    context_file: Path | None = setting(None, "Text of the context, for prompts without their own.", metavar="FILE")
    context_template: str | None = setting(
        None, "Template of the context: with {context}, {prompt}, {answer}.", metavar="TEXT", by_model=True
    )
    ema_decay: float = setting(0.99, "Decay per step of the teacher ema.", above=0, below=1)
    alarm: bool = setting(True, "Stop a run that collapses, and keep the last state before that.")
    geometry_every: int = setting(10, "Steps between measurements of the gradient's geometry; 0: never.", minimum=0)
    max_tokens: int | None = setting(
        None, "Stop after this many tokens in total: sampled, scored and trained.", minimum=1
    )
    until: float = share(
        0.99, "Stop when this share of the teacher's score is confirmed on 1,000 prompts; 0: never.", most=1
    )
    margin: float = share(0.02, "Margin of that test, in score: at most so far below the share, with 95% confidence.")
    check_every: int = setting(25, "Steps between these tests.", minimum=1)
    development: int = setting(1000, "Development prompts per test.", minimum=1)
    plateau: int = setting(
        50,
        "Stop when the divergence has not fallen by 3% over this many steps; 0: never. Not for imitated "
        "responses and rewards.",
        minimum=0,
    )
    token_views: int = setting(
        6,
        "Completions recorded token by token for review, at the first step and five later ones; 0: none.",
        minimum=0,
    )
    row_length: int = same_as(MidtrainConfig, "row_length")
    _usual_lr: ClassVar[float] = USUAL_RATES["distill"]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_method()
        self.loss_config()
        self._check_states()
        self._check_teacher()
        self._check_remote()
        self._check_idle()
        if self.until and self.development < 1000:
            raise UsageError(
                f"--until {self.until} needs --development of at least 1000 prompts for its test (given: "
                f"{self.development}); --until 0 switches the test off"
            )
        if self.earlier_teacher and not self.knowledge_teacher:
            raise UsageError("--earlier-teacher needs --knowledge-teacher, which scores the newest documents")
        if self.knowledge_teacher and not self.questions_per_step and not self.document_teacher:
            raise UsageError(
                f"--knowledge-teacher {self.knowledge_teacher} gets none of the "
                f"{self.on_policy_prompts_per_step} prompts of a step that the student completes: raise "
                f"--knowledge-share or --prompts-per-step, or omit the teacher"
            )

        if self.near_miss_share and (self.rewarded or self.context != "none"):
            raise UsageError(
                "--near-miss-share needs a teacher that scores replies by themselves: no reward, no --context"
            )
        if self.near_miss_share + self.knowledge_share > 0.95:
            raise UsageError("--near-miss-share and --knowledge-share leave no ordinary prompts: at most 0.95 together")

    def loss_config(self) -> LossConfig:
        """Return the settings of the loss. Raise UsageError if one is out of range."""
        # The temperature of the loss is not the sampling temperature: a divergence is always computed at 1.
        excluded = ("temperature", "metric")
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(LossConfig) if f.name not in excluded}
        unset = {name: None for name in ("clip", "drop", "entry_clip", "floor") if values[name] == 0}  # over a preset
        return LossConfig(**(values | unset))

    @property
    def on_policy_prompts_per_step(self) -> int:
        """Prompts of a step that the student completes."""
        return round(self.alpha * self.prompts_per_step)

    @property
    def rows_per_step(self) -> int:
        """Completions of a step: a group of the student's for each prompt that it completes, one given for others."""
        return (
            self.on_policy_prompts_per_step * self.samples_per_prompt
            + self.prompts_per_step
            - self.on_policy_prompts_per_step
        )

    @property
    def behaviour_prompts_total(self) -> int:
        """Behaviour prompts that a whole run draws."""
        asked = self.questions_per_step if self.knowledge_teacher else 0
        return math.ceil(self.steps / self.batch_epochs) * (self.prompts_per_step - asked - self.near_misses_per_step)

    @property
    def questions_per_step(self) -> int:
        """Questions about the documents among the prompts of a step that the student completes, if a knowledge teacher
        scores them.
        """
        return round(self.on_policy_prompts_per_step * self.knowledge_share)

    @property
    def near_misses_per_step(self) -> int:
        """Prompts about what no document holds among those of a step that the student completes."""
        return round(self.on_policy_prompts_per_step * self.near_miss_share)

    @property
    def routes(self) -> dict[str, str]:
        """Expert by prompt tag. Raise UsageError if an entry is not TAG=NAME."""
        pairs = [expert.partition("=") for expert in self.experts]
        for tag, equals, name in pairs:
            if not (tag and equals and name):
                raise UsageError(f"--expert {tag + equals + name!r} is not TAG=NAME: a prompt's tag and a checkpoint")
        return {tag: name for tag, _, name in pairs}

    @property
    def needs_another(self) -> bool:
        """Whether frozen teachers score as they are, without a context or experts: none may be the student alone."""
        return self.lam > 0 and self.teaching.frozen and self.context == "none" and not self.routes

    @property
    def teaching(self) -> TeacherSpec:
        """The parsed ``teacher``. Raise UsageError if its weights do not sum to 1."""
        return TeacherSpec.parse(self.teacher)

    @property
    def recovers_a_checkpoint(self) -> bool:
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
    def planned_tests(self) -> int:
        """How often a run of all steps is tested by ``until``."""
        return max(1, self.steps // self.check_every)

    @property
    def keeps_sampling_logprobs(self) -> bool:
        """Whether the student's completions keep their sampling log-probabilities for importance weights."""
        return self.engine != "transformers" and self.temperature == 1.0

    @property
    def scores_completions(self) -> bool:
        """Whether a teacher scores the student's own completions, as a knowledge teacher does."""
        return self.alpha > 0 and self.lam > 0 and not self.continuation

    @property
    def uses_importance_weights(self) -> bool:
        """Whether ``ratio_cap`` can bound anything: importance ratios of completions of another engine, or of merged
        tokens of a teacher with another tokenizer, beside a reward or once the weights have changed.
        """
        sampled = self.keeps_sampling_logprobs or self.batch_epochs > 1 or self.lam < 1
        return sampled and self.scores_completions and not why_idle("ratio_cap", self.divergence, self.lam)

    @property
    def imitates(self) -> bool:
        """Whether the loss is the cross-entropy of responses: of given ones, or of a teacher's continuations."""
        return self.teaching.kind == "label" or self.continuation > 0

    def _check_method(self) -> None:
        """Refuse a teacher that makes another method of one that imitates, and limits of a divergence that it lacks."""
        preset = METHODS[self.method].settings if self.method in METHODS else {}
        if preset.get("teacher") == "label" and self.teaching.kind != "label":
            given = " --answers given" if self.answers == "given" else ""
            scored = "" if self.teaching.remote else f"--method off-policy-kd{given} to learn from its scores, or "
            raise UsageError(
                f"--method {self.method} imitates responses and lets no teacher score them: omit --teacher "
                f"{self.teacher}, or use {scored}--method sft with --data FILE to imitate its responses"
            )
        # 0 and None are off.
        limits = [
            name for name in OF_DIVERGENCES if (getattr(self, name) or None) != (getattr(LossConfig, name) or None)
        ]
        if limits and self.imitates:
            flags = ", ".join(f"{flag_of(DistillConfig, name)} {getattr(self, name)}" for name in limits)
            kept = "--continuation" if self.continuation else f"--teacher {self.teacher}"
            raise UsageError(f"{flags} would have no effect: {kept} trains by cross-entropy; omit one or the other")

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
        if self.continuation or (self.answers == "teacher" and self.alpha < 1.0):
            raise UsageError(
                f"--teacher {self.teacher} only scores: --continuation and --answers teacher need a checkpoint; to "
                f"imitate its responses, give them to --method sft with --data FILE"
            )
        if self.divergence not in ("top_k", "sampled"):
            raise UsageError(
                f"--teacher {self.teacher} returns no logits, which --divergence {self.divergence} needs: use "
                f"--divergence top_k with --top-k 20, or --divergence sampled"
            )

    def _check_states(self) -> None:
        if self.lam < 1.0 and self.alpha == 0.0:
            raise UsageError("--alpha 0 leaves no completion of the student to reward: raise it, or set --lambda 1")
        if self.alpha > 0 and self.teaching.kind == "label":
            raise UsageError(
                "--teacher label scores only answers from the data, not the student's completions: set --alpha 0, or "
                "name a teacher"
            )
        if self.lam < 1.0 and self.samples_per_prompt < 2:
            raise UsageError("--samples-per-prompt 1 leaves no group to compare rewards in: use 4 to 8")
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

    @property
    def trains_embeddings(self) -> bool:
        """Whether any row of the embeddings is trained in full fine-tuning."""
        return self.embeddings == "all"

    def _check_idle(self) -> None:
        """Refuse settings that would have no effect in combination with the others."""
        if self.data is not None and self.alpha == 1.0:
            raise UsageError("--data needs --alpha below 1: its answers are imitated")
        if self.data is not None and self.answers != "given":
            raise UsageError(f"--data and --answers {self.answers} exclude each other: give one")
        if (self.knowledge_teacher or self.experts) and self.alpha == 0.0:
            raise UsageError("--knowledge-teacher and --expert score own completions: raise --alpha")
        for flag, given in (("--context-file", self.context_file), ("--context-template", self.context_template)):
            if given is not None and self.context == "none":
                raise UsageError(f"{flag} needs a --context")
        if self.blend != 1.0 and self.teaching.is_student:
            raise UsageError(
                f"--blend starts from other weights than the student's, which are --teacher {self.teacher}: omit it"
            )
        if self.blend != 1.0 and self.shard != "none":
            raise UsageError(f"--blend needs whole weights: use --shard none, not {self.shard}, or omit it")
        if (self.document_teacher or self.document_texts) and not self.document_loss:
            flag = "--document-teacher" if self.document_teacher else "--document-texts"
            raise UsageError(f"{flag} needs a --document-loss")
        if self.document_teacher and (self.lam < 1.0 or self.divergence == "sampled"):
            raise UsageError(
                "--document-teacher compares whole distributions: it needs --lambda 1 and no --divergence sampled"
            )
        if self.keep_above != 1.0 and self.answers != "rejection":
            raise UsageError("--keep-above needs --answers rejection")
        if self.answers != "given" and self.alpha == 1.0:
            raise UsageError(
                f"--answers {self.answers} needs --alpha below 1: now the student completes every prompt itself; "
                f"lower it, or omit --answers"
            )
        if self.reward != type(self).reward and not self.rewarded:
            raise UsageError(
                f"--reward {self.reward} would judge nothing: set --lambda below 1, or --alpha below 1 and --answers "
                f"rejection"
            )
        if (self.positions != "all" or self.skip_first > 0) and (self.continuation > 0 or self.alpha == 0.0):
            raise UsageError(
                "--positions and --skip-first choose among the scored tokens of own completions, of which there are "
                "none with --continuation or --alpha 0: omit them"
            )

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
        if teaching.is_student and self.alpha < 1.0:
            raise UsageError(f"--teacher {self.teacher} scores the student's own completions: set --alpha 1")
        if teaching.is_student and self.context == "none":
            raise UsageError(f"--teacher {self.teacher} is the student itself: give it a --context")
        if self.context != "none" and teaching.kind in ("none", "label"):
            raise UsageError(
                f"--context {self.context} needs a teacher that reads it; --teacher {self.teacher} reads none"
            )
        if self.context_file is not None and not self.context_file.is_file():
            raise UsageError(f"--context-file {self.context_file} is not a file")
        if self.data is not None and not parse(self.data).exists:
            raise UsageError(f"--data {self.data} is not a file or a dataset")
