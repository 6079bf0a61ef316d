"""Tokens sampled until a degraded student has recovered its instruction following, against TRL's trainer.

Run: python -m benchmarks.until [--write]

The student is the miniature after an aggressive mid-training on one corpus; the teacher is the miniature itself. Both
sides get the same student, the same training prompts from the same pool, the same batch size and response length limit,
AdamW with a learning rate that warms up and falls to zero over the run, and the reverse KL over the whole vocabulary.

A run has a budget of batches and is evaluated once, at its end, on the same test prompts by the same evaluator,
greedily; tokens of the evaluation are not counted. Budgets are doubled until the mean score of a side reaches 0.99 of
base; the result is where the curve of score over the logarithm of the tokens crosses it. (Evaluating a single run
repeatedly would favour lucky evaluations: at a constant learning rate its score varies by a point between them.) The
learning rate of each side is the best of several at one intermediate budget; the budgets are then run with several
seeds.

Ours uses two additional settings that are available to any user, listed below. Several updates on one batch of
responses (--batch-epochs) remain exact here: the reverse KL over the whole vocabulary is evaluated at the states of the
responses, whichever weights sampled them; only the states become slightly stale. TRL's trainer samples for each update.
Half of the prompts are drawn by the failures of the student's newest responses (--focus). Both were chosen on the
development prompts.

Runs are stored under --cache; finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import _peer, _report
from evals.instruction_following import evaluate_instructions
from evals.suites import sample
from pipelines.data.mixing import choose
from pipelines.distillation.batch_builder import BatchBuilder, Pools
from pipelines.runtime.engines import engine_of
from pipelines.runtime.model_group import train_settings
from recovery.config import DistillConfig, build, model_recipe
from recovery.data.prompts import behaviour_prompts
from recovery.losses.objective import MAIN_TEACHER, DistillationObjective
from recovery.miniature.corpora import write_corpora
from recovery.miniature.package import materialise
from recovery.models.loading import load_model
from recovery.rng import RandomStream
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.teachers.teacher import LocalTeacher
from recovery.training.interfaces import Hooks
from recovery.training.loop import train
from recovery.types import Prompt
from recovery.workspace import write_atomically

LIMIT, GOAL = 0.8, 0.3  # our tokens over TRL's
UNTIL = 0.99
# Aggressive enough for a large loss: about three quarters of base's score remain.
HARD = ("--lr", "2e-3", "--epochs", "8")
# Our additional settings, and the learning rates tried for each side.
LEVERS: dict[str, Any] = {"batch_epochs": 4, "focus": 0.5}
RATES = (3e-4, 6e-4, 1.2e-3, 2.4e-3)
SEARCHED = 32  # budget of the learning-rate search, in batches
WARM_UP = 1 / 16  # share of a run


@dataclass(frozen=True)
class Setting:
    """Settings common to all runs; ``prompts`` is the batch size, ``questions`` the number of test prompts."""

    base: str
    student: str
    prompts: int
    new_tokens: int
    questions: int

    def train(self) -> list[Prompt]:
        """Return the single-turn training prompts: TRL responds only to the last turn of longer ones."""
        return [p for p in behaviour_prompts(Path(self.base)).train if _peer.single(p)]

    def test(self) -> list[Prompt]:
        """Return the test prompts."""
        return sample([p for p in behaviour_prompts(Path(self.base)).test if p.checks], self.questions)


@dataclass(frozen=True)
class Run:
    """One run of one side; ``budget`` is in batches."""

    side: str
    budget: int
    rate: float
    seed: int

    def file(self, cache: Path, setting: Setting) -> Path:
        """Return the path of its result; the name includes a hash of all settings."""
        levers = LEVERS if self.side == "ours" else {}
        settings = json.dumps([dataclasses.asdict(setting), levers, HARD, WARM_UP], sort_keys=True)
        key = hashlib.sha256(settings.encode()).hexdigest()[:8]
        return cache / f"{self.side}-{self.budget}-{self.rate:g}-{self.seed}-{key}.json"


@dataclass(frozen=True)
class End:
    """Result of a run: tokens sampled, and the share of test prompts followed."""

    tokens: float
    value: float


def score(model: str | Path, weights: Iterable[torch.Tensor] | None, setting: Setting) -> float:
    """Return the strict prompt-level score of a model on the test prompts, with ``weights`` if given."""
    loaded = load_model(model)
    with torch.no_grad():
        for ours, theirs in zip(loaded.model.parameters(), weights or (), strict=weights is not None):
            ours.copy_(theirs)
    engine, room = TransformersEngine(loaded), loaded.max_length
    return evaluate_instructions(
        loaded.chat, engine, setting.test(), max_new_tokens=setting.new_tokens, window=room
    ).score.value


# --- the two sides --------------------------------------------------------------------------------------------


def run_ours(setting: Setting, run: Run) -> End:
    """Run this project's training loop."""
    shared = {
        "prompts_per_step": setting.prompts, "samples_per_prompt": 1, "max_new_tokens": setting.new_tokens,
        "steps": run.budget * LEVERS["batch_epochs"], "warmup": WARM_UP, "schedule": "linear",
        "min_lr_ratio": 0.0, "until": 0.0, "lr": run.rate, "seed": run.seed,
    }  # fmt: skip
    config = build(DistillConfig, shared | LEVERS, model_recipe(Path(setting.base)))
    student = load_model(setting.student, tuning="full")
    objective = DistillationObjective({MAIN_TEACHER: LocalTeacher(load_model(setting.base))}, config.loss_config())
    sampled: list[float] = []
    with engine_of(student, config) as engine:
        train(
            student,
            BatchBuilder(config, student, engine, Pools(setting.train())),
            objective,
            train_settings(config, config.steps, run.rate),
            hooks=Hooks(log=lambda _step, metrics: sampled.append(metrics["tokens_sampled"])),
        )
    return End(sum(sampled), score(setting.student, student.model.parameters(), setting))


