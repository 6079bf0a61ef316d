"""Tokens sampled until a degraded student follows instructions as well as before, against TRL's trainer.

Run: python -m benchmarks.until [--write]

The student is the miniature after a hard mid-training on one corpus; the teacher is the miniature itself. Both sides
get the same student, the same training prompts in the same order, as many prompts a batch, answers of the same length
at most, AdamW at a constant rate after a warm-up, and the reverse KL over the whole vocabulary. Each is run at several
learning rates; the best rate of each is then run with further seeds. After every few batches the weights are measured
on the same test prompts by the same evaluator, greedily; tokens of the evaluation are not counted. A run has reached
the goal where two looks in a row are at 0.99 of base or above; its tokens are read off between the first of them and
the look before. A run that has not reached it by the cap counts with the cap.

What ours does besides are settings that any user has: several updates on one batch of answers (--batch-epochs). A
reverse KL over the whole vocabulary is compared at the states the answers visit, so it stays exact when the weights
have moved on; only the states grow a little old, which is what limits the epochs. TRL's trainer samples for each
update.

Runs are kept under --cache, line by line, and a run that is done there is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
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
from transformers import TrainerCallback

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

GOAL = 0.8
UNTIL = 0.99
# Deep enough that there is much to bring back: it leaves about six tenths of base.
HARD = ("--lr", "2.5e-3", "--epochs", "8")
# Our settings besides those both sides share, and the rates tried for each side.
LEVERS: dict[str, Any] = {"batch_epochs": 4}
RATES = {"ours": (3e-4, 6e-4, 1.2e-3), "TRL": (3e-4, 6e-4, 1.2e-3)}
WARM_UP = 4  # batches


@dataclass(frozen=True)
class Setting:
    """What all runs share. ``every`` and ``cap`` are in batches of ``prompts`` answers."""

    base: str
    student: str
    prompts: int
    new_tokens: int
    questions: int
    every: int
    cap: int

    def train(self) -> list[Prompt]:
        """Prompts with one request each: of several, one side would answer only the last."""
        return [p for p in behaviour_prompts(Path(self.base)).train if _single(p)]

    def test(self) -> list[Prompt]:
        """What every look asks."""
        return sample([p for p in behaviour_prompts(Path(self.base)).test if p.checks], self.questions)


@dataclass(frozen=True)
class Run:
    """One run of one side."""

    side: str
    rate: float
    seed: int

    def file(self, cache: Path, setting: Setting) -> Path:
        """Where its looks are kept: named by all they depend on."""
        levers = LEVERS if self.side == "ours" else {}
        told = json.dumps([dataclasses.asdict(setting), levers, HARD], sort_keys=True)
        key = hashlib.sha256(told.encode()).hexdigest()[:8]
        return cache / f"{self.side}-{self.rate:g}-{self.seed}-{key}.jsonl"


@dataclass
class Looks:
    """What a run has reached by which number of tokens; every look is a line of its file."""

    setting: Setting
    out: Path
    goal: float
    found: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked = self.setting.test()
        self.copy = load_model(self.setting.student)
        self.engine = TransformersEngine(self.copy)
        self.out.write_text("", encoding="utf-8")

    def take(self, batch: int, tokens: float, weights: Iterable[torch.Tensor] | None = None) -> bool:
        """Measure the weights in training (or the student as it started); whether the run is over."""
        with torch.no_grad():
            for ours, theirs in zip(self.copy.model.parameters(), weights or (), strict=weights is not None):
                ours.copy_(theirs)
        value = score(self.copy, self.engine, self.asked, self.setting.new_tokens)
        look = {"batch": batch, "tokens": tokens, "value": value, "goal": self.goal}
        self.found.append(look)
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(look) + "\n")
        return reached(self.found) is not None or batch >= self.setting.cap


def score(loaded: Any, engine: TransformersEngine, asked: Sequence[Prompt], new_tokens: int) -> float:
    """Share of the prompts all of whose instructions were followed, strictly."""
    found = evaluate_instructions(loaded.chat, engine, asked, max_new_tokens=new_tokens, window=loaded.max_length)
    return found.score.value


def reached(looks: Sequence[dict[str, float]]) -> float | None:
    """Tokens at which the goal was crossed, between two looks, where it was held for two in a row."""
    for before, first, second in zip(looks, looks[1:], looks[2:], strict=False):
        if min(first["value"], second["value"]) >= first["goal"]:
            share = (first["goal"] - before["value"]) / max(first["value"] - before["value"], 1e-9)
            return before["tokens"] + min(1.0, max(0.0, share)) * (first["tokens"] - before["tokens"])
    return None


# --- the two sides --------------------------------------------------------------------------------------------


def run_ours(setting: Setting, run: Run, looks: Looks) -> None:
    """This project's loop with a user's settings."""
    epochs = LEVERS.get("batch_epochs", 1)
    shared = {
        "prompts_per_step": setting.prompts, "samples_per_prompt": 1, "max_new_tokens": setting.new_tokens,
        "steps": setting.cap * epochs, "warmup": WARM_UP / setting.cap, "until": 0.0,
        "lr": run.rate, "seed": run.seed,
    }  # fmt: skip
    config = build(DistillConfig, shared | LEVERS, model_recipe(Path(setting.base)))
    student = load_model(setting.student, tuning="full")
    estimator = Estimator({BEHAVIOUR: Frozen(load_model(setting.base))}, config.dials())
    tokens = 0.0

    def log(_step: int, metrics: dict[str, float]) -> None:
        nonlocal tokens
        tokens += metrics["tokens_sampled"]

    def look(step: int) -> str | None:
        if step % (epochs * setting.every):
            return None
        return "over" if looks.take(step // epochs, tokens, student.model.parameters()) else None

    looks.take(0, 0.0)
    with engine_of(student, config) as engine:
        source = Source(config, student, engine, Pools(setting.train()))
        train(student, source, estimator, settings_of(config, config.steps, "full"), log=log, after_step=look)


def run_trl(setting: Setting, run: Run, looks: Looks) -> None:
    """TRL's trainer, with its own optimizer settings but for the rate."""
    prompts = setting.train()
    tokens = 0.0

    class Look(TrainerCallback):  # type: ignore[misc]
        """Counts what was sampled, and looks now and then."""

        def on_step_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
            nonlocal tokens
            tokens += _peer.mean_length(trainer) * setting.prompts
            if state.global_step % setting.every == 0:
                over = looks.take(state.global_step, tokens, trainer.model.parameters())
                control.should_training_stop = control.should_training_stop or over

    batches = [choose(prompts, setting.prompts, step, run.seed, stream=21) for step in range(1, setting.cap + 1)]
    trainer = _peer.trainer(
        setting.student,
        setting.base,
        [prompt.messages for batch in batches for prompt in batch],
        Look(),
        per_device_train_batch_size=setting.prompts,
        max_steps=setting.cap,
        max_completion_length=setting.new_tokens,
        learning_rate=run.rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=WARM_UP,
        seed=run.seed,
    )
    looks.take(0, 0.0)
    trainer.train()


