"""Comparison of methods: the same start, the same tokens, several seeds, one table.

Each run of a seed has a name. Everything is recorded in the tracker: a registered name is not run again, and a run that
was stopped goes on from its last saved state, so whatever calls the runner resumes by being called again.

The cost of a checkpoint's training is counted in tokens, operations and seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db import queries, records
from evals import knowledge
from evals.instruction_following import evaluate_instructions
from evals.probes import load_probes
from evals.statistics import spread
from evals.suites import sample, sample_probes
from pipelines.cycle_plan import config_of
from pipelines.data.corpus_reading import gather
from pipelines.data.corpus_snapshot import load_snapshots
from pipelines.distillation.early_stopping import Observer
from pipelines.distillation.inputs import check_inputs
from pipelines.distillation.resolve import resolve
from pipelines.distillation.stage import distill
from pipelines.evaluation.plan import GENERAL
from pipelines.evaluation.stored_results import newest, record_result
from pipelines.experiments.arm_cycle import matching_stages, stopped
from pipelines.midtraining.material import open_cycle
from pipelines.midtraining.stage import midtrain
from pipelines.planning.activations import flops, parameters
from pipelines.runtime.engines import local_engine
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from pipelines.runtime.stage import running
from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, build
from recovery.data.prompt_records import prompts_hash
from recovery.data.prompts import PromptSplits, behaviour_prompts
from recovery.errors import UsageError
from recovery.methods import METHODS, method_named
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Engine
from recovery.types import Prompt, Score, SuiteResult
from recovery.workspace import Checkpoint, Workspace

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
        checkpoint = next((c for c in self.session.registry.all() if c.name == name), None)
        return checkpoint if checkpoint is not None and stage_of(self.session, name).status == "finished" else None

    def midtrained(
        self, name: str, docs: Path, *, student: str = "base", cycle: int = 1, **settings: Any
    ) -> Checkpoint:
        """Run a mid-training under a name, or the rest of it, unless it is done."""
        if (done := self.known(name)) is not None:
            return done
        values = settings | {"docs": docs, "student": student, "seed": self.seed}
        config = build(MidtrainConfig, values, self.session.recipe)
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
        values = {"until": 0.0, "plateau": 0, "alarm": False, **settings}
        values |= {"method": method, "student": student, "seed": self.seed}
        if self.session.resolve(student).tuning == "lora":
            values["tuning"] = "lora"  # keep training the adapter, whatever the model's recipe recommends
        return build(DistillConfig, values, self.session.recipe)

    def _stopped(self, kind: str, config: Any, cycle: int, name: str) -> records.Stage | None:
        """Return the stage that an earlier call began under a name and did not finish, if there is one."""
        student = self.session.registered(self.session.resolve(config.student))
        return stopped(self.session, matching_stages(self.session, kind, config, cycle, student), name)

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
        known = {
            suite: Score(row.value or 0.0, row.stderr or 0.0, row.n)
            for suite, row in newest(self.session.tracker.database, checkpoint.id).items()
        }
        missing = [suite for suite in suites if suite not in known]
        if missing:
            known |= self._measure(checkpoint, missing)
        return {suite: known[suite] for suite in suites}

    def value(self, name: str, suite: str) -> float:
        """Return one score's value."""
        return self.scores(name, suite)[suite].value

    def available(self, suites: Iterable[str]) -> list[str]:
        """Return those of the suites that this model and these documents have items for."""
        corpora = load_snapshots(self.session.workspace, self.session.cycles())
        asked = {probe.form for corpus in corpora.values() for probe in corpus.probes}
        has_items = {
            KNOWLEDGE: "question" in asked,
            STORED: "choice" in asked,
            RETAINED: (self.session.base.path / GENERAL).is_file(),
        }
        return [suite for suite in suites if has_items.get(suite.partition("/")[0], True)]

    def loaded(self, name: str) -> tuple[Loaded, Engine]:
        """Load a frozen checkpoint and its sampling engine."""
        config = build(EvalConfig, {"seed": self.seed}, self.session.recipe)
        loaded = load_frozen(self.session.verified(self.session.resolve(name)), config)
        return loaded, local_engine(loaded, config)

    def ask(self, loaded: Loaded, engine: Engine, suite: str, most: int | None = None) -> SuiteResult:
        """Evaluate a loaded model on one suite, on ``most`` items of it at most."""
        kind, _, number = suite.partition("/")
        items = min(self.items, most or self.items)
        if kind in (KNOWLEDGE, STORED):
            probes = load_snapshots(self.session.workspace, [int(number)])[int(number)].probes
            kept = sample_probes(
                [p for p in probes if p.form == ("question" if kind == KNOWLEDGE else "choice")], items
            )
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
        """Return the prompts of a suite of instructions: for any suite, the model's own test prompts with checks."""
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


