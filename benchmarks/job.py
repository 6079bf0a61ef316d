"""One whole job against TRL: documents in, a model that knows them and kept its manners out.

Run: python -m benchmarks.job [--example examples/nextjs] [--scores] [--name job-NAME] [--write]

Ours are the two stages of `recover cycle` with its defaults: mid-training on the documents, their other wordings,
questions and the clean model's own chat, then recovery with two teachers. TRL's are its scripts sft.py and
distillation.py, as its documentation shows them: SFTTrainer on the text of the same documents, then DistillationTrainer
(reverse KL) from the clean model on the same ordinary prompts. Both train all weights, from the same model, on as many
tokens a step, and sample as many prompts a step to the same length. Evaluations are on neither clock.

TRL as its experts would set it up here: rows packed without padding, the largest batches that fit into 24 GiB beside
the system (all rows of a step of mid-training, 16 prompts of a recovery; 32 took over 19 GB), no gradient
checkpointing, products in bfloat16 where the processor has them, the teacher's weights in bfloat16 too, ours'
peak learning rates with warm-up and cosine. Ours has 30% replayed chat, sampled once; in a short run as many answers as
it reads, where a cycle samples 1,000. TRL has no such chat, so that ours samples more.

Each job runs in a process of its own, one after the other, and the order alternates: other load meets both sides. The
time begins when the libraries are imported and ends when the recovered model is stored; memory is counted above the
libraries'.

With --scores each side runs once to the end, ours by the defaults' number of steps, TRL by as many on as many tokens;
both go on after an interruption, and both models are judged by the same rulers. "No worse" is a lower bound of the
difference above -3 points (95%, paired; by page for knowledge).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.trainer_utils import get_last_checkpoint

from benchmarks import _peer, _report
from benchmarks._sides import Turn, take_turns
from db import Database, queries, records
from evals.beyond_constant import single_instructions
from evals.open_book import OPEN_BOOK, gap_closed
from evals.paired_tests import compare, judged
from pipelines.cycle import resume, start_plan
from pipelines.cycle_plan import midtrain_config, new_plan, recovery_config
from pipelines.data.mixing import choose
from pipelines.distillation.stage import distill
from pipelines.evaluation.knowledge_figures import ASKED, ItemReader, knowledge_figures
from pipelines.evaluation.stage import evaluate, measured
from pipelines.evaluation.stored_results import newest
from pipelines.experiments.example import scenario
from pipelines.midtraining.stage import midtrain
from pipelines.planning.activations import Setup
from pipelines.planning.memory import parameters_of
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import CycleConfig, MidtrainConfig, Recipe, build_cycle, model_recipe
from recovery.data.corpus.folder import read_corpus
from recovery.data.prompts import behaviour_prompts
from recovery.disk import user_cache
from recovery.errors import UsageError
from recovery.miniature.corpora import write_corpora
from recovery.miniature.package import materialise
from recovery.models.gguf_files.conversion import converted
from recovery.models.hardware import pick_precision
from recovery.rng import RandomStream
from recovery.types import Message

GOAL, MEMORY_GOAL, MARGIN = 2.5, 0.5, -0.03  # TRL's time over ours, our memory over TRL's, the bound of "no worse"
MOST_PROMPTS = 16  # of a batch of TRL's recovery
PHASES = {"mid-training": "trained", "recovery": "sampled"}  # and the tokens that count in each
Runs = dict[str, list[dict[str, float]]]  # the figures of each run by side


@dataclass(frozen=True)
class Job:
    """Input of both sides. Steps None are the defaults'; ``whole`` runs to the end with evaluations, resumably."""

    model: str
    docs: str
    folder: str
    midtrain_steps: int | None
    distill_steps: int | None
    batch_tokens: int | None
    row_length: int
    prompts: int
    new_tokens: int
    threads: int
    seed: int
    limit: int
    whole: bool = False

    def cycle(self, recipe: Recipe) -> CycleConfig:
        """Return the settings of `recover cycle`: its defaults, and the sizes that both sides share."""
        flags: dict[str, Any] = {
            "docs": (Path(self.docs),), "evaluate": self.whole, "tuning": "full", "device": "cpu", "seed": self.seed,
            "midtrain_steps": self.midtrain_steps, "distill_steps": self.distill_steps, "row_length": self.row_length,
            "batch_tokens": self.batch_tokens, "prompts_per_step": self.prompts, "limit": self.limit,
            "max_new_tokens": self.new_tokens,
        }  # fmt: skip
        config = build_cycle({name: value for name, value in flags.items() if value is not None}, recipe)
        if self.whole or self.midtrain_steps is None or self.batch_tokens is None:
            return config
        read = config.midtrain.replay * self.midtrain_steps * self.batch_tokens
        replayed = dataclasses.replace(config.midtrain, replay_prompts=max(1, round(read / self.new_tokens)))
        return dataclasses.replace(config, midtrain=replayed)


