"""Frozen records that the queries return. Times are in unix seconds, scores in the unit of their suite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from db.agreement import score_interval
from db.schema import DISCARDED, EVALUATE

# Suites with a score for each corpus; with this suffix, a suite's name is that of its scores by corpus.
BY_CORPUS = "_by_corpus"
PER_CORPUS = (
    "domain_knowledge",
    "domain_knowledge_stored",
    "domain_knowledge_likelihood",
    "open_book",
    "unanswerable",
    "unanswerable_open_book",
    "bits_per_byte",
)
# Suites of prompts with verifiable instructions: the model's own one, and IFEval's prompts.
INSTRUCTIONS = ("instruction_following", "ifeval")
# Details of such a suite: the share of instructions followed, of those that no constant reply follows; and the share
# of these that an echo of the prompt follows.
BEYOND_CONSTANT, ECHO = "beyond_constant", "beyond_constant_echo"
# The part of a comparison of the suite "unanswerable": the share of replies that give no value of another subject.
NOT_OF_ANOTHER = "no_value_of_another_subject"
IN_NATS_OR_BITS = ("bits_per_byte", "unrelated_text", "drift")
SUITE = "suite"  # in the details of an evaluation: the suite that it is at
# Shown in place of a verdict on a cycle that was run with --trial, on a small part of its documents.
TRIAL = "a trial: its figures decide nothing"
NO_DECISION = f"{TRIAL}; run it without --trial, in another --workspace,"  # to judge it, to accept it
HEADLINES = ("instruction_following", "domain_knowledge", "domain_knowledge_stored", "general", "bits_per_byte")


@dataclass(frozen=True)
class Experiment:
    """A base model and its sequence of cycles."""

    id: int
    name: str
    base_model: str
    config: Mapping[str, Any]
    created_at: float
    cycles: int = 0


@dataclass(frozen=True)
class Cycle:
    """One training cycle on one folder of documents; ``decision`` is the newest one, None while undecided."""

    id: int
    experiment_id: int
    number: int
    documents: str
    corpus_hash: str
    details: Mapping[str, Any]
    created_at: float
    decision: str | None = None


@dataclass(frozen=True)
class Stage:
    """One stage of work. ``status`` accounts for dead processes: a stage whose process is gone is "interrupted".

    ``silent_seconds`` is the time since its last heartbeat, by the database's clock.
    """

    id: int
    experiment_id: int
    cycle_id: int | None
    cycle: int | None
    kind: str
    status: str
    student_id: int | None
    folder: str
    config: Mapping[str, Any]
    versions: Mapping[str, Any]
    details: Mapping[str, Any]
    seed: int | None
    attempts: int
    silent_seconds: float
    started_at: float
    finished_at: float | None
    wall_seconds: float
    steps_done: int
    steps_total: int | None
    tokens_sampled: int
    tokens_scored: int
    tokens_trained: int
    peak_memory_bytes: int
    stopped: str
    error: str

    @property
    def steps(self) -> int | None:
        """The steps done; None for an evaluation, which counts the items of one suite after another."""
        return None if self.kind == EVALUATE else self.steps_done

    @property
    def at_step(self) -> str:
        """Where it is, as the end of a sentence: " at step 12"; empty for an evaluation."""
        return "" if self.steps is None else f" at step {self.steps}"

    @property
    def done(self) -> str:
        """The progress in words: "12 of 80 steps". For an evaluation, of the present suite; "" once it ended."""
        if self.kind == EVALUATE and self.status != "running":
            return ""
        unit = f"items of {self.details.get(SUITE, 'a suite').replace('_', ' ')}" if self.kind == EVALUATE else "steps"
        return f"{self.steps_done:,}{f' of {self.steps_total:,}' if self.steps_total else ''} {unit}"


@dataclass(frozen=True)
class Checkpoint:
    """Weights on disk. ``parent`` is the name of the checkpoint they derive from, ``cycle`` the cycle's number."""

    id: int
    experiment_id: int
    name: str
    kind: str
    path: str
    content_hash: str
    parent_id: int | None
    parent: str | None
    cycle_id: int | None
    cycle: int | None
    stage_id: int | None
    tuning: str
    details: Mapping[str, Any]
    created_at: float
    superseded_at: float | None = None

    @property
    def has_weights(self) -> bool:
        """Whether its weights should exist: they were neither pruned nor replaced under the same name."""
        return not self.details.get("pruned") and self.superseded_at is None