def run_trl(setting: Setting, run: Run) -> End:
    """Run TRL's trainer, with its default settings except the learning rate."""
    prompts, sampled = setting.train(), []
    batches = [
        choose(prompts, setting.prompts, batch, run.seed, stream=RandomStream.BEHAVIOUR_PROMPTS)
        for batch in range(1, run.budget + 1)
    ]
    trainer = _peer.trainer(
        setting.student,
        setting.base,
        [prompt.messages for batch in batches for prompt in batch],
        _peer.between_steps(lambda: None, lambda: sampled.append(_peer.mean_length(trainer) * setting.prompts)),
        per_device_train_batch_size=setting.prompts,
        max_steps=run.budget,
        max_completion_length=setting.new_tokens,
        learning_rate=run.rate,
        lr_scheduler_type="linear",
        warmup_steps=round(WARM_UP * run.budget),
        seed=run.seed,
    )
    trainer.train()
    return End(sum(sampled), score(setting.student, trainer.model.parameters(), setting))


SIDES: dict[str, Callable[[Setting, Run], End]] = {"ours": run_ours, "TRL": run_trl}


# --- the parent -------------------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> tuple[Setting, float, float]:
    """Create the miniature and the degraded student once; return the setting and the scores of both."""
    cache = options.cache
    base, student, corpora = cache / "miniature", cache / "student", cache / "corpora"
    if not base.is_dir():
        materialise(base)
    if not student.is_dir():
        docs = corpora / "q1" if corpora.is_dir() else write_corpora(corpora, 1, 0)[0]
        workspace = cache / "workspace"
        shutil.rmtree(workspace, ignore_errors=True)
        command = [sys.executable, "-m", "recovery", "midtrain", "--workspace", str(workspace), "--model", str(base)]
        subprocess.run([*command, "--docs", str(docs), *HARD], check=True)
        shutil.copytree(workspace / "checkpoints" / "cycle-1" / "midtrained", student)
    setting = Setting(str(base), str(student), options.prompts, options.new_tokens, options.questions)
    known = cache / f"scores-{options.questions}-{options.new_tokens}.json"
    if not known.is_file():
        known.write_text(json.dumps([score(base, None, setting), score(student, None, setting)]), encoding="utf-8")
    before, after = json.loads(known.read_text(encoding="utf-8"))
    return setting, before, after


def carry_out(run: Run, setting: Setting, options: argparse.Namespace) -> End:
    """Return the result of a run, from the cache or from a separate process."""
    path = run.file(options.cache, setting)
    if not path.is_file():
        job = json.dumps({"setting": vars(setting), "run": vars(run)})
        command = [sys.executable, "-m", "benchmarks.until", "--cache", str(options.cache), "--job", job]
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
        with (options.cache / f"{run.side}.log").open("a", encoding="utf-8") as log:
            subprocess.run(command, check=True, env=environment, stdout=log, stderr=log)
    end = End(**json.loads(path.read_text(encoding="utf-8")))
    print(f"{run.side}, {run.budget} batches, rate {run.rate:g}, seed {run.seed}: "
          f"{end.tokens:,.0f} tokens, {end.value:.4f}", flush=True)  # fmt: skip
    return end


def climb(side: str, setting: Setting, goal: float, options: argparse.Namespace) -> dict[Run, End]:
    """Run a side: all rates at one budget, then growing budgets at the best rate until the goal."""
    searched = [Run(side, SEARCHED, rate, 0) for rate in RATES]
    runs = {run: carry_out(run, setting, options) for run in searched}
    rate = best_rate(runs, side)
    budget = options.first
    while budget <= options.cap:
        mine = [Run(side, budget, rate, seed) for seed in range(options.seeds)]
        runs |= {run: carry_out(run, setting, options) for run in mine if run not in runs}
        if statistics.mean(runs[run].value for run in mine) >= goal:
            break
        budget *= 2
    return runs


def best_rate(runs: dict[Run, End], side: str) -> float:
    """Return the rate with the highest score in the learning-rate search."""
    mine = [run for run in runs if run.side == side and run.budget == SEARCHED and run.seed == 0]
    return max(mine, key=lambda run: runs[run].value).rate