SUITES = {"instructions": INSTRUCTIONS, "asked": f"{KNOWLEDGE}/1", "stored": f"{STORED}/1", "general": RETAINED}
START = "midtrained"
# More than any method needs for its tokens: the token budget ends each run.
STEPS = 1000


@dataclass(frozen=True)
class Row:
    """One method over the seeds: its scores by name, the cost of each seed, and why its runs stopped."""

    method: str
    scores: Mapping[str, tuple[float, ...]]
    spent: tuple[Cost, ...]
    stopped: tuple[str, ...]


def compare(
    workspace: Workspace,
    methods: Sequence[str],
    docs: Path,
    seeds: Sequence[int],
    *,
    max_tokens: int,
    settings: Mapping[str, Any],
    model: str | None,
    display: Display,
) -> list[Row]:
    """Mid-train on ``docs``, then train with each method from there, for each seed.

    Finished runs from the same documents are not repeated.

    Every method gets the same ``settings`` and stops when it has sampled, scored and trained ``max_tokens``; the
    learning rate is constant from the first step on: the last one is not known in advance, and a warm-up of some steps
    would be most of one method's run and little of another's. The first rows are the clean model and the mid-trained
    one. Raises UsageError, before anything is trained, for an unknown method or one that the model's prompts do not
    suit.
    """
    settings = {"steps": STEPS, "schedule": "constant", "warmup": 0.0} | dict(settings)
    methods = tuple(dict.fromkeys(methods))  # one that is named twice has no more seeds
    own = {method: _own(method) | settings | {"max_tokens": max_tokens} for method in methods}
    for method in methods:
        build(DistillConfig, own[method] | {"method": method})
    model = model or workspace.settings().get("model")
    group = _group(docs, max_tokens, settings)
    runs_of: dict[str, list[tuple[dict[str, float], Cost | None, str]]] = {}
    for seed in seeds:
        home = workspace.folder / "comparisons" / group / f"seed-{seed}"
        with Session.open(
            Workspace(home, str(workspace.database), workspace.report_to),
            model=model,
            display=display,
            experiment=f"compare/{group}/seed-{seed}",
            purpose="recover compare",
        ) as session:
            runner = ExperimentRunner(session, seed)
            for method in methods:  # what one lacks would otherwise be found after hours of the others
                runner.check(method, **own[method])
            runner.midtrained(START, docs)
            runs_of.setdefault("base", []).append((_scores(runner, "base"), None, ""))
            runs_of.setdefault(START, []).append((_scores(runner, START), runner.cost_of(START), ""))
            for method in methods:
                runner.trained(method, START, method, **own[method])
                why = str(runner.details(method)["stopped"])
                runs_of.setdefault(method, []).append((_scores(runner, method), runner.cost_of(method), why))
    rows = []
    for name, runs in runs_of.items():
        scores = {suite: tuple(run[0][suite] for run in runs) for suite in runs[0][0]}
        spent = tuple(run[1] for run in runs if run[1] is not None)
        rows.append(Row(name, scores, spent, tuple(run[2] for run in runs)))
    return rows


