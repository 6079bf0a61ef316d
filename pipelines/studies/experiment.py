"""The runner of one study and seed: a workspace in which every run has a name and is executed once.

A study is a script of named runs. A registered name is not run again, and a run that was stopped goes on from its last
saved state, so a study that was stopped resumes there; everything is recorded in the tracker.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from db import queries, records
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
from pipelines.midtraining.stage import midtrain, open_cycle
from pipelines.reports.cost import Cost, cost_of, stage_of
from pipelines.runtime.generation import conversations
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.session import Session
from pipelines.runtime.stage import running
from pipelines.studies.measures import INSTRUCTIONS, KNOWLEDGE, RETAINED, STORED
from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, build, to_json
from recovery.data.prompt_files import load_prompts, write_prompts
from recovery.data.prompts import PromptSplits, behaviour_prompts
from recovery.miniature import write_corpora
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Engine, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Message, Prompt, Score, SuiteResult
from recovery.workspace import Checkpoint, Workspace, write_atomically


def experiment_name(study: str, budget: float, seed: int) -> str:
    """Return the name in the tracker of a study's runs with a seed."""
    return f"study/{study}/budget-{budget:g}/seed-{seed}"


@dataclass
class ExperimentRunner:
    """Named runs and their scores. ``budget`` scales steps and items; ``items`` is the maximum per suite; ``others``
    are the figures of studies that this seed has finished; ``arms`` and ``cycles`` are those that were chosen, if any;
    ``record`` stores figures of a study that goes on.
    """

    session: Session
    seed: int
    budget: float = 1.0
    items: int = 300
    others: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    arms: tuple[str, ...] = ()
    cycles: int | None = None
    record: Callable[[Mapping[str, float]], None] = lambda figures: None
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.session.workspace.folder / "made"
        # Items are cheaper than steps, so they are scaled less.
        self.items = max(50, round(self.items * min(1.0, 2 * self.budget)))

    def scale(self, count: int, least: int = 1) -> int:
        """Return a number of steps at this budget."""
        return max(least, round(count * self.budget))

    # --- training data -------------------------------------------------------------------------------------

    def corpora(self, count: int = 1, **shape: int) -> list[Path]:
        """Return folders of documents with questions and probes for this seed, written on first use."""
        target = self.folder / f"corpora-{count}"
        found = [target / f"q{number}" for number in range(1, count + 1)]
        written = all((folder / "probes.jsonl").is_file() for folder in found)  # the last file of each
        return found if written else write_corpora(target, count, self.seed, **shape)

    def prompts(self, name: str, make: Callable[[], Mapping[str, Sequence[Prompt]]]) -> Path:
        """Return a folder of train/development/test prompts, written on first use."""
        target = self.folder / "prompts" / name
        if not (target / "done").is_file():
            target.mkdir(parents=True, exist_ok=True)
            for split, prompts in make().items():
                write_prompts(target / f"{split}.jsonl", prompts)
            write_atomically(target / "done", "")
        return target

    def data(self, name: str, make: Callable[[], Sequence[Sequence[Message]]]) -> Path:
        """Return a file of conversations to imitate, written on first use."""
        target = self.folder / "data" / f"{name}.jsonl"
        if not target.is_file():
            lines = (json.dumps({"messages": list(messages)}, ensure_ascii=False) for messages in make())
            write_atomically(target, "".join(f"{line}\n" for line in lines))
        return target

    def spoken(self, name: str, prompts: Path, count: int, *, max_new_tokens: int) -> Path:
        """Return a file of a checkpoint's completions (temperature 1) of a folder's training prompts, sampled once."""

        def make() -> list[tuple[Message, ...]]:
            loaded, engine = self.loaded(name)
            answered, _ = conversations(
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
        self,
        name: str,
        student: str,
        method: str,
        *,
        observe: Observer | None = None,
        cycle: int = 1,
        onward: bool = False,
        **settings: Any,
    ) -> Checkpoint:
        """Run a method under a name, or the rest of it, unless it is done; early stopping is off.

        With ``onward`` its ordinary prompts begin where as many runs as there were cycles before it ended.
        """
        if (done := self.known(name)) is not None:
            return done
        config = self._distilling(student, method, settings)
        if onward:
            config = dataclasses.replace(config, prompts_before=(cycle - 1) * config.behaviour_prompts_total)
        # Recorded with the names that its models, and what is left out of them, have after this.
        resume = self._stopped("distill", resolve(self.session, config, cycle).config, cycle, name)
        config = config_of(self.session, resume, config)
        return distill(self.session, config, cycle=cycle, resume=resume, name=name, observe=observe)

    def check(self, method: str, **settings: Any) -> None:
        """Raise UsageError if a method could not be run for its prompts, its context or its answers."""
        check_inputs(self._distilling("base", method, settings), self.session.base.path)

    def _distilling(self, student: str, method: str, settings: Mapping[str, Any]) -> DistillConfig:
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

    def method_family(self, name: str, study: str | None = None) -> str:
        """Return how the stage that made a checkpoint trained, by its settings: "sft" (imitates given responses),
        "opd" (a teacher scores the student's own), "grpo" (a reward does); ``study`` is another study's run.
        """
        stage = stage_of(self.session, name, None if study is None else self._experiment_of(study))
        settings = {**to_json(DistillConfig()), **stage.config}
        if stage.kind != "distill" or settings["alpha"] == 0 or settings["teacher"] == "label":
            return "sft"
        return "grpo" if settings["lam"] == 0 else "opd"

    def _experiment_of(self, study: str) -> str:
        """Return the name in the tracker of another study's runs with this seed and budget."""
        home = self.session.workspace.folder  # studies/NAME/budget-B/seed-S
        other = Workspace(home.parents[2] / study / home.parent.name / home.name)
        return str(other.settings().get("experiment") or experiment_name(study, self.budget, self.seed))

    def cost_of(self, name: str) -> Cost:
        """Return the cost of a run, without the runs it started from."""
        return cost_of(self.session, name)

    def curve(self, name: str, metric: str) -> list[tuple[int, float]]:
        """Return a metric of a run as (step, value)."""
        stage = stage_of(self.session, name)
        found = queries.series(self.session.tracker.database, stage.id, [metric], max_points=None)
        return [(point.step, point.value) for point in found.get(metric, ()) if point.value is not None]

    # --- evaluation ----------------------------------------------------------------------------------------

    def scores(self, name: str, *suites: str) -> dict[str, Score]:
        """Return scores of a checkpoint by suite: instruction_following, general, domain_knowledge/K, skill/NAME, or a
        folder of prompts. Recorded suites are not measured again.
        """
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

    def by_type(self, name: str, suite: str) -> dict[str, float]:
        """Return the share of a suite's instructions that were followed, by type."""
        self.scores(name, suite)
        checkpoint = self.session.registered(self.session.resolve(name))
        assert checkpoint.id is not None
        rows = queries.evaluations(self.session.tracker.database, checkpoint.id)
        details = next(row.details for row in rows if row.suite == suite)
        found = {key.removeprefix("id/"): score for key, score in details.items() if key.startswith("id/")}
        return {kind: float(score["value"]) for kind, score in sorted(found.items())}

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

    def value(self, name: str, suite: str) -> float:
        """Return one score's value."""
        return self.scores(name, suite)[suite].value

    def loaded(self, name: str) -> tuple[Loaded, Engine]:
        """Load a frozen checkpoint and its sampling engine."""
        config = build(EvalConfig, {"seed": self.seed}, self.session.recipe)
        loaded = load_frozen(self.session.verified(self.session.resolve(name)), config)
        return loaded, TransformersEngine(loaded, token_budget=config.rollout_tokens)

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
        prompts = sample(self.asked(kind, rest), items)
        return evaluate_instructions(
            loaded.chat, engine, prompts, max_new_tokens=tokens, window=loaded.max_length, seed=self.seed, suite=suite
        )

    def own_prompts(self) -> PromptSplits:
        """Return the model's own prompts by split."""
        return behaviour_prompts(self.session.base.path, None, 0)

    def asked(self, kind: str, rest: str = "") -> Sequence[Prompt]:
        """Return the prompts of a suite: the model's own, a skill's, or a split (default: test) of a study's set."""
        base = self.session.base.path
        if kind == INSTRUCTIONS:
            prompts = [p for p in self.own_prompts().test if p.checks]
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
                record_result(session, stage.recorder, checkpoint, result)
        return {suite: result.score for suite, result in zip(suites, results, strict=True)}
