"""Tokens sampled until a degraded student follows instructions nearly as well as before, against TRL's trainer.

Run: python -m benchmarks.until [--write]

The student is the miniature after a hard mid-training on one corpus; the teacher is the miniature itself. Both sides
get the same student, the same training prompts from the same pool, as many a batch, answers of the same length at
most, AdamW at a rate that warms up and falls to zero over the run, and the reverse KL over the whole vocabulary.

A run has a budget of batches and is measured once, at its end, on the same test prompts by the same evaluator,
greedily; tokens of the evaluation are not counted. Budgets are doubled until the mean score of a side is at 0.99 of
base; where the curve of score over the logarithm of the tokens crosses it is what the side needs. (Reading a single
run as it goes would reward lucky looks: one run's score moves by a point from look to look at a constant rate.) The
rate of each side is the best of several at one budget in the middle; the budgets are then run with several seeds.

What ours does besides are settings that any user has, told below. Several updates on one batch of answers
(--batch-epochs) stay exact here: a reverse KL over the whole vocabulary is compared at the states the answers visit,
whichever weights sampled them; only the states grow a little old. TRL's trainer samples for each update. Half of the
prompts are drawn by what the student's newest answers missed (--focus). Both were chosen on the development prompts.

Runs are kept under --cache, and a run that is done there is not run again.
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
from evals.ifeval import evaluate_instructions
from evals.suites import sample
from pipelines.mixing import choose
from pipelines.models import engine_of
from pipelines.sources import BEHAVIOUR, Pools, Source
from pipelines.stage import settings_of
from recovery.config import DistillConfig, build, model_recipe
from recovery.loading import load_model
from recovery.miniature import materialise, write_corpora
from recovery.objectives.estimator import Estimator
from recovery.prompts import behaviour_prompts
from recovery.rollouts import TransformersEngine
from recovery.teachers import Frozen
from recovery.training import train
from recovery.types import Prompt
from recovery.workspace import write_atomically

GOAL = 0.8
UNTIL = 0.99
# Deep enough that there is much to bring back: it leaves about three quarters of base.
HARD = ("--lr", "2e-3", "--epochs", "8")
# Our settings besides those both sides share, and the rates tried for each side.
LEVERS: dict[str, Any] = {"batch_epochs": 4, "focus": 0.5}
RATES = (3e-4, 6e-4, 1.2e-3, 2.4e-3)
SEARCHED = 32  # the budget at which rates are tried, in batches
WARM_UP = 1 / 16  # of a run


@dataclass(frozen=True)
class Setting:
    """What all runs share; ``prompts`` is those of a batch, ``questions`` the test prompts."""

    base: str
    student: str
    prompts: int
    new_tokens: int
    questions: int

    def train(self) -> list[Prompt]:
        """Prompts with one request each: of several, one side would answer only the last."""
        return [p for p in behaviour_prompts(Path(self.base)).train if _single(p)]

    def test(self) -> list[Prompt]:
        """What is asked at the end of a run."""
        return sample([p for p in behaviour_prompts(Path(self.base)).test if p.checks], self.questions)


@dataclass(frozen=True)
class Run:
    """One run of one side; ``budget`` is in batches."""

    side: str
    budget: int
    rate: float
    seed: int

    def file(self, cache: Path, setting: Setting) -> Path:
        """Where its end is kept: named by all it depends on."""
        levers = LEVERS if self.side == "ours" else {}
        told = json.dumps([dataclasses.asdict(setting), levers, HARD, WARM_UP], sort_keys=True)
        key = hashlib.sha256(told.encode()).hexdigest()[:8]
        return cache / f"{self.side}-{self.budget}-{self.rate:g}-{self.seed}-{key}.json"


@dataclass(frozen=True)
class End:
    """What a run came to: tokens sampled, and the share of test prompts followed."""

    tokens: float
    value: float


def score(model: str | Path, weights: Iterable[torch.Tensor] | None, setting: Setting) -> float:
    """Share of the test prompts all of whose instructions are followed strictly, by a model or by other weights."""
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
    """This project's loop with a user's settings."""
    shared = {
        "prompts_per_step": setting.prompts, "samples_per_prompt": 1, "max_new_tokens": setting.new_tokens,
        "steps": run.budget * LEVERS.get("batch_epochs", 1), "warmup": WARM_UP, "schedule": "linear",
        "min_lr_ratio": 0.0, "until": 0.0, "lr": run.rate, "seed": run.seed,
    }  # fmt: skip
    config = build(DistillConfig, shared | LEVERS, model_recipe(Path(setting.base)))
    student = load_model(setting.student, tuning="full")
    estimator = Estimator({BEHAVIOUR: Frozen(load_model(setting.base))}, config.dials())
    sampled: list[float] = []
    with engine_of(student, config) as engine:
        train(
            student,
            Source(config, student, engine, Pools(setting.train())),
            estimator,
            settings_of(config, config.steps, run.rate),
            log=lambda _step, metrics: sampled.append(metrics["tokens_sampled"]),
        )
    return End(sum(sampled), score(setting.student, student.model.parameters(), setting))


def run_trl(setting: Setting, run: Run) -> End:
    """TRL's trainer, with its own settings but for the rate."""
    prompts, sampled = setting.train(), []
    batches = [choose(prompts, setting.prompts, batch, run.seed, stream=21) for batch in range(1, run.budget + 1)]
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
    """The miniature and the degraded student (made once), and the scores of both on the test prompts."""
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
    """The end of a run, from the cache or from a process of its own."""
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
    """The runs of a side: the rates at one budget, then budgets at the best of them until the goal."""
    searched = [Run(side, SEARCHED, rate, 0) for rate in RATES]
    runs = {run: carry_out(run, setting, options) for run in searched}
    rate = max(searched, key=lambda run: runs[run].value).rate
    budget = options.first
    while budget <= options.cap:
        mine = [Run(side, budget, rate, seed) for seed in range(options.seeds)]
        runs |= {run: carry_out(run, setting, options) for run in mine if run not in runs}
        if statistics.mean(runs[run].value for run in mine) >= goal:
            break
        budget *= 2
    return runs