@dataclass(frozen=True)
class Score:
    """A mean over ``n`` items with its standard error, None if it was not finite."""

    value: float
    stderr: float | None
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of a score that is a share; None without a standard error or items, or if it is no share."""
        if self.stderr is None or not self.n or not 0 <= self.value <= 1:
            return None
        return score_interval(self.value, self.stderr, self.n)

    def to_json(self) -> dict[str, Any]:
        """The score as ``recover status --json`` prints it."""
        return {"value": self.value, "stderr": self.stderr, "n": self.n}


def kind_of(suite: str) -> str:
    """Return a suite's name without what it is about: "drift" of "drift from base"."""
    return suite.partition("/")[0].partition(" ")[0]


def are_disjoint(first: Score | None, second: Score | None) -> bool:
    """Whether the 95% intervals of two shares are disjoint, which is stricter than a 5% test of their difference."""
    one, two = (score.interval if score is not None else None for score in (first, second))
    return one is not None and two is not None and (one[1] < two[0] or two[1] < one[0])


def is_share(suite: str, score: Score) -> bool:
    """Whether a suite's score is a share: from 0 to 1, and not in nats or bits."""
    return kind_of(suite).removesuffix("_by_corpus") not in IN_NATS_OR_BITS and 0 <= score.value <= 1


def interval_of(suite: str, score: Score) -> tuple[float, float] | None:
    """Return a suite's 95% interval: Wilson's for a share, else ± 1.96 standard errors; None without an error."""
    if score.stderr is None or (is_share(suite, score) and score.interval):
        return score.interval
    return score.value - 1.96 * score.stderr, score.value + 1.96 * score.stderr


@dataclass(frozen=True)
class Scores:
    """The newest score of a checkpoint in every suite; None if it was not measured.

    ``domain_knowledge`` and ``domain_knowledge_stored`` are about the newest corpus that was evaluated;
    ``bits_per_byte`` is the mean over corpora. ``others`` also holds details, as "ifeval/beyond_constant".
    """

    instruction_following: Score | None = None
    domain_knowledge: Score | None = None
    domain_knowledge_stored: Score | None = None
    general: Score | None = None
    bits_per_byte: Score | None = None
    domain_knowledge_by_corpus: Mapping[int, Score] = field(default_factory=dict)
    domain_knowledge_stored_by_corpus: Mapping[int, Score] = field(default_factory=dict)
    domain_knowledge_likelihood_by_corpus: Mapping[int, Score] = field(default_factory=dict)
    open_book_by_corpus: Mapping[int, Score] = field(default_factory=dict)
    unanswerable_by_corpus: Mapping[int, Score] = field(default_factory=dict)
    unanswerable_open_book_by_corpus: Mapping[int, Score] = field(default_factory=dict)
    bits_per_byte_by_corpus: Mapping[int, Score] = field(default_factory=dict)
    others: Mapping[str, Score] = field(default_factory=dict)

    @property
    def beyond_constant(self) -> Score | None:
        """The share of the instructions of instruction following that no constant reply follows."""
        return self.others.get(f"instruction_following/{BEYOND_CONSTANT}")

    def to_json(self) -> dict[str, Any]:
        """Return every score by name; per-corpus scores are keyed by the corpus number as text."""
        single = {name: getattr(self, name) for name in HEADLINES}
        shown: dict[str, Any] = {name: score.to_json() if score else None for name, score in single.items()}
        for name in PER_CORPUS:
            corpora = getattr(self, name + BY_CORPUS)
            shown[name + BY_CORPUS] = {str(number): score.to_json() for number, score in corpora.items()}
        return shown | {name: score.to_json() for name, score in self.others.items()}


