"""The rows of each training step, for every method: prompts, completions, teachers, advantages.

The prompts of a step are chosen by (seed, step). A share alpha of them is completed by the current student; the others
come with completions from the data. Each completion becomes a row with the name of its teacher, the context that this
teacher gets instead of the student's and, for a policy gradient, the advantage of each token.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipelines.data.mixing import between, choose
from pipelines.data.prompt_sampler import PromptSampler
from pipelines.runtime.generation import SampledTurn, open_turns, sample_turns
from recovery.batching import Row
from recovery.config import DistillConfig
from recovery.errors import UsageError
from recovery.losses.objective import KNOWLEDGE, LABEL, MAIN_TEACHER, REWARD
from recovery.losses.spans import LARGEST_LOG_RATIO
from recovery.models.control_tokens import adds_bos
from recovery.models.loaded import Loaded
from recovery.rewards import Reward, group_advantages, judged
from recovery.rng import RandomStream, derive_seed
from recovery.rollouts.engine import Completion, Engine, Progress, Sampling
from recovery.rollouts.weight_sync import SyncedEngine
from recovery.teacher_spec import Context
from recovery.teachers.teacher import Teacher
from recovery.training.interfaces import Resumable, StepBatch
from recovery.types import Message, Prompt

if TYPE_CHECKING:
    from recovery.teachers.cross_tokenizer import CrossTokenizer


@dataclass(frozen=True)
class Pools:
    """The data that steps draw from: behaviour prompts, questions about this cycle's documents and about those of
    ``earlier`` ones, ``given`` conversations whose last turn is an answer to imitate, rows of documents, and questions
    about what no document holds.
    """

    behaviour: Sequence[Prompt]
    questions: Sequence[Prompt] = ()
    earlier: Sequence[Prompt] = ()
    given: Sequence[tuple[Message, ...]] = ()
    documents: Sequence[Row] = ()
    near_misses: Sequence[Prompt] = ()


@dataclass
class BatchState(Resumable):
    """The latest batch, if it has several steps: a run stopped between two updates on it resumes with its rows."""

    batch: int | None = None
    rows: list[Row] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """Return the fields with the rows as dictionaries."""
        return super().state() | {"rows": [_plain(row) for row in self.rows]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the fields from stored ones."""
        super().restore({**state, "rows": [Row(**row) for row in state.get("rows", [])]})


def _plain(row: Row) -> dict[str, Any]:
    """Return a row's fields for JSON; packed rows hold arrays."""
    return vars(row) | {"ids": list(row.ids), "loss_mask": [bool(one) for one in row.loss_mask]}


