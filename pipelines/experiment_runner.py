"""Named runs of one seed of an experiment, and their scores: each is executed once, and goes on where it was stopped.

Everything is recorded in the tracker. A registered name is not run again, and a run that was stopped goes on from its
last saved state, so whatever calls the runner resumes by being called again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db import records
from evals import knowledge
from evals.instruction_following import evaluate_instructions
from evals.probes import load_probes
from evals.suites import sample, sample_probes
from pipelines.cycle_plan import config_of
from pipelines.data.corpus_snapshot import load_snapshots
from pipelines.distillation.early_stopping import Observer
from pipelines.distillation.inputs import check_inputs
from pipelines.distillation.resolve import resolve
from pipelines.distillation.stage import distill
from pipelines.earlier_stages import stages_alike, stopped
from pipelines.evaluation.plan import GENERAL
from pipelines.evaluation.stored_results import newest, record_result
from pipelines.midtraining.material import open_cycle
from pipelines.midtraining.stage import midtrain
from pipelines.reports.cost import Cost, cost_of, stage_of
from pipelines.runtime.engines import local_engine
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.session import Session
from pipelines.runtime.stage import running
from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, build
from recovery.data.prompts import PromptSplits, behaviour_prompts
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Engine
from recovery.types import Prompt, Score, SuiteResult
from recovery.workspace import Checkpoint

# Suites by name; those of knowledge are followed by "/" and the number of their corpus.
INSTRUCTIONS, KNOWLEDGE, STORED, RETAINED = (
    "instruction_following",
    "domain_knowledge",
    "domain_knowledge_stored",
    "general",
)


@dataclass
class ExperimentRunner:
    """Named runs in a workspace, all with one ``seed``, and their scores over at most ``items`` items a suite."""

    session: Session
    seed: int
    items: int = 300

    # --- runs ----------------------------------------------------------------------------------------------

    def known(self, name: str) -> Checkpoint | None:
        """Return the checkpoint of a finished run, else None."""
        found = next((c for c in self.session.registry.all() if c.name == name), None)
        return found if found is not None and stage_of(self.session, name).status == "finished" else None

    def midtrained(
        self, name: str, docs: Path, *, student: str = "base", cycle: int = 1, **settings: Any
    ) -> Checkpoint:
        """Run a mid-training under a name, or the rest of it, unless it is done."""
        if (done := self.known(name)) is not None:
            return done
        given = settings | {"docs": docs, "student": student, "seed": self.seed}
        config = build(MidtrainConfig, given, self.session.recipe)
        own = open_cycle(self.session, config, cycle)
        resume = self._stopped("midtrain", config, cycle, name)
        return midtrain(self.session, config_of(self.session, resume, config), own, resume=resume, name=name)

    def trained(
        self, name: str, student: str, method: str, *, observe: Observer | None = None, cycle: int = 1, **settings: Any
    ) -> Checkpoint:
        """Run a method under a name, or the rest of it, unless it is done; early stopping is off."""
        if (done := self.known(name)) is not None:
            return done
        config = self.distilling(student, method, settings)
        # Recorded with the names that its models, and what is left out of them, have after this.
        resume = self._stopped("distill", resolve(self.session, config, cycle).config, cycle, name)
        config = config_of(self.session, resume, config)
        return distill(self.session, config, cycle=cycle, resume=resume, name=name, observe=observe)

    def check(self, method: str, **settings: Any) -> None:
        """Raise UsageError if a method could not be run for its prompts, its context or its answers."""
        check_inputs(self.distilling("base", method, settings), self.session.base.path)

    def distilling(self, student: str, method: str, settings: Mapping[str, Any]) -> DistillConfig:
        """Return the settings of a run of a method."""
        # A study of collapse must observe it, and runs are comparable only with their full number of steps.
        given = {"until": 0.0, "plateau": 0, "alarm": False, **settings}
        given |= {"method": method, "student": student, "seed": self.seed}
        if self.session.resolve(student).tuning == "lora":
            given["tuning"] = "lora"  # keep training the adapter, whatever the model's recipe recommends
        return build(DistillConfig, given, self.session.recipe)

    def _stopped(self, kind: str, config: Any, cycle: int, name: str) -> records.Stage | None:
        """Return the stage that an earlier call began under a name and did not finish, if there is one."""
        student = self.session.registered(self.session.resolve(config.student))
        return stopped(self.session, stages_alike(self.session, kind, config, cycle, student), name)

    def details(self, name: str) -> dict[str, Any]:
        """Return the details of the stage that made a checkpoint, with its observations."""
        return dict(stage_of(self.session, name).details)

    def cost_of(self, name: str) -> Cost:
        """Return the cost of a run, without the runs it started from."""
        return cost_of(self.session, name)

    # --- evaluation ----------------------------------------------------------------------------------------

    def scores(self, name: str, *suites: str) -> dict[str, Score]:
        """Return scores of a checkpoint by suite. Recorded suites are not measured again."""
        checkpoint = self.session.registered(self.session.resolve(name))
        assert checkpoint.id is not None
        found = {
            suite: Score(row.value or 0.0, row.stderr or 0.0, row.n)
            for suite, row in newest(self.session.tracker.database, checkpoint.id).items()
        }
        missing = [suite for suite in suites if suite not in found]
        if missing:
            found |= self._measure(checkpoint, missing)
        return {suite: found[suite] for suite in suites}

    def value(self, name: str, suite: str) -> float:
        """Return one score's value."""
        return self.scores(name, suite)[suite].value

    def available(self, suites: Iterable[str]) -> list[str]:
        """Return those of the suites that this model and these documents have items for."""
        corpora = load_snapshots(self.session.workspace, self.session.cycles())
        asked = {probe.form for corpus in corpora.values() for probe in corpus.probes}
        there = {
            KNOWLEDGE: "question" in asked,
            STORED: "choice" in asked,
            RETAINED: (self.session.base.path / GENERAL).is_file(),
        }
        return [suite for suite in suites if there.get(suite.partition("/")[0], True)]

    def loaded(self, name: str) -> tuple[Loaded, Engine]:
        """Load a frozen checkpoint and its sampling engine."""
        config = build(EvalConfig, {"seed": self.seed}, self.session.recipe)
        loaded = load_frozen(self.session.verified(self.session.resolve(name)), config)
        return loaded, local_engine(loaded, config)

    def ask(self, loaded: Loaded, engine: Engine, suite: str, most: int | None = None) -> SuiteResult:
        """Evaluate a loaded model on one suite, on ``most`` items of it at most."""
        kind, _, rest = suite.partition("/")
        items = min(self.items, most or self.items)
        if kind in (KNOWLEDGE, STORED):
            probes = load_snapshots(self.session.workspace, [int(rest)])[int(rest)].probes
            kept = sample_probes([p for p in probes if (p.form == "question") == (kind == KNOWLEDGE)], items)
            if kind == KNOWLEDGE:
                return knowledge.ask(loaded.chat, engine, kept, suite=suite, seed=self.seed)
            return knowledge.choose(loaded, kept, suite=suite)
        if kind == RETAINED:
            kept = sample_probes(load_probes(self.session.base.path / GENERAL), items)
            return knowledge.general(loaded, engine, kept, seed=self.seed)
        tokens = build(EvalConfig, {}, self.session.recipe).max_new_tokens
        prompts = sample(self.asked(suite), items)
        return evaluate_instructions(
            loaded.chat, engine, prompts, max_new_tokens=tokens, window=loaded.max_length, seed=self.seed, suite=suite
        )

    def own_prompts(self) -> PromptSplits:
        """Return the model's own prompts by split."""
        return behaviour_prompts(self.session.base.path, None, 0)

    def asked(self, suite: str) -> Sequence[Prompt]:
        """Return the prompts of a suite of instructions: of whatever name, the model's own test prompts with checks."""
        return [p for p in self.own_prompts().test if p.checks]

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
                record_result(session, stage.recorder, checkpoint, result)
        return {suite: result.score for suite, result in zip(suites, results, strict=True)}