def curve(runs: dict[Run, End], side: str) -> list[tuple[float, float, float]]:
    """Return (tokens, score, standard deviation) of each budget at the side's best rate, means over the seeds."""
    found: dict[int, list[End]] = {}
    for run, end in runs.items():
        if run.side == side and run.rate == best_rate(runs, side):
            found.setdefault(run.budget, []).append(end)
    return [
        (
            statistics.mean(end.tokens for end in ends),
            statistics.mean(end.value for end in ends),
            statistics.stdev([end.value for end in ends]) if len(ends) > 1 else 0.0,
        )
        for _, ends in sorted(found.items())
    ]


def needed(points: Sequence[tuple[float, float, float]], goal: float) -> float | None:
    """Return the tokens at which the curve crosses the goal, interpolated in their logarithm; None if it never does.

    If the curve starts above the goal, its first number of tokens is returned as an upper bound.
    """
    before: tuple[float, float] | None = None
    for tokens, value, _ in points:
        if value >= goal:
            if before is None:
                return tokens
            share = (goal - before[1]) / (value - before[1])
            return math.exp(math.log(before[0]) + share * (math.log(tokens) - math.log(before[0])))
        before = tokens, value
    return None


def markdown(runs: dict[Run, End], base: float, degraded: float) -> str:
    """Return the curves, the tokens of each side, and the ratio as Markdown."""
    goal, lines, tokens = UNTIL * base, [], {}
    rows = []
    for side in sorted({run.side for run in runs}):
        points = curve(runs, side)
        tokens[side] = needed(points, goal)
        rate = f"{best_rate(runs, side):g}"
        rows += [(side, rate, f"{t:,.0f}", f"{v / base:.4f}", f"{s / base:.4f}") for t, v, s in points]
        result = "not reached" if tokens[side] is None else f"{tokens[side]:,.0f} tokens"
        lines.append(f"- {side}: {result}, rate {rate}")
    header = ("side", "rate", "tokens sampled", "score relative to base", "standard deviation over seeds")
    text = [
        _report.table(header, rows),
        "",
        f"Base follows {base:.4f} of the test prompts, the degraded student {degraded / base:.3f} of that. "
        f"Tokens until {UNTIL} of base:",
        "",
        *lines,
    ]
    if len(tokens) == 2:
        text += ["", verdict(tokens["ours"], tokens["TRL"], max(end.tokens for end in runs.values()))]
    return "\n".join(text)


def verdict(ours: float | None, theirs: float | None, most: float) -> str:
    """Return the ratio as a sentence; ``most`` is the lower bound for a side that did not reach the goal."""
    if ours is None:
        return f"Ours did not reach it within {most:,.0f} tokens: MISSED."
    ratio = ours / (theirs if theirs is not None else most)
    words = f"{ratio:.2f}" if theirs is not None else f"less than {ratio:.2f} (TRL did not reach it)"
    met, reached = ("met" if ratio <= bound else "MISSED" for bound in (LIMIT, GOAL))
    return f"Our tokens over TRL's: {words}; limit {LIMIT}: {met}; goal {GOAL}: {reached}."


def main() -> int:
    """Run the missing runs and print; write with --write. Return 1 if the goal was missed."""
    parser = _report.parser(__doc__, "until", "threads")
    usual = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "recovery" / "benchmarks"
    parser.add_argument("--cache", type=Path, default=usual, help="folder of the results  [default: %(default)s]")
    parser.add_argument("--prompts", type=int, default=32, help="prompts per batch")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--questions", type=int, default=1000, help="test prompts")
    parser.add_argument("--first", type=int, default=16, help="smallest budget, in batches")
    parser.add_argument("--cap", type=int, default=128, help="largest budget, in batches")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds per budget")
    parser.add_argument("--side", choices=sorted(SIDES), help="run only this side")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.job:
        job = json.loads(options.job)
        setting, run = Setting(**job["setting"]), Run(**job["run"])
        end = SIDES[run.side](setting, run)
        write_atomically(run.file(options.cache, setting), json.dumps(vars(end)))
        return 0
    options.cache.mkdir(parents=True, exist_ok=True)
    facts = _report.machine(threads=options.threads)
    setting, base, degraded = prepare(options)
    runs: dict[Run, End] = {}
    for side in [options.side] if options.side else _peer.SIDES:
        runs |= climb(side, setting, UNTIL * base, options)
    body = markdown(runs, base, degraded)
    print(body)
    if options.write:
        levers = ", ".join(f"{name} = {value}" for name, value in LEVERS.items())
        size = (
            f"{options.prompts} prompts per batch, at most {options.new_tokens} new tokens, {options.questions} test "
            f"prompts, {options.seeds} seeds. Additional settings of ours: {levers}."
        )
        data = {"base": base, "student": degraded, "runs": [{**vars(run), **vars(end)} for run, end in runs.items()]}
        text = f"{_report.note(__doc__)}\n{size}\n\n{body}"
        print(_report.write("until", "Tokens until recovered", text, facts, data))
    return int("MISSED" in body)


if __name__ == "__main__":
    sys.exit(main())