def _group(docs: Path, max_tokens: int, settings: Mapping[str, Any]) -> str:
    """Return the name of the folder of a comparison. Other documents, or files that come with them, and other settings
    get another one, so that results are never mixed.
    """
    own = gather(docs, 1, held_out=0.0, seed=0)
    texts = [(text.text, text.question) for text in own.texts]
    asked = [own.hash, own.probes_hash, prompts_hash(own.questions), texts, max_tokens, sorted(settings.items())]
    return hashlib.sha256(json.dumps(asked, default=str).encode()).hexdigest()[:8]


def _own(method: str) -> dict[str, Any]:
    """Return a method's own settings: imitation uses base's completions of the prompts that the others get."""
    return {"answers": "teacher"} if METHODS[method_named(method).name].settings.get("answers") == "given" else {}


def _scores(runner: ExperimentRunner, name: str) -> dict[str, float]:
    scores = runner.scores(name, *runner.available(SUITES.values()))
    return {short: scores[suite].value for short, suite in SUITES.items() if suite in scores}


def text(rows: Sequence[Row], seeds: Sequence[int]) -> str:
    """Return the comparison as a table: mean ± standard deviation over the seeds."""
    names = list(rows[0].scores)
    lines = [f"{'':<20}" + "".join(f"{name:>16}" for name in names) + f"{'tokens':>12}{'FLOPs':>10}{'seconds':>9}"]
    for row in rows:
        shown = ("{:.3f} ± {:.3f}".format(*spread(row.scores[name])) for name in names)
        cells = "".join(f"{cell:>16}" for cell in shown)
        lines.append(f"{row.method:<20}{cells}{_cost(row.spent)}")
    lines.append(f"seeds {', '.join(map(str, seeds))}; mean ± standard deviation; tokens sampled, scored and trained")
    return "\n".join(lines)


def as_json(rows: Sequence[Row], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the comparison as JSON types."""
    return {
        "seeds": list(seeds),
        "rows": [
            {
                "method": row.method,
                "scores": {
                    name: dict(zip(("mean", "spread"), spread(values), strict=True)) | {"by_seed": list(values)}
                    for name, values in row.scores.items()
                },
                "spent": [vars(spent) for spent in row.spent],
                "stopped": list(row.stopped),
            }
            for row in rows
        ],
    }


def _cost(spent: Sequence[Cost]) -> str:
    if not spent:
        return ""
    tokens = sum(s.sampled + s.scored + s.trained for s in spent) / len(spent)
    operations = sum(s.flops for s in spent) / len(spent)
    return f"{tokens:>12,.0f}{operations:>10.2g}{sum(s.seconds for s in spent) / len(spent):>9.0f}"


@dataclass(frozen=True)
class Cost:
    """The cost of a run: tokens sampled, scored and trained; floating-point operations; seconds."""

    sampled: int
    scored: int
    trained: int
    flops: float
    seconds: float


def cost_of(session: Session, name: str) -> Cost:
    """Return the cost of the stage that made a checkpoint, without the stages before it.

    Raises UsageError if no stage of the session made it.
    """
    stage = stage_of(session, name)
    count = parameters(session.base.weights)
    tokens = {"sampled": stage.tokens_sampled, "scored": stage.tokens_scored, "trained": stage.tokens_trained}
    return Cost(**tokens, flops=flops(count, **tokens), seconds=stage.wall_seconds)


def stage_of(session: Session, name: str, experiment: str | None = None) -> records.Stage:
    """Return the stage that made a checkpoint, of this session or of another experiment in its tracker.

    Raises UsageError if no stage made it.
    """
    database, number = session.tracker.database, session.experiment_id
    if experiment is not None:
        other = queries.experiment(database, experiment)
        number = 0 if other is None else other.id
    made = queries.checkpoint(database, number, name)
    stage = queries.stage(database, made.stage_id) if made and made.stage_id else None
    if stage is None:
        where = "this workspace" if experiment is None else f"the experiment {experiment}"
        raise UsageError(f"no stage of {where} has made {name}: neither its cost nor its settings are known")
    return stage