SIDES: dict[str, Callable[[Setting, Run, Looks], None]] = {"ours": run_ours, "TRL": run_trl}


# --- the parent -------------------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> tuple[Setting, float]:
    """The miniature, the degraded student (made once), and the score of base on the test prompts."""
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
    shape = (options.prompts, options.new_tokens, options.questions, options.every, options.cap)
    setting = Setting(str(base), str(student), *shape)
    known = cache / f"base-{options.questions}-{options.new_tokens}.json"
    if not known.is_file():
        loaded = load_model(base)
        value = score(loaded, TransformersEngine(loaded), setting.test(), options.new_tokens)
        known.write_text(json.dumps(value), encoding="utf-8")
    return setting, float(json.loads(known.read_text(encoding="utf-8")))


def done(run: Run, cache: Path, setting: Setting) -> list[dict[str, float]] | None:
    """The looks of a run that came to its end."""
    path = run.file(cache, setting)
    if not path.is_file():
        return None
    looks = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    over = bool(looks) and (reached(looks) is not None or looks[-1]["batch"] >= setting.cap)
    return looks if over else None


def carry_out(run: Run, setting: Setting, base: float, options: argparse.Namespace) -> list[dict[str, float]]:
    """The looks of a run, from the cache or from a process of its own."""
    looks = done(run, options.cache, setting)
    if looks is None:
        job = json.dumps({"setting": vars(setting), "run": vars(run), "goal": UNTIL * base})
        command = [sys.executable, "-m", "benchmarks.until", "--cache", str(options.cache), "--job", job]
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
        with (options.cache / f"{run.side}.log").open("a", encoding="utf-8") as log:
            subprocess.run(command, check=True, env=environment, stdout=log, stderr=log)
        looks = done(run, options.cache, setting)
    assert looks is not None
    print(f"{run.side}, rate {run.rate:g}, seed {run.seed}: {tokens_of(looks):,.0f} tokens, "
          f"best {max(look['value'] for look in looks):.3f}", flush=True)  # fmt: skip
    return looks


