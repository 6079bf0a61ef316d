"""The laboratory of one study and seed: a workspace of its own, in which every run has a name and is done once.

A study is a script of named runs. A name that is registered already is not run again, so a study that was stopped goes
on at the first run that is missing; everything is in the tracker like any other work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from db import queries
from evals import knowledge
from evals.ifeval import evaluate_instructions
from evals.probes import load_probes
from evals.suites import sample, sample_probes
from pipelines.agenda import GENERAL
from pipelines.answers import conversations
from pipelines.corpora import thaw_all
from pipelines.distill import distill
from pipelines.evaluate import record
from pipelines.midtrain import midtrain
from pipelines.models import load_frozen
from pipelines.session import Session
from pipelines.spending import Spent, spent
from pipelines.stage import running
from pipelines.watch import Observer
from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, build
from recovery.loading import Loaded
from recovery.miniature import write_corpora
from recovery.prompts import behaviour_prompts, load_prompts, write_prompts
from recovery.rollouts import Engine, Sampling, TransformersEngine
from recovery.types import Message, Prompt, Score, SuiteResult
from recovery.workspace import Checkpoint, write_atomically

INSTRUCTIONS, KNOWLEDGE, STORED = "instruction_following", "domain_knowledge", "domain_knowledge_stored"
RETAINED = "general"


@dataclass
class Lab:
    """Runs and measures by name. ``budget`` scales steps and items; ``items`` are asked of each suite at most;
    ``others`` are the figures of studies that this seed has done already.
    """

    session: Session
    seed: int
    budget: float = 1.0
    items: int = 300
    others: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.session.workspace.folder / "made"
        self.items = max(50, round(self.items * min(1.0, 2 * self.budget)))  # items are cheap, and steps are not

    def scale(self, count: int, least: int = 1) -> int:
        """A number of steps at this budget."""
        return max(least, round(count * self.budget))

    # --- what is learnt from -------------------------------------------------------------------------------

    def corpora(self, count: int = 1, **shape: int) -> list[Path]:
        """Folders of documents with questions and probes, made for this seed."""
        target = self.folder / f"corpora-{count}"
        found = [target / f"q{number}" for number in range(1, count + 1)]
        return found if all(f.is_dir() for f in found) else write_corpora(target, count, self.seed, **shape)

    def prompts(self, name: str, make: Callable[[], Mapping[str, Sequence[Prompt]]]) -> Path:
        """A folder of train/development/test prompts, made once."""
        target = self.folder / "prompts" / name
        if not (target / "done").is_file():
            target.mkdir(parents=True, exist_ok=True)
            for split, prompts in make().items():
                write_prompts(target / f"{split}.jsonl", prompts)
            write_atomically(target / "done", "")
        return target

    def data(self, name: str, make: Callable[[], Sequence[Sequence[Message]]]) -> Path:
        """A file of conversations to imitate, made once."""
        target = self.folder / "data" / f"{name}.jsonl"
        if not target.is_file():
            lines = (json.dumps({"messages": list(messages)}, ensure_ascii=False) for messages in make())
            write_atomically(target, "".join(f"{line}\n" for line in lines))
        return target

    def spoken(self, name: str, prompts: Path, count: int, *, max_new_tokens: int) -> Path:
        """A file of a checkpoint's own answers (temperature 1) to training prompts of a folder, made once."""

        def make() -> list[tuple[Message, ...]]:
            loaded, engine = self.loaded(name)
            answered = conversations(
                loaded,
                engine,
                load_prompts(prompts / "train.jsonl")[:count],
                content_hash=self.session.resolve(name).hash,
                sampling=Sampling(max_new_tokens, seed=self.seed),
                cache=self.session.workspace.folder / "cache",
            )
            return [a.messages for a in answered]

        return self.data(f"answers-{name}-{prompts.name}", make)

    # --- runs ----------------------------------------------------------------------------------------------

    def known(self, name: str) -> Checkpoint | None:
        """The checkpoint of a run that is done."""
        found = next((c for c in self.session.registry.all() if c.name == name), None)
        return found if found is not None and self._stage(name).status == "finished" else None

    def midtrained(
        self, name: str, docs: Path, *, student: str = "base", cycle: int = 1, **settings: Any
    ) -> Checkpoint:
        """Mid-training under a name."""
        done = self.known(name)
        if done is not None:
            return done
        given = settings | {"docs": docs, "student": student, "seed": self.seed}
        return midtrain(self.session, build(MidtrainConfig, given, self.session.recipe), cycle=cycle, name=name)

    def trained(
        self, name: str, student: str, method: str, *, observe: Observer | None = None, cycle: int = 1, **settings: Any
    ) -> Checkpoint:
        """A method's run under a name; it runs to its number of steps, whatever its score."""
        done = self.known(name)
        if done is not None:
            return done
        # A study of a collapse must see it, and no study may compare runs of which one was cut short.
        given = (
            {"until": 0.0, "plateau": 0, "alarm": False}
            | settings
            | {"method": method, "student": student, "seed": self.seed}
        )
        if self.session.resolve(student).tuning == "lora":
            given["tuning"] = "lora"  # an adapter is carried on, whatever the model recommends for itself
        config = build(DistillConfig, given, self.session.recipe)
        return distill(self.session, config, cycle=cycle, name=name, observe=observe)

    def details(self, name: str) -> dict[str, Any]:
        """What the stage that made a checkpoint wrote down, its observations among them."""
        return dict(self._stage(name).details)

    def spent(self, name: str) -> Spent:
        """What the run of that name took by itself (not the runs it started from)."""
        return spent(self.session, name)

    def curve(self, name: str, metric: str) -> list[tuple[int, float]]:
        """A metric of a run, step by step."""
        found = queries.series(self.session.tracker.database, self._stage(name).id, [metric], max_points=None)
        return [(point.step, point.value) for point in found.get(metric, ()) if point.value is not None]

    def _stage(self, name: str) -> Any:
        checkpoint = next(c for c in queries.checkpoints(*self._where()) if c.name == name)
        assert checkpoint.stage_id is not None
        return next(s for s in queries.stages(*self._where(), limit=10_000) if s.id == checkpoint.stage_id)

    def _where(self) -> tuple[Any, int]:
        return self.session.tracker.database, self.session.experiment_id

    # --- measures ------------------------------------------------------------------------------------------

    def scores(self, name: str, *suites: str) -> dict[str, Score]:
        """Scores of a checkpoint by suite: instruction_following, general, domain_knowledge/K, skill/NAME, or a folder.

        What the tracker holds is not measured again.
        """
        checkpoint = self.session.registered(self.session.resolve(name))
        assert checkpoint.id is not None
        found = {
            row.suite if row.corpus is None else f"{row.suite}/{row.corpus}": Score(
                row.value or 0.0, row.stderr or 0.0, row.n
            )
            for row in queries.evaluations(self.session.tracker.database, checkpoint.id)
        }
        missing = [suite for suite in suites if suite not in found]
        if missing:
            found |= self._measure(checkpoint, missing)
        return {suite: found[suite] for suite in suites}

    def by_type(self, name: str, suite: str) -> dict[str, float]:
        """Share of a suite's instructions that were followed, by type."""
        self.scores(name, suite)
        checkpoint = self.session.registered(self.session.resolve(name))
        assert checkpoint.id is not None
        rows = queries.evaluations(self.session.tracker.database, checkpoint.id)
        details = next(row.details for row in rows if row.suite == suite)
        found = {key.removeprefix("id/"): score for key, score in details.items() if key.startswith("id/")}
        return {kind: float(score["value"]) for kind, score in sorted(found.items())}

    def available(self, suites: Iterable[str]) -> list[str]:
        """Those of the suites that this model and these documents have anything to ask for."""
        corpora = thaw_all(self.session.workspace, self.session.cycles())
        asked = {probe.form for corpus in corpora.values() for probe in corpus.probes}
        there = {
            KNOWLEDGE: "question" in asked,
            STORED: "choice" in asked,
            RETAINED: (self.session.base.path / GENERAL).is_file(),
        }
        return [suite for suite in suites if there.get(suite.partition("/")[0], True)]

    def value(self, name: str, suite: str) -> float:
        """One score's value."""
        return self.scores(name, suite)[suite].value

    def loaded(self, name: str) -> tuple[Loaded, Engine]:
        """A frozen checkpoint and the engine that samples from it."""
        config = build(EvalConfig, {"seed": self.seed}, self.session.recipe)
        loaded = load_frozen(self.session.verified(self.session.resolve(name)), config)
        return loaded, TransformersEngine(loaded, token_budget=config.rollout_tokens)

    def ask(self, loaded: Loaded, engine: Engine, suite: str) -> SuiteResult:
        """One suite of a model in memory."""
        kind, _, rest = suite.partition("/")
        if kind in (KNOWLEDGE, STORED):
            probes = thaw_all(self.session.workspace, [int(rest)])[int(rest)].probes
            kept = sample_probes([p for p in probes if (p.form == "question") == (kind == KNOWLEDGE)], self.items)
            if kind == KNOWLEDGE:
                return knowledge.ask(loaded.chat, engine, kept, suite=suite, seed=self.seed)
            return knowledge.choose(loaded, kept, suite=suite)
        if kind == RETAINED:
            kept = sample_probes(load_probes(self.session.base.path / GENERAL), self.items)
            return knowledge.general(loaded, engine, kept, seed=self.seed)
        tokens = build(EvalConfig, {}, self.session.recipe).max_new_tokens
        prompts = sample(self.asked(kind, rest), self.items)
        return evaluate_instructions(
            loaded.chat, engine, prompts, max_new_tokens=tokens, window=loaded.max_length, seed=self.seed, suite=suite
        )

    def asked(self, kind: str, rest: str = "") -> Sequence[Prompt]:
        """The prompts of a suite: the model's own, a skill's, or a split (default: test) of a set made here."""
        base = self.session.base.path
        if kind == INSTRUCTIONS:
            prompts = [p for p in behaviour_prompts(base, None, 0).test if p.checks]
            return [p for p in prompts if not rest or ("held-out-id" in p.tags) == (rest == "held-out")]
        if kind == "skill":
            return load_prompts(base / "suites" / "skills" / f"{rest}.jsonl")
        return load_prompts(self.folder / "prompts" / kind / f"{rest or 'test'}.jsonl")

    def _measure(self, checkpoint: Checkpoint, suites: Sequence[str]) -> dict[str, Score]:
        config = build(EvalConfig, {"checkpoint": checkpoint.name, "seed": self.seed}, self.session.recipe)
        session = self.session
        with running(session, "evaluate", config, cycle=checkpoint.cycle, student=checkpoint) as stage:
            loaded, engine = self.loaded(checkpoint.name)
            results = []
            for suite in suites:
                stage.interrupts.check()
                results.append(self.ask(loaded, engine, suite))
            for result in results:
                record(session, stage, checkpoint, result)
        return {suite: result.score for suite, result in zip(suites, results, strict=True)}