@dataclass
class Clock:
    """Wall and processor seconds of the phases of a job."""

    facts: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure the block as a phase."""
        started, worked = time.perf_counter(), time.process_time()
        yield
        self.facts |= {phase: time.perf_counter() - started, f"{phase}, processor": time.process_time() - worked}


# --- one side, in its own process -----------------------------------------------------------------------------


def run_ours(job: Job) -> None:
    """Run the stages of a cycle."""
    turn, clock = Turn(), Clock()
    turn.wait()
    with our_session(job) as session:
        if job.whole:
            whole_cycle(session, job)
        else:
            plan = new_plan(session, job.cycle(session.recipe))
            with clock("mid-training"):
                trained = midtrain(session, midtrain_config(plan, plan.first))
            with clock("recovery"):
                distill(session, recovery_config(plan.config, trained, plan.first))
        of = stages(session)
        counted = {"trained": of["midtrain"].tokens_trained, "replayed": of["midtrain"].tokens_sampled}
        counted["sampled"] = of["distill"].tokens_sampled
    turn.report(**clock.facts, **counted)


def our_session(job: Job) -> Session:
    """Open the workspace of our side."""
    place = Path(job.folder) / "ours"
    return Session.open(place, model=job.model, purpose="benchmarks.job", display=Display(quiet=True))


def whole_cycle(session: Session, job: Job) -> None:
    """Begin the cycle with its evaluations, or go on with it; nothing if it is done."""
    if not session.cycles():
        start_plan(session, new_plan(session, job.cycle(session.recipe)))
    else:
        with contextlib.suppress(UsageError):  # nothing was interrupted
            resume(session)


def stages(session: Session) -> dict[str, records.Stage]:
    """Return the mid-training and the recovery by kind."""
    found = queries.stages(session.tracker.database, session.experiment_id)
    return {stage.kind: stage for stage in found if stage.kind in ("midtrain", "distill")}


def run_trl(job: Job) -> None:
    """Run TRL's two scripts."""
    turn, clock, sampled = Turn(), Clock(), list[float]()
    turn.wait()
    assert job.midtrain_steps is not None and job.distill_steps is not None and job.batch_tokens is not None
    config, folder = job.cycle(model_recipe(Path(job.model))), Path(job.folder)
    parameters = parameters_of(Setup(AutoConfig.from_pretrained(job.model).to_json_string(), "full", "float32", False))
    rates = {stage: getattr(config, stage).rate("full", parameters.total) for stage in ("midtrain", "distill")}
    shared: dict[str, Any] = {"lr_scheduler_type": "cosine", "warmup_steps": 0.1, "seed": job.seed}
    shared |= {"save_strategy": "steps", "save_steps": 20, "save_total_limit": 1} if job.whole else {}
    with clock("mid-training"):
        texts = [document.text for document in read_corpus(Path(job.docs), seed=job.seed).documents]
        rows = max(1, job.batch_tokens // job.row_length)
        trainer = _peer.text_trainer(
            job.model,
            texts,
            job.row_length,
            per_device_train_batch_size=rows,
            max_steps=job.midtrain_steps,
            learning_rate=rates["midtrain"],
            output_dir=str(folder / "sft"),
            **shared,
        )
        trained(trainer, folder / "sft", folder / "trl-midtrained")
    trainer = None
    gc.collect()
    batches = -(-job.prompts // MOST_PROMPTS)
    with clock("recovery"):
        trainer = _peer.trainer(
            str(folder / "trl-midtrained"),
            job.model,
            asked(job),
            _peer.between_steps(
                lambda: None, lambda: sampled.append(_peer.mean_length(trainer, batches) * job.prompts)
            ),
            teacher_weights=pick_precision("auto", torch.device("cpu")),
            per_device_train_batch_size=job.prompts // batches,
            gradient_accumulation_steps=batches,
            max_steps=job.distill_steps,
            max_completion_length=job.new_tokens,
            learning_rate=rates["distill"],
            output_dir=str(folder / "distillation"),
            **shared,
        )
        trained(trainer, folder / "distillation", folder / "trl")
    tokens = float(job.midtrain_steps * rows * (job.row_length - 1))
    turn.report(**clock.facts, trained=tokens, replayed=0.0, sampled=sum(sampled))


def asked(job: Job) -> list[Sequence[Message]]:
    """Return the prompts of all steps, drawn as ours draws ordinary ones. Only those of a single turn: TRL responds to
    the last turn of longer ones.
    """
    pool = [p for p in behaviour_prompts(Path(job.model), seed=job.seed).train if _peer.single(p)]
    draw = range(1, (job.distill_steps or 0) + 1)
    drawn = [choose(pool, job.prompts, step, job.seed, stream=RandomStream.BEHAVIOUR_PROMPTS) for step in draw]
    return [prompt.messages for batch in drawn for prompt in batch]


def trained(trainer: Any, states: Path, out: Path) -> None:
    """Train from the newest state, if there is one, and store the model; nothing if it is stored."""
    if not (out / "config.json").is_file():
        trainer.train(resume_from_checkpoint=get_last_checkpoint(str(states)) if states.is_dir() else None)
        trainer.save_model(str(out))


SIDES: dict[str, Callable[[Job], None]] = {"ours": run_ours, "TRL": run_trl}


# --- the parent -------------------------------------------------------------------------------------------------


def carry_out(side: str, job: Job) -> dict[str, float]:
    """Run a job of one side in a process of its own; return its figures."""
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    (done,) = take_turns("benchmarks.job", [side], dataclasses.asdict(job), Path(job.folder), steps=1)
    return done.steps[0]


def pairs(job: Job, count: int, keep: Callable[[Runs], None]) -> Runs:
    """Run every side ``count`` times by turns, in reversed order every other time; ``keep`` gets all after each."""
    found: Runs = {side: [] for side in _peer.SIDES}
    for number in range(count):
        for side in _peer.SIDES if number % 2 == 0 else reversed(_peer.SIDES):
            with tempfile.TemporaryDirectory(dir=job.folder) as folder:
                found[side].append(carry_out(side, dataclasses.replace(job, folder=folder)))
            one = found[side][-1]
            print(f"{side}: {one['seconds']:.0f} s, processor {one['processor seconds']:.0f} s", flush=True)
        keep(found)
    return found


def ratios(found: Runs) -> dict[str, list[float]]:
    """Return TRL's figures over ours, pair by pair: of a phase the processor time for a trained or sampled token."""
    keys = ("seconds", "processor seconds", "megabytes", *PHASES)

    def figure(run: dict[str, float], key: str) -> float:
        return run[f"{key}, processor"] / run[PHASES[key]] if key in PHASES else run[key]

    both = zip(found["TRL"], found["ours"], strict=False) if "TRL" in found else ()
    each = [{key: figure(theirs, key) / figure(ours, key) for key in keys} for theirs, ours in both]
    return {key: [one[key] for one in each] for key in keys} if each else {}


def timing(found: Runs) -> str:
    """Return the table of times and the verdict as Markdown."""
    rows = []
    for side, runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        parts = (f"{middle[phase]:,.0f} s ({middle[f'{phase}, processor']:,.0f})" for phase in PHASES)
        whole = f"{middle['seconds']:,.0f} s ({middle['processor seconds']:,.0f})"
        tokens = (f"{middle[name]:,.0f}" for name in ("trained", "replayed", "sampled"))
        rows.append((side, whole, *parts, f"{middle['megabytes']:,.0f} MB", *tokens))
    header = ("job of", "wall (processor)", *PHASES, "peak memory", "tokens mid-trained", "replay sampled", "sampled")
    lines = [_report.table(header, rows), "", f"Medians; runs of each side: {len(found['ours'])}.", ""]
    if each := ratios(found):
        middle = {key: statistics.median(values) for key, values in each.items()}
        pairs = zip(each["seconds"], each["processor seconds"], strict=True)
        spread = "; ".join(f"{wall:.2f} and {processor:.2f}" for wall, processor in pairs)
        fast = min(middle["seconds"], middle["processor seconds"]) >= GOAL
        lines += [
            f"TRL's job over ours: {middle['seconds']:.2f} in wall time, {middle['processor seconds']:.2f} in "
            f"processor time (medians of the pairs: {spread}); goal {GOAL}: {'met' if fast else 'MISSED'}. In "
            f"processor time for a token: {', '.join(f'{phase} {middle[phase]:.2f}' for phase in PHASES)}.",
            f"Our peak memory over TRL's: {1 / middle['megabytes']:.2f}; goal {MEMORY_GOAL}: "
            f"{'met' if middle['megabytes'] >= 1 / MEMORY_GOAL else 'MISSED'}.",
        ]
    return "\n".join(lines)


def whole_runs(job: Job) -> str:
    """Run each side once to its end, judge both models, and return the scores as Markdown."""
    carry_out("ours", job)
    with our_session(job) as session:
        of = stages(session)
        per_step = of["midtrain"].tokens_trained / of["midtrain"].steps_done
        same: dict[str, Any] = {"midtrain_steps": of["midtrain"].steps_done, "distill_steps": of["distill"].steps_done}
        carry_out("TRL", dataclasses.replace(job, batch_tokens=round(per_step), **same))
        config = dataclasses.replace(job.cycle(session.recipe).eval, checkpoint=str(Path(job.folder) / "trl"))
        theirs = session.registered(session.resolve(config.checkpoint))
        if not measured(session, theirs, config):
            evaluate(session, config)
        ours = session.resolve("cycle-1/recovered")
        assert ours.id is not None and theirs.id is not None and session.base.id is not None
        return scored(session.tracker.database, session.base.id, ours.id, theirs.id)


def scored(database: Database, base: int, ours: int, theirs: int) -> str:
    """Return the scores of three checkpoints by all rulers, and whether ours are no worse than TRL's."""
    suites = {one: newest(database, one) for one in (base, ours, theirs)}
    found: list[tuple[str, float | None, float | None, float | None, Any, float]] = []
    clean, our, their = (
        judged(single_instructions(queries.judged_items(database, suites[one]["instruction_following"].id)))
        for one in (base, ours, theirs)
    )
    if (both := compare("", their, our)) is not None:
        of_base = statistics.mean(one.score for one in clean.values())
        interval = (both.difference, both.low, both.high)
        found.append(("instructions beyond constant replies", of_base, both.second, both.first, interval, MARGIN))
    read = ItemReader(database)
    answers = [read.answers(suites[one].get(f"{ASKED}/1")) for one in (ours, theirs)]
    between = gap_closed([answers[:1]], answers[1:], [read.answers(suites[base].get(f"{OPEN_BOOK}/1"))])
    figures = [knowledge_figures(database, base, one).get("1", {}) for one in (ours, theirs)]
    why = "no question was asked with its passage" if between is None else between.undefined
    if between is not None and between.value is not None:
        values = (one["gap_closed"].get("value") for one in figures)
        found.append(("gap closed", 0.0, *values, (between.value, between.low, between.high), MARGIN))
    direct = knowledge_figures(database, theirs, ours).get("1", {}).get("likelihood", {})
    if "bits" in direct:
        values = (one["likelihood"].get("bits") for one in figures)
        found.append(("K, bits", 0.0, *values, (direct["bits"], direct["low"], direct["high"]), 0.0))
    rows = [
        (name, *map(_figure, one), f"{middle:+.3f} ({low:+.3f} to {high:+.3f})", "yes" if low > bound else "NOT SHOWN")
        for name, *one, (middle, low, high), bound in found
    ]
    header = ("ruler", "clean model", "ours", "TRL", "ours - TRL (95%)", "no worse")
    note = (
        "The difference of the gap closed is a share of the gap that TRL's model leaves to the open book; K has no "
        "points, and is no worse where its lower bound is above 0."
    ) + (f" The gap closed is not defined: {why}." if why else "")
    return f"{_report.table(header, rows)}\n\n{note}"


def _figure(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.3f}"


def prepare(options: argparse.Namespace, folder: Path) -> Job:
    """Fetch or write the model and the documents, and return the job."""
    if options.example is None:
        model, docs = materialise(folder / "miniature"), write_corpora(folder / "corpora", 1, options.seed)[0]
    else:
        found = scenario(options.example, options.packages, short=False, say=print, model=options.model)
        docs = found.write(folder / "corpora", options.seed)[0]
        model = converted(found.model, user_cache("models")) if found.model.endswith(".gguf") else Path(found.model)
    names = [one.name for one in dataclasses.fields(Job) if one.name not in ("model", "docs", "folder", "whole")]
    numbers: dict[str, Any] = {name: getattr(options, name) for name in names}
    return Job(str(model), str(docs), str(folder), **numbers)


def sizes(options: argparse.Namespace) -> str:
    """Return what was run, as a page says it."""
    model = options.example.name if options.example else "the built-in miniature"
    busy = " The machine was shared with other work." if os.getloadavg()[0] > 1.5 * options.threads else ""
    return (
        f"{model}: {options.midtrain_steps} steps of {options.batch_tokens:,} tokens in rows of {options.row_length}, "
        f"{options.distill_steps} steps of recovery with {options.prompts} prompts and at most {options.new_tokens} "
        f"new tokens.{busy}"
    )


def facts(options: argparse.Namespace) -> dict[str, str]:
    """Return the machine and the settings of a run."""
    precision = str(pick_precision("auto", torch.device("cpu"))).removeprefix("torch.")
    return _report.machine(threads=options.threads, seed=options.seed) | {"matrix products": precision}


def add_input(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`prepare`."""
    parser.add_argument("--example", type=Path, help="folder of an example; default: the built-in miniature")
    parser.add_argument("--model", help="a model folder or GGUF file in place of the example's")
    parser.add_argument(
        "--packages", type=Path, default=user_cache("models") / "packages", help="folder of what is fetched"
    )
    parser.add_argument("--midtrain-steps", type=int, default=30)
    parser.add_argument("--distill-steps", type=int, default=15)
    parser.add_argument("--batch-tokens", type=int, default=2048, help="tokens of a step of mid-training")
    parser.add_argument("--row-length", type=int, default=MidtrainConfig().row_length)
    parser.add_argument("--prompts", type=int, default=32, help="prompts of a step of recovery")
    parser.add_argument("--new-tokens", type=int, default=112)
    parser.add_argument("--limit", type=int, default=1000, help="items of a suite")


def main() -> int:
    """Measure and print; write with --write. Return 1 if a goal was missed."""
    parser = _report.parser(__doc__, "job", "seed", "threads", named=True)
    add_input(parser)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--scores", type=Path, metavar="FOLDER", help="run both sides to the end in this folder")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        job = Job(**json.loads(options.job))
        torch.set_num_threads(job.threads)
        SIDES[options.side](job)
        return 0
    machine = facts(options)

    def store(body: str, data: dict[str, Any]) -> None:
        if options.write:
            text = f"{_report.note(__doc__)}\n{sizes(options)}\n\n{body}"
            _report.write(options.name, "One whole job", text, machine, data)

    if options.scores is not None:
        options.scores.mkdir(parents=True, exist_ok=True)
        to_the_end: dict[str, Any] = {"midtrain_steps": None, "distill_steps": None, "batch_tokens": None}
        body = whole_runs(dataclasses.replace(prepare(options, options.scores), whole=True, **to_the_end))
        store(body, {})
    else:
        with tempfile.TemporaryDirectory() as name:
            job = prepare(options, Path(name))
            runs = pairs(job, options.pairs, lambda found: store(timing(found), {"runs": found}))
        body = timing(runs)
    print(body)
    return int("MISSED" in body or "NOT SHOWN" in body)


if __name__ == "__main__":
    sys.exit(main())