def tokens_of(looks: Sequence[dict[str, float]]) -> float:
    """Tokens until the goal, or until the cap."""
    found = reached(looks)
    return looks[-1]["tokens"] if found is None else found


def best_rate(runs: dict[Run, list[dict[str, float]]], side: str) -> float:
    """The rate that needed the fewest tokens at the first seed; where none reached it, the highest score."""
    mine = {run: looks for run, looks in runs.items() if run.side == side and run.seed == 0}
    return min(
        mine, key=lambda r: (reached(mine[r]) is None, tokens_of(mine[r]), -max(look["value"] for look in mine[r]))
    ).rate


def ratio(runs: dict[Run, list[dict[str, float]]]) -> float:
    """Our tokens over TRL's: medians over the seeds at each side's best rate."""
    middles = {
        side: statistics.median(
            tokens_of(looks) for run, looks in runs.items() if run.side == side and run.rate == best_rate(runs, side)
        )
        for side in ("ours", "TRL")
    }
    return middles["ours"] / middles["TRL"]


def markdown(runs: dict[Run, list[dict[str, float]]], base: float) -> str:
    """The table of runs, and the ratio."""
    rows = []
    for run, looks in runs.items():
        found = reached(looks)
        rows.append(
            (
                run.side,
                f"{run.rate:g}",
                run.seed,
                f"{looks[0]['value'] / base:.3f}",
                "not reached" if found is None else f"{found:,.0f}",
                f"{looks[-1]['batch']:.0f}",
                f"{max(look['value'] for look in looks) / base:.3f}",
            )
        )
    header = ("side", "rate", "seed", "student at first", f"tokens until {UNTIL}", "batches", "highest")
    lines = [_report.table(header, rows), "", f"Base follows {base:.3f} of the prompts; shares are relative to it.", ""]
    sides = {run.side for run in runs}
    for side in sorted(sides):
        lines.append(f"Best rate of {side}: {best_rate(runs, side):g}.")
    if len(sides) == 2:
        found = ratio(runs)
        word = "met" if found <= GOAL else "MISSED"
        lines += ["", f"Our tokens over TRL's (medians of the seeds, best rates): {found:.2f}; goal {GOAL}: {word}."]
    return "\n".join(lines)


def _single(prompt: Prompt) -> bool:
    return sum(message["role"] == "user" for message in prompt.messages) == 1


def main() -> int:
    """Run what is missing, print, write where asked; status 1 where the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "recovery" / "benchmarks"
    parser.add_argument("--cache", type=Path, default=usual, help="where runs are kept  [default: %(default)s]")
    parser.add_argument("--prompts", type=int, default=32, help="prompts a batch")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--questions", type=int, default=300, help="test prompts of a look")
    parser.add_argument("--every", type=int, default=4, help="batches between looks")
    parser.add_argument("--cap", type=int, default=120, help="batches at most")
    parser.add_argument("--seeds", type=int, default=3, help="seeds at the best rate of each side")
    parser.add_argument("--side", choices=sorted(SIDES), help="only this side's runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/until.md and .json")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.job:
        job = json.loads(options.job)
        setting, run = Setting(**job["setting"]), Run(**job["run"])
        SIDES[run.side](setting, run, Looks(setting, run.file(options.cache, setting), job["goal"]))
        return 0
    options.cache.mkdir(parents=True, exist_ok=True)
    facts = _report.machine() | {"threads": str(options.threads)}
    setting, base = prepare(options)
    runs: dict[Run, list[dict[str, float]]] = {}
    for side in [options.side] if options.side else ["ours", "TRL"] if _peer.FOUND else ["ours"]:
        for run in [Run(side, rate, 0) for rate in RATES[side]]:
            runs[run] = carry_out(run, setting, base, options)
        for run in [Run(side, best_rate(runs, side), seed) for seed in range(1, options.seeds)]:
            runs[run] = carry_out(run, setting, base, options)
    body = markdown(runs, base)
    print(body)
    if options.write:
        size = (f"{options.prompts} prompts a batch, at most {options.new_tokens} new tokens, a look at "
                f"{options.questions} prompts every {options.every} batches, at most {options.cap} batches. Ours "
                f"besides: {', '.join(f'{k} = {v}' for k, v in LEVERS.items())}.")  # fmt: skip
        data = {"base": base, "runs": [{**vars(run), "looks": looks} for run, looks in runs.items()]}
        note = (__doc__ or "").split("\n\n", 2)[2]
        print(_report.write("until", "Tokens until recovered", f"{note}\n{size}\n\n{body}", facts, data))
    return int("MISSED" in body)


if __name__ == "__main__":
    sys.exit(main())