@dataclass(frozen=True)
class Measured:
    """A checkpoint with its scores."""

    checkpoint: Checkpoint
    scores: Scores


class OfBase(NamedTuple):
    """Instruction following of a checkpoint, ``now``, and of base, ``then``, with ``share`` = now / then.

    The scores are of the instructions that no constant reply follows, since such replies show nothing about behaviour;
    ``whole`` is then the share of whole prompts. Where these were not measured, the scores are of whole prompts, and
    ``whole`` is None. Shares are None if base was asked another number of prompts: the prompts differ then.
    """

    now: Score | None
    then: Score | None
    share: float | None
    whole: float | None

    @property
    def mismatch(self) -> str:
        """Why there is no share although both were measured; empty if there is one."""
        now, reference = self.now, self.then
        if not now or not reference or now.n == reference.n:
            return ""
        return f"base was asked {reference.n:,} prompts, this one {now.n:,}"


@dataclass(frozen=True)
class CycleRow:
    """The measured checkpoints of a cycle: ``before``, ``midtrained``, ``recovered``; ``base`` is the reference."""

    cycle: Cycle
    base: Measured | None
    before: Measured | None
    midtrained: Measured | None
    recovered: Measured | None

    @property
    def end(self) -> Measured | None:
        """The cycle's last checkpoint: recovered, else mid-trained."""
        return self.recovered or self.midtrained

    @property
    def learnt(self) -> float | None:
        """The gain on questions about this cycle's documents, from before the cycle to its last checkpoint."""
        return _difference(self._knowledge(self.end), self._knowledge(self.before))

    @property
    def lost(self) -> float | None:
        """The loss of instruction following by mid-training (positive: lost); None if other prompts were asked."""
        before, after = (one.scores.instruction_following if one else None for one in (self.before, self.midtrained))
        return before.value - after.value if before and after and before.n == after.n else None

    @property
    def of_base(self) -> OfBase:
        """Instruction following of the recovered checkpoint, compared with base's."""
        return _of_base(self.recovered, self.base)

    @property
    def summary(self) -> str:
        """A one-line summary of the measured scores."""
        parts = []
        if self.learnt is not None:
            parts.append(f"knowledge {round(100 * self.learnt):+d} points".replace("-", "−"))
        if self.lost is not None:
            parts.append(f"instruction following {round(-100 * self.lost):+d}".replace("-", "−") + " by mid-training")
        if self.of_base.share is not None:
            share, prompts = (f"{100 * (one or 0.0):.0f}% of" for one in (self.of_base.share, self.of_base.whole))
            beyond = "" if self.of_base.whole is None else f" beyond constant replies ({prompts} its whole prompts)"
            parts.append(f"ends at {share} base{beyond}")
        elif self.of_base.mismatch:
            parts.append(f"not compared with base: {self.of_base.mismatch}")
        elif self.midtrained is not None and self.recovered is None:
            decision = self.cycle.decision if self.cycle.decision in DISCARDED else None
            parts.append(decision.replace("_", " ") if decision else "not recovered yet")
        return f"cycle {self.cycle.number}: " + (", ".join(parts) or "not measured yet")

    def _knowledge(self, measured: Measured | None) -> float | None:
        """Accuracy on questions about this cycle's corpus; the base's if ``before`` was not evaluated on it."""
        for candidate in (measured, self.base if measured is self.before else None):
            score = candidate.scores.domain_knowledge_by_corpus.get(self.cycle.number) if candidate else None
            if score is not None:
                return score.value
        return None