@dataclass
class BatchBuilder:
    """Builds the rows of a step: a function of (seed, step, weights), and of ``state`` if a batch has several steps.

    ``logprobs`` returns the log-probabilities of the rows' targets under a named teacher; ``cross`` are the teachers
    with another tokenizer, by name. With ``prefetcher`` the completions of a batch are sampled there while the previous
    one trains, from the weights at its start; those of the first batch, also of a resumed run, from current weights.
    ``progress`` receives the counts of completions that are not prefetched.
    """

    config: DistillConfig
    student: Loaded
    engine: Engine
    pools: Pools
    teachers: Mapping[str, Teacher] = field(default_factory=dict)
    logprobs: Callable[[str, Sequence[Row]], list[list[float]]] = lambda _name, rows: [[] for _ in rows]
    context: Context | None = None
    reward: Reward | None = None
    teacher_engine: Engine | None = None
    prefetcher: Executor | None = None
    progress: Progress | None = None
    cross: Mapping[str, CrossTokenizer] = field(default_factory=dict)
    state: BatchState = field(default_factory=BatchState)
    _ahead: tuple[int, Future[list[SampledTurn]]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.sampler = PromptSampler(self.config.focus, self.config.prompts_before or 0)
        tokenizer = self.student.tokenizer
        self._text_start = (tokenizer.bos_token_id,) if self.config.document_loss and adds_bos(tokenizer) else ()

    def __call__(self, step: int) -> StepBatch:
        batch = (step - 1) // self.config.batch_epochs + 1
        if batch == self.state.batch:
            return StepBatch(self.state.rows, self.state.metrics)
        rows, metrics = self._new_batch(batch)
        if self.config.batch_epochs > 1:
            repeated = {name: 0.0 if name.startswith(("tokens_", "seconds_")) else v for name, v in metrics.items()}
            self.state.batch, self.state.rows, self.state.metrics = batch, rows, repeated
        return StepBatch(rows, metrics)

    def _new_batch(self, batch: int) -> tuple[list[Row], dict[str, float]]:
        config = self.config
        sampled = config.on_policy_prompts_per_step
        rows: list[Row] = []
        metrics: dict[str, float] = {"tokens_sampled": 0.0}
        if sampled:
            started = time.perf_counter()
            turns = self._student_turns(batch, sampled, metrics)
            completions = [turn.completion for turn in turns]
            metrics |= completion_metrics(completions) | {"seconds_generating": time.perf_counter() - started}
            metrics["tokens_sampled"] = float(sum(len(one.ids) for one in completions))
            rows += self._student_rows(turns, metrics, batch)
        if sampled < config.prompts_per_step:
            count = config.prompts_per_step - sampled
            rows += self._data_rows(choose(self.pools.given, count, batch, config.seed, RandomStream.GIVEN_ROLLOUTS))
        return rows + self._documents(batch, sum(row.targets for row in rows)), metrics

    def _student_turns(self, batch: int, count: int, metrics: dict[str, float]) -> list[SampledTurn]:
        """Return the student's turns of this batch, prefetched or sampled now; start prefetching the next batch."""
        ahead, self._ahead = self._ahead, None
        turns = ahead[1].result() if ahead is not None and ahead[0] == batch else None
        if self.prefetcher is not None:
            metrics["staleness"] = 0.0 if turns is None else 1.0
        if turns is None:
            turns = self._rollouts(batch, count, self.engine, self.progress)
        if self.config.focus:
            self.sampler.update(turns)
        if self.prefetcher is not None and batch < self.config.steps:
            self._prefetch(batch + 1, count)
        if isinstance(self.engine, SyncedEngine):
            metrics |= self.engine.figures
        return turns

    def _prefetch(self, batch: int, count: int) -> None:
        """Transfer the current weights to the server and sample from them in the background."""
        assert self.prefetcher is not None and isinstance(self.engine, SyncedEngine)  # checked by the configuration
        first = [self.student.chat.prompt_ids(open_turns(p.messages)[0]) for p in self._prompts(batch, count)]
        self.engine.follow(first, self._sampling(batch))
        engine = self.engine.fixed_weights()
        self._ahead = batch, self.prefetcher.submit(self._rollouts, batch, count, engine)

    def _prompts(self, batch: int, count: int) -> list[Prompt]:
        """Return the prompts that the student completes in this batch."""
        config, pools = self.config, self.pools
        asked = config.knowledge_teacher and (pools.questions or pools.earlier)
        questions = config.questions_per_step if asked else 0
        near = config.near_misses_per_step if pools.near_misses else 0
        return [
            *self.sampler.choose(pools.behaviour, count - questions - near, batch, config.seed),
            *self._questions(questions, batch),
            *choose(pools.near_misses, near, batch, config.seed, stream=RandomStream.NEAR_MISSES),
        ]

    def _questions(self, count: int, batch: int) -> list[Prompt]:
        """Return the questions of this batch: from all documents alike, or a share of them about earlier ones."""
        newest, earlier, config = self.pools.questions, self.pools.earlier, self.config
        if config.earlier_share is None or not newest or not earlier:
            return choose([*earlier, *newest], count, batch, config.seed, stream=RandomStream.QUESTIONS)
        # Of the questions asked in all batches so far, the rounded share is about earlier documents, the rest about the
        # newest. A batch gets what was added: so a share of half a question is right over the run, and none is skipped.
        before, after = (batch - 1) * count, batch * count
        begin, end = (math.floor(total * config.earlier_share + 0.5) for total in (before, after))
        return [
            *between(newest, before - begin, after - end, config.seed, stream=RandomStream.QUESTIONS),
            *between(earlier, begin, end, config.seed, stream=RandomStream.EARLIER_QUESTIONS),
        ]

    def _sampling(self, batch: int) -> Sampling:
        config = self.config
        return Sampling(
            config.max_new_tokens, config.temperature, seed=derive_seed(config.seed, batch, RandomStream.ROLLOUTS)
        )

    def _rollouts(self, batch: int, count: int, engine: Engine, progress: Progress | None = None) -> list[SampledTurn]:
        """Sample a group of completions for each of the student's prompts of this batch; empty ones are dropped."""
        grouped = [p for p in self._prompts(batch, count) for _ in range(self.config.samples_per_prompt)]
        turns = sample_turns(self.student.chat, engine, grouped, self._sampling(batch), progress)
        return [turn for turn in turns if turn.completion.ids]

    # --- rows of the student's own completions -------------------------------------------------------------

    def _student_rows(self, turns: Sequence[SampledTurn], metrics: dict[str, float], batch: int) -> list[Row]:
        config = self.config
        if config.continuation:
            return self._continuations(turns, metrics, batch)
        rewards = self._rewards(turns, metrics)
        rows = [self._row(turn, batch, index) for index, turn in enumerate(turns)]
        metrics |= self._alignment(rows)
        if config.divergence == "sampled" and config.lam > 0:
            return self._with_log_ratios(rows, turns, rewards, metrics)
        if rewards is None:
            return rows
        return [
            _with_advantage(row, turn.completion, [advantage] * sum(row.loss_mask))
            for row, turn, advantage in zip(rows, turns, rewards, strict=True)
        ]

    def _row(self, turn: SampledTurn, batch: int, index: int) -> Row:
        """Return a completion as a row: its context, then its tokens, of which the scored positions are targets."""
        config, ids = self.config, turn.completion.ids
        if config.positions == "one":
            at = random.Random(derive_seed(config.seed, batch, RandomStream.POSITION) + index).randrange(len(ids))
            scored = [position == at for position in range(len(ids))]
        else:
            # The last token of a completion is always scored, even if all its tokens would be skipped.
            skipped = min(config.skip_first, len(ids) - 1)
            scored = [position >= skipped for position in range(len(ids))]
        row = Row([*turn.context, *ids], [False] * len(turn.context) + scored, teacher=self._teacher(turn))
        if cross := self.cross.get(row.teacher):
            row = replace(row, **self._cross_fields(cross, turn, scored))
        elif (messages := self._teacher_messages(turn)) is not None:
            row = replace(row, teacher_ids=[*self.student.chat.prompt_ids(messages), *ids])
        # Merged spans need their own importance ratios once the weights have changed since the sampling.
        if not config.keeps_sampling_logprobs and (row.spans is None or config.batch_epochs == 1):
            return row
        logprobs = turn.completion.logprobs
        before = tuple(logprobs[: scored.index(True)])
        return replace(row, old_logprobs=tuple(_at_targets(row, logprobs)), prefix_logprobs=before)

    def _teacher(self, turn: SampledTurn) -> str:
        for tag in turn.prompt.tags:
            if expert(tag) in self.teachers:
                return expert(tag)
        if turn.prompt.kind == "knowledge" and KNOWLEDGE in self.teachers:
            return KNOWLEDGE
        return REWARD if self.config.lam == 0.0 else MAIN_TEACHER

    def _teacher_messages(self, turn: SampledTurn) -> Sequence[Message] | None:
        """Return the conversation that the teacher reads in place of the student's; None if it is the same."""
        if self.context is None or self._teacher(turn) != MAIN_TEACHER:
            return None
        return self.context.messages(turn.prompt, turn.messages[:-1])

    def _cross_fields(self, cross: CrossTokenizer, turn: SampledTurn, scored: Sequence[bool]) -> dict[str, Any]:
        """Return the fields of a row for a teacher with another tokenizer: its input, and spans of scored tokens."""
        spelled = cross.spelled(self._teacher_messages(turn) or turn.messages[:-1], turn.completion.ids)
        start = len(turn.context)
        spans = [(a + start, b + start, c, d) for a, b, c, d in spelled.spans if all(scored[a:b])]
        return {"teacher_ids": spelled.ids, "spans": spans}

    def _alignment(self, rows: Sequence[Row]) -> dict[str, float]:
        """Return the shares of scored tokens that align with tokens of a teacher with another tokenizer; empty without
        one. Raise UsageError if too few do.
        """
        rows = [row for row in rows if row.spans is not None]
        total = sum(row.targets for row in rows)
        if not total:
            return {}
        spans = [span for row in rows for span in row.spans or ()]
        single = sum(b - a == d - c == 1 for a, b, c, d in spans) / total
        merged = sum(b - a for a, b, _, _ in spans) / total - single
        if single + merged < self.config.min_aligned:
            names = " and ".join(dict.fromkeys(self.cross[row.teacher].name for row in rows))
            raise UsageError(
                f"only {single + merged:.1%} of the response tokens align with tokens of {names}, below --min-aligned "
                f"{self.config.min_aligned:g}: its tokenizer changes the text or has no token for some bytes, or the "
                f"responses exceed its context window; use another teacher, or lower --min-aligned"
            )
        return {"aligned_one_to_one": single, "aligned_merged": merged, "aligned_left_out": 1.0 - single - merged}

    def _rewards(self, turns: Sequence[SampledTurn], metrics: dict[str, float]) -> list[float] | None:
        """Return the advantage of each completion within its group, before (1 - lambda); None without a reward."""
        if self.reward is None or self.config.lam == 1.0:
            return None
        # The checks apply to a dialogue's last response: its reward is that of every turn that led to it.
        limit = self.config.reward_timeout
        values = [judged(self.reward, turn.prompt, turn.outcome, limit) for turn in turns]
        metrics["reward"] = sum(values) / max(1, len(values))
        # The turns of one place in the dialogue are compared with each other.
        groups = [f"{turn.prompt.id}\x1f{len(turn.messages)}" for turn in turns]
        return group_advantages(values, groups)

    def _with_log_ratios(
        self,
        rows: list[Row],
        turns: Sequence[SampledTurn],
        rewards: list[float] | None,
        metrics: dict[str, float],
    ) -> list[Row]:
        """A_t = lambda [log pi_T(y_t) - log pi_old(y_t)] + (1 - lambda) A, for the sampled form."""
        lam = self.config.lam
        scored = self._teacher_logprobs(rows)
        weighted, total, tokens = [], 0.0, 0
        for index, (row, turn) in enumerate(zip(rows, turns, strict=True)):
            old = _at_targets(row, turn.completion.logprobs)
            differences = (q - p for q, p in zip(scored[index], old, strict=True))
            ratios = [max(-LARGEST_LOG_RATIO, min(LARGEST_LOG_RATIO, one)) for one in differences]
            total, tokens = total - sum(ratios), tokens + len(ratios)
            reward = 0.0 if rewards is None else (1 - lam) * rewards[index]
            weighted.append(_with_advantage(row, turn.completion, [lam * ratio + reward for ratio in ratios]))
        # The reverse KL, estimated from the sampled tokens.
        metrics["reverse_kl"] = total / max(1, tokens)
        return weighted

    def _teacher_logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """Return log pi_T of the targets of each row, by the row's own teacher."""
        by_row: list[list[float]] = [[] for _ in rows]
        numbered = {id(row): index for index, row in enumerate(rows)}
        for name in self.teachers:
            own_rows = [row for row in rows if row.teacher == name]
            values = self.logprobs(name, own_rows)
            for row, logprobs in zip(own_rows, values, strict=True):
                by_row[numbered[id(row)]] = logprobs
        return by_row

    def _continuations(self, turns: Sequence[SampledTurn], metrics: dict[str, float], batch: int) -> list[Row]:
        """Return rows whose targets the teacher samples after a prefix of the student's completion, cut uniformly."""
        assert self.teacher_engine is not None  # set by the stage for --continuation
        config = self.config
        draw = random.Random(derive_seed(config.seed, batch, RandomStream.PREFIX))
        prefixes = [[*turn.context, *turn.completion.ids[: draw.randrange(len(turn.completion.ids))]] for turn in turns]
        sampling = Sampling(config.continuation, seed=derive_seed(config.seed, batch, RandomStream.CONTINUATION))
        completions = self.teacher_engine.generate(prefixes, sampling, self.progress)
        metrics["tokens_sampled"] += float(sum(len(completion.ids) for completion in completions))
        return [
            Row([*prefix, *completion.ids], [False] * len(prefix) + [True] * len(completion.ids), teacher=LABEL)
            for prefix, completion in zip(prefixes, completions, strict=True)
            if completion.ids
        ]

    # --- rows of the data's completions, and of documents ---------------------------------------------------

    def _data_rows(self, conversations: Sequence[tuple[Message, ...]]) -> list[Row]:
        teacher = LABEL if self.config.teaching.kind == "label" else MAIN_TEACHER
        rows = [Row(*self.student.chat.conversation(messages), teacher=teacher) for messages in conversations]
        return [row for row in rows if any(row.loss_mask)]

    def _documents(self, batch: int, responses: int) -> list[Row]:
        """Return document rows for their share of the step's target tokens.

        Of the last row a random part is taken: rows may be longer than all responses of a step.
        """
        share = self.config.document_loss
        wanted = round(share / (1 - share) * responses)
        order = list(self.pools.documents)
        draw = random.Random(derive_seed(self.config.seed, batch, RandomStream.DOCUMENT_ROWS))
        draw.shuffle(order)
        rows: list[Row] = []
        for row in order:
            if wanted <= 0:
                break
            if wanted < row.targets:
                begin = draw.randrange(len(row.ids) - wanted)
                row = row.window(begin, begin + wanted + 1, self._text_start)  # the first token is no target
            rows.append(row)
            wanted -= row.targets
        return rows


def expert(tag: str) -> str:
    """Return the name, used in rows, of the teacher of prompts with a tag."""
    return f"expert-{tag}"


def completion_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Return the mean length (tokens) and the share that ended with an end token: metrics of every step."""
    count = max(1, len(completions))
    return {
        "response_length": sum(len(one.ids) for one in completions) / count,
        "end_rate": sum(one.finished for one in completions) / count,
    }


def _with_advantage(row: Row, completion: Completion, advantages: Sequence[float]) -> Row:
    """Return the row with the advantages of its targets and the log-probabilities they were sampled with."""
    old = tuple(_at_targets(row, completion.logprobs))
    return replace(row, advantages=tuple(advantages), old_logprobs=old)


def _at_targets(row: Row, logprobs: Sequence[float]) -> list[float]:
    """Return those of a completion's log-probabilities that belong to targets."""
    start = len(row.ids) - len(logprobs)
    return [value for position, value in enumerate(logprobs, start) if row.loss_mask[position]]
