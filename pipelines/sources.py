"""Step → rows, for every method: whose answers are trained on, and what each of their tokens is told.

A step's prompts are chosen by (seed, step). The share alpha of them is answered by the student as it is now; the
others bring answers made before (the data states). Each answer then becomes a row: who scores it, what that teacher
reads instead of the prompt, and, where a policy gradient is taken, the advantage of each of its tokens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.ahead import Ahead
from pipelines.answers import Spoken, open_turns, speak
from pipelines.focus import Focus
from pipelines.mixing import choose
from recovery.batches import Row
from recovery.config import DistillConfig
from recovery.contexts import Context
from recovery.loading import Loaded
from recovery.objectives.estimator import LABEL, REWARD
from recovery.rewards import Reward, group_advantages, judged
from recovery.rollouts import Completion, Engine, FollowingEngine, Progress, Sampling
from recovery.teachers import Scorer, Teacher, Weighted
from recovery.training import StepBatch, derive_seed
from recovery.types import Message, Prompt

BEHAVIOUR, KNOWLEDGE = "base", "knowledge"
# What the advantage of a token may be at most: beyond it one improbable token would outweigh a whole batch.
_LARGEST_LOG_RATIO = 10.0


@dataclass(frozen=True)
class Pools:
    """Everything a step may draw from. ``given`` are conversations whose last turn is an answer to imitate."""

    behaviour: Sequence[Prompt]
    questions: Sequence[Prompt] = ()
    given: Sequence[tuple[Message, ...]] = ()
    documents: Sequence[Row] = ()


@dataclass
class Source:
    """Fresh rows for each step: a function of (seed, step, weights), and of ``memory`` within a batch of several steps.

    ``memory`` is stored with the training states, so that a run stopped between two updates on one batch of answers
    goes on with the same answers. ``logprobs`` is what a teacher, by name, gives the targets of rows. With ``ahead``
    the answers of a batch are sampled while the one before it trains, from the weights that one started with; those of
    the first batch, also of a resumed run, from its own. ``progress`` hears of answers as they come, but for those.
    """

    config: DistillConfig
    student: Loaded
    engine: Engine
    pools: Pools
    teachers: Mapping[str, Teacher | Scorer | Weighted] = field(default_factory=dict)
    logprobs: Callable[[str, Sequence[Row]], list[list[float]]] = lambda _name, rows: [[] for _ in rows]
    context: Context | None = None
    reward: Reward | None = None
    speaker: Engine | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    ahead: Ahead[list[Spoken]] | None = None
    progress: Progress | None = None

    def __call__(self, step: int) -> StepBatch:
        config = self.config
        batch = (step - 1) // config.batch_epochs + 1
        if config.batch_epochs > 1 and self.memory.get("batch") == batch:
            return StepBatch([Row(**row) for row in self.memory["rows"]], self.memory["metrics"])
        rows, metrics = self._fresh(batch)
        if config.batch_epochs > 1:
            again = {name: 0.0 if name.startswith(("tokens_", "seconds_")) else v for name, v in metrics.items()}
            self.memory.update(batch=batch, rows=[vars(row) for row in rows], metrics=again)
        return StepBatch(rows, metrics)

    def _fresh(self, batch: int) -> tuple[list[Row], dict[str, float]]:
        config = self.config
        own = round(config.alpha * config.prompts_per_step)
        rows: list[Row] = []
        metrics: dict[str, float] = {"tokens_sampled": 0.0}
        if own:
            started = time.perf_counter()
            spoken = self._answers(batch, own, metrics)
            metrics |= _measured(spoken, time.perf_counter() - started)
            rows += self._student_rows(spoken, metrics, batch)
        if own < config.prompts_per_step:
            chosen = choose(self.pools.given, config.prompts_per_step - own, batch, config.seed, stream=25)
            rows += self._data_rows(chosen)
        return rows + self._documents(batch, sum(row.targets for row in rows)), metrics

    def _answers(self, batch: int, count: int, metrics: dict[str, float]) -> list[Spoken]:
        """The student's answers of this batch: sampled before if they were, else now; and those of the next begun."""
        spoken = None if self.ahead is None else self.ahead.take(batch)
        if self.ahead is not None:
            metrics["staleness"] = 0.0 if spoken is None else 1.0
        if spoken is None:
            spoken = self._rollouts(batch, count, self.engine, self.progress)
        if self.config.focus:
            Focus(self.config.focus, self.memory).look(spoken)
        if self.ahead is not None and batch < self.config.steps:
            self._begin(batch + 1, count)
        if isinstance(self.engine, FollowingEngine):
            metrics |= self.engine.figures
        return spoken

    def _begin(self, batch: int, count: int) -> None:
        """Have the server take over the weights while they stand still, and sample from them in the background."""
        assert self.ahead is not None and isinstance(self.engine, FollowingEngine)  # the configuration sees to it
        first = [self.student.chat.prompt_ids(open_turns(p.messages)[0]) for p in self._asked(batch, count)]
        self.engine.follow(first, self._sampling(batch))
        engine = self.engine.as_it_is()
        self.ahead.begin(batch, lambda: self._rollouts(batch, count, engine))

    def _asked(self, batch: int, count: int) -> list[Prompt]:
        """The prompts that the student answers itself in this batch."""
        config = self.config
        focus = Focus(config.focus, self.memory)
        asked = round(count * config.knowledge_share) if self.pools.questions and config.knowledge_teacher else 0
        return [
            *focus.choose(self.pools.behaviour, count - asked, batch, config.seed),
            *choose(self.pools.questions, asked, batch, config.seed, stream=22),
        ]

    def _sampling(self, batch: int) -> Sampling:
        config = self.config
        return Sampling(config.max_new_tokens, config.temperature, seed=derive_seed(config.seed, batch, 23))

    def _rollouts(self, batch: int, count: int, engine: Engine, progress: Progress | None = None) -> list[Spoken]:
        """The student's answers to its prompts of this batch, a group to each."""
        grouped = [p for p in self._asked(batch, count) for _ in range(self.config.samples_per_prompt)]
        spoken = speak(self.student.chat, engine, grouped, self._sampling(batch), progress)
        return [turn for turn in spoken if turn.completion.ids]

    # --- rows of the student's own answers -----------------------------------------------------------------

    def _student_rows(self, spoken: Sequence[Spoken], metrics: dict[str, float], batch: int) -> list[Row]:
        config = self.config
        if config.continuation:
            return self._continued(spoken, metrics, batch)
        rewards = self._rewards(spoken, metrics)
        rows = [self._row(turn, batch, index) for index, turn in enumerate(spoken)]
        if config.divergence == "sampled" and config.lam > 0:
            return self._with_log_ratios(rows, spoken, rewards, metrics)
        if rewards is None:
            return rows
        return [
            _with_advantage(row, turn.completion, [advantage] * sum(row.loss_mask))
            for row, turn, advantage in zip(rows, spoken, rewards, strict=True)
        ]

    def _row(self, turn: Spoken, batch: int, index: int) -> Row:
        """One answer as a row: context, then the answer, of which the scored positions are targets."""
        config, ids = self.config, turn.completion.ids
        if config.positions == "one":
            at = random.Random(derive_seed(config.seed, batch, 26) + index).randrange(len(ids))
            scored = [position == at for position in range(len(ids))]
        else:
            # An answer that is shorter than what is skipped still has its last token scored.
            skipped = min(config.skip_first, len(ids) - 1)
            scored = [position >= skipped for position in range(len(ids))]
        told = self._told(turn)
        row = Row(
            [*turn.context, *ids],
            [False] * len(turn.context) + scored,
            teacher=self._teacher(turn),
            teacher_ids=None if told is None else [*told, *ids],
        )
        if not config.weighed:
            return row
        return replace(row, old_logprobs=tuple(_at_targets(row, turn.completion.logprobs)))

    def _teacher(self, turn: Spoken) -> str:
        for tag in turn.prompt.tags:
            if expert(tag) in self.teachers:
                return expert(tag)
        if turn.prompt.kind == "knowledge" and KNOWLEDGE in self.teachers:
            return KNOWLEDGE
        return REWARD if self.config.lam == 0.0 else BEHAVIOUR

    def _told(self, turn: Spoken) -> list[int] | None:
        """What the teacher reads in place of the student's context, where a context is given."""
        if self.context is None or self._teacher(turn) != BEHAVIOUR:
            return None
        return self.student.chat.prompt_ids(self.context.messages(turn.prompt, turn.messages[:-1]))

    def _rewards(self, spoken: Sequence[Spoken], metrics: dict[str, float]) -> list[float] | None:
        """The advantage of each answer in its prompt's group, (1 - lambda) of it; None where nothing is rewarded."""
        if self.reward is None or self.config.lam == 1.0:
            return None
        values = [judged(self.reward, turn.prompt, turn.messages[-1]["content"]) for turn in spoken]
        metrics["reward"] = sum(values) / len(values)
        # Every turn of a dialogue is a group of its own.
        groups = [f"{turn.prompt.id}\x1f{len(turn.messages)}" for turn in spoken]
        return group_advantages(values, groups)

    def _with_log_ratios(
        self,
        rows: list[Row],
        spoken: Sequence[Spoken],
        rewards: list[float] | None,
        metrics: dict[str, float],
    ) -> list[Row]:
        """A_t = lambda [log pi_T(y_t) - log pi_old(y_t)] + (1 - lambda) A, for the sampled form."""
        lam = self.config.lam
        scored = self._teacher_logprobs(rows)
        made, total, tokens = [], 0.0, 0
        for index, (row, turn) in enumerate(zip(rows, spoken, strict=True)):
            old = _at_targets(row, turn.completion.logprobs)
            ratios = [_bounded(q - p) for q, p in zip(scored[index], old, strict=True)]
            total, tokens = total - sum(ratios), tokens + len(ratios)
            reward = 0.0 if rewards is None else (1 - lam) * rewards[index]
            made.append(_with_advantage(row, turn.completion, [lam * ratio + reward for ratio in ratios]))
        metrics["reverse_kl"] = total / max(1, tokens)
        return made

    def _teacher_logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """log pi_T of every target of every row, by the teacher each names."""
        found: list[list[float]] = [[] for _ in rows]
        numbered = {id(row): index for index, row in enumerate(rows)}
        for name in self.teachers:
            mine = [row for row in rows if row.teacher == name]
            values = self.logprobs(name, mine)
            for row, logprobs in zip(mine, values, strict=True):
                found[numbered[id(row)]] = logprobs
        return found

    def _continued(self, spoken: Sequence[Spoken], metrics: dict[str, float], batch: int) -> list[Row]:
        """Rows whose targets the teacher spoke, from a prefix of the student's answer cut at a uniform place."""
        assert self.speaker is not None  # the stage gives one where --continuation is set
        config = self.config
        engine = self.speaker
        draw = random.Random(derive_seed(config.seed, batch, 27))
        prefixes = [
            [*turn.context, *turn.completion.ids[: draw.randrange(len(turn.completion.ids))]] for turn in spoken
        ]
        sampling = Sampling(config.continuation, seed=derive_seed(config.seed, batch, 28))
        said = engine.generate(prefixes, sampling, self.progress)
        metrics["tokens_sampled"] += float(sum(len(completion.ids) for completion in said))
        return [
            Row([*prefix, *completion.ids], [False] * len(prefix) + [True] * len(completion.ids), teacher=LABEL)
            for prefix, completion in zip(prefixes, said, strict=True)
            if completion.ids
        ]

    # --- rows of answers made before, and of documents -----------------------------------------------------

    def _data_rows(self, conversations: Sequence[tuple[Message, ...]]) -> list[Row]:
        rows = []
        for messages in conversations:
            ids, mask = self.student.chat.conversation(messages)
            ids, mask = ids[: self.student.max_length], mask[: self.student.max_length]
            rows.append(Row(ids, mask, teacher=LABEL if self.config.teacher == "label" else BEHAVIOUR))
        return [row for row in rows if any(row.loss_mask)]

    def _documents(self, batch: int, responses: int) -> list[Row]:
        """Document rows (the label teaches) for their share of the step's target tokens."""
        share = self.config.document_loss
        wanted = share / (1 - share) * responses
        order = list(self.pools.documents)
        random.Random(derive_seed(self.config.seed, batch, 24)).shuffle(order)
        rows: list[Row] = []
        for row in order:
            if wanted <= 0:
                break
            rows.append(row)
            wanted -= row.targets
        return rows