@dataclass(frozen=True)
class Overview:
    """An experiment's cycles; ``path`` is every measured checkpoint in chronological order."""

    experiment: Experiment
    base: Measured | None
    cycles: tuple[CycleRow, ...]
    latest: Checkpoint | None
    running: Stage | None

    @property
    def path(self) -> tuple[Measured, ...]:
        """Base, then each cycle's mid-trained and recovered checkpoint."""
        steps = [self.base] + [step for row in self.cycles for step in (row.midtrained, row.recovered)]
        return tuple(step for step in steps if step is not None)

    @property
    def kept(self) -> tuple[Measured, ...]:
        """The path without checkpoints of rejected and rolled-back cycles; the whole path if nothing was kept."""
        return tuple(step for step in self.path if step.checkpoint.cycle not in self._discarded) or self.path

    @cached_property
    def corpora(self) -> tuple[int, ...]:
        """The numbers of all corpora that any checkpoint was evaluated on."""
        return tuple(sorted({corpus for step in self.path for corpus in step.scores.domain_knowledge_by_corpus}))

    def corpora_of(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """The corpora that count for a checkpoint: those up to its own cycle's, or all for base.

        Those of other cycles that were rejected or rolled back are left out: later cycles neither train on them nor ask
        about them.
        """
        discarded = self._discarded - {checkpoint.cycle}
        last = math.inf if checkpoint.cycle is None else checkpoint.cycle
        return tuple(corpus for corpus in self.corpora if corpus not in discarded and corpus <= last)

    @cached_property
    def kept_corpora(self) -> tuple[int, ...]:
        """The corpora of the cycles that were not rejected or rolled back; all if none was kept."""
        return tuple(corpus for corpus in self.corpora if corpus not in self._discarded) or self.corpora

    @cached_property
    def shared_corpora(self) -> tuple[int, ...]:
        """The corpora on which checkpoints of several cycles are compared: those of :attr:`kept_corpora` on which each
        checkpoint that was asked about any has a score, its own or the base's.
        """
        asked = [step.scores.domain_knowledge_by_corpus for step in self.path]
        known = self._known_by_base
        return tuple(k for k in self.kept_corpora if k in known or all(k in own for own in asked if own))

    def of_base(self, measured: Measured | None) -> OfBase:
        """Instruction following of a checkpoint, compared with base's."""
        return _of_base(measured, self.base)

    def known_before(self, checkpoint: Checkpoint) -> Score | None:
        """The base's accuracy on questions about the corpora that count for a checkpoint; None if it lacks one."""
        known = self._known_by_base
        parts = [known[corpus] for corpus in self.corpora_of(checkpoint) if corpus in known]
        return pooled(parts) if len(parts) == len(self.corpora_of(checkpoint)) else None

    def knowledge(self, measured: Measured | None) -> Score | None:
        """Accuracy on questions about the corpora that count (:meth:`corpora_of`).

        A corpus on which a checkpoint was not evaluated counts with the base's score. None if that is unknown too, or
        the checkpoint was evaluated on no corpus yet: scores on other questions are not comparable. The overall score
        counts only where no checkpoint was evaluated by corpus.
        """
        return None if measured is None else self._accuracy(measured, self.corpora_of(measured.checkpoint))

    def shared_knowledge(self, measured: Measured) -> Score | None:
        """As :meth:`knowledge`, on :attr:`shared_corpora`; without any, on those up to the checkpoint's own cycle."""
        return self._accuracy(measured, self.shared_corpora) if self.shared_corpora else self.knowledge(measured)

    @cached_property
    def _discarded(self) -> set[int | None]:
        """The numbers of the cycles that were rejected or rolled back."""
        return {row.cycle.number for row in self.cycles if row.cycle.decision in DISCARDED}

    @property
    def _known_by_base(self) -> Mapping[int, Score]:
        return self.base.scores.domain_knowledge_by_corpus if self.base else {}

    def _accuracy(self, measured: Measured, corpora: Sequence[int]) -> Score | None:
        if not self.corpora:
            return measured.scores.domain_knowledge
        own, known = measured.scores.domain_knowledge_by_corpus, self._known_by_base
        parts = [own.get(corpus, known.get(corpus)) for corpus in corpora]
        scores = [part for part in parts if part is not None]
        return pooled(scores) if own and len(scores) == len(parts) else None


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve: one value, or the mean, minimum and maximum of several steps."""

    step: int
    value: float | None
    low: float | None
    high: float | None
    time: float


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return a curve of at most about ``most`` points; neighbours are averaged as the database query averages them.

    Each point is weighted by the number of steps since the previous point.
    """
    if len(points) <= most:
        return list(points)
    width = math.ceil((points[-1].step - points[0].step + 1) / most)
    groups: dict[int, list[tuple[int, Point]]] = {}
    before = points[0].step - 1
    for point in points:
        groups.setdefault(point.step // width, []).append((point.step - before, point))
        before = point.step
    return [_averaged(group) for group in groups.values()]


def _averaged(group: Sequence[tuple[int, Point]]) -> Point:
    """Return the weighted average of a group of (weight, point)."""
    last = group[-1][1]
    values = [(weight, point.value) for weight, point in group if point.value is not None]
    if not values:
        return last
    mean = sum(weight * value for weight, value in values) / sum(weight for weight, _ in values)
    low = min(point.low for _, point in group if point.low is not None)
    high = max(point.high for _, point in group if point.high is not None)
    return Point(last.step, mean, low, high, last.time)


@dataclass(frozen=True)
class Evaluation:
    """A suite's result on a checkpoint."""

    id: int
    checkpoint_id: int
    stage_id: int | None
    suite: str
    name: str
    corpus: int | None
    value: float | None
    stderr: float | None
    n: int
    details: Mapping[str, Any]
    created_at: float


@dataclass(frozen=True)
class Sample:
    """One item of an evaluation."""

    item: str
    group: str
    prompt: str
    response: str
    score: float | None
    verdicts: Mapping[str, Any]
    extra: Mapping[str, Any]


@dataclass(frozen=True)
class SamplePage:
    """An evaluation's first samples, and the number of all."""

    samples: tuple[Sample, ...]
    total: int


@dataclass(frozen=True)
class Decision:
    """A decision about a cycle."""

    id: int
    cycle_id: int
    decision: str
    who: str
    why: str
    evidence: Mapping[str, Any]
    created_at: float

    @property
    def words(self) -> str:
        """The decision, who made it and why."""
        return f"{self.decision.replace('_', ' ').capitalize()} by {self.who}: {self.why}"


@dataclass(frozen=True)
class Event:
    """A logged event."""

    id: int
    cycle_id: int | None
    stage_id: int | None
    level: str
    kind: str
    message: str
    data: Mapping[str, Any]
    created_at: float


@dataclass(frozen=True)
class TokenScores:
    """A rollout with values per token."""

    prompt: str
    tokens: tuple[Any, ...]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class TokenNumbers:
    """A rollout with the reverse KL of each token; None if it was not finite."""

    id: int
    step: int
    item: str
    tokens: tuple[Any, ...]
    numbers: tuple[float | None, ...]


def pooled(parts: Sequence[Score]) -> Score | None:
    """Return the mean of several independent scores, each with the same weight, however many items it has: a later
    checkpoint is asked less about each earlier corpus.
    """
    counted = [part for part in parts if part.n]
    if not counted:
        return None
    value = sum(part.value for part in counted) / len(counted)
    variance = sum((part.stderr or 0.0) ** 2 for part in counted)
    return Score(value, math.sqrt(variance) / len(counted), sum(part.n for part in counted))


def _of_base(measured: Measured | None, base: Measured | None) -> OfBase:
    sides = [one.scores if one else Scores() for one in (measured, base)]
    now, reference = (one.instruction_following for one in sides)
    beyond, base_beyond = (one.beyond_constant for one in sides)
    prompts, share = share_of(now, reference), share_of(beyond, base_beyond)
    return OfBase(now, reference, prompts, None) if share is None else OfBase(beyond, base_beyond, share, prompts)


def share_of(score: Score | None, base: Score | None) -> float | None:
    """Return score / base; None if they are of different numbers of items, or base is 0."""
    return score.value / base.value if score and base and base.value and score.n == base.n else None


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