def best_rate(runs: dict[Run, End], side: str) -> float:
    """The rate with the highest score at the budget where rates are tried."""
    mine = [run for run in runs if run.side == side and run.budget == SEARCHED and run.seed == 0]
    return max(mine, key=lambda run: runs[run].value).rate


def curve(runs: dict[Run, End], side: str) -> list[tuple[float, float, float]]:
    """(tokens, score, its standard deviation) of each budget at the side's best rate, means over the seeds."""
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
    """Tokens at which the curve crosses the goal, linear in their logarithm; None where it does not reach it.

    A curve that begins above the goal needs at most its first tokens: these are returned.
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
    """The curves, what each side needs, and the ratio."""
    goal, lines, tokens = UNTIL * base, [], {}
    rows = []
    for side in sorted({run.side for run in runs}):
        points = curve(runs, side)
        tokens[side] = needed(points, goal)
        rate = f"{best_rate(runs, side):g}"
        rows += [(side, rate, f"{t:,.0f}", f"{v / base:.4f}", f"{s / base:.4f}") for t, v, s in points]
        told = "not reached" if tokens[side] is None else f"{tokens[side]:,.0f} tokens"
        lines.append(f"- {side}: {told}, rate {rate}")
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
    """The ratio in words; a side that did not reach the goal needs more than the most that was tried."""
    if ours is None:
        return f"Ours did not reach it within {most:,.0f} tokens: MISSED."
    ratio = ours / (theirs if theirs is not None else most)
    words = f"{ratio:.2f}" if theirs is not None else f"less than {ratio:.2f} (TRL did not reach it)"
    return f"Our tokens over TRL's: {words}; goal {GOAL}: {'met' if ratio <= GOAL else 'MISSED'}."


def _single(prompt: Prompt) -> bool:
    return sum(message["role"] == "user" for message in prompt.messages) == 1


def main() -> int:
    """Run what is missing, print, write where asked; status 1 where the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "recovery" / "benchmarks"
    parser.add_argument("--cache", type=Path, default=usual, help="where runs are kept  [default: %(default)s]")
    parser.add_argument("--prompts", type=int, default=32, help="prompts a batch")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--questions", type=int, default=1000, help="test prompts")
    parser.add_argument("--first", type=int, default=16, help="the smallest budget, in batches")
    parser.add_argument("--cap", type=int, default=128, help="the largest")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each budget")
    parser.add_argument("--side", choices=sorted(SIDES), help="only this side's runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/until.md and .json")
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
    facts = _report.machine() | {"threads": str(options.threads)}
    setting, base, degraded = prepare(options)
    runs: dict[Run, End] = {}
    for side in [options.side] if options.side else ["ours", "TRL"] if _peer.FOUND else ["ours"]:
        runs |= climb(side, setting, UNTIL * base, options)
    body = markdown(runs, base, degraded)
    print(body)
    if options.write:
        levers = ", ".join(f"{name} = {value}" for name, value in LEVERS.items())
        size = (
            f"{options.prompts} prompts a batch, at most {options.new_tokens} new tokens, {options.questions} test "
            f"prompts, {options.seeds} seeds. Ours besides: {levers}."
        )
        data = {"base": base, "student": degraded, "runs": [{**vars(run), **vars(end)} for run, end in runs.items()]}
        note = (__doc__ or "").split("\n\n", 2)[2]
        print(_report.write("until", "Tokens until recovered", f"{note}\n{size}\n\n{body}", facts, data))
    return int("MISSED" in body)


if __name__ == "__main__":
    sys.exit(main())