def expert(tag: str) -> str:
    """What rows call the teacher of prompts with a tag."""
    return f"expert-{tag}"


def _measured(spoken: Sequence[Spoken], seconds: float) -> dict[str, float]:
    said = [turn.completion for turn in spoken]
    tokens = float(sum(len(one.ids) for one in said))
    return {**manner(said), "tokens_sampled": tokens, "seconds_generating": seconds}


def manner(said: Sequence[Completion]) -> dict[str, float]:
    """How long answers are (tokens), and the share of them that ended by themselves: metrics of every step."""
    count = max(1, len(said))
    return {
        "response_length": sum(len(one.ids) for one in said) / count,
        "end_rate": sum(one.finished for one in said) / count,
    }


def _with_advantage(row: Row, completion: Completion, advantages: Sequence[float]) -> Row:
    """The row with an advantage for each target and the log-probability it was sampled with."""
    old = tuple(_at_targets(row, completion.logprobs))
    return replace(row, advantages=tuple(advantages), old_logprobs=old)


def _at_targets(row: Row, logprobs: Sequence[float]) -> list[float]:
    """Those of a response's log-probabilities that belong to targets."""
    start = len(row.ids) - len(logprobs)
    return [value for position, value in enumerate(logprobs, start) if row.loss_mask[position]]


def _bounded(ratio: float) -> float:
    return max(-_LARGEST_LOG_RATIO, min(_LARGEST_LOG_RATIO, ratio))
