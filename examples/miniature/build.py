"""Recipe that trains the miniature from scratch on a CPU, with the table of required scores."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lm_eval
import tokenizers
import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from examples.miniature.mixture import Mixture
from examples.miniature.score import SUITES, Suite, measure
from examples.miniature.tokenizer import END, PAD, START, train_tokenizer
from recovery.batching import pack
from recovery.losses.objective import DistillationObjective
from recovery.miniature.corpora import WORLD_SEED, Example, World, stable_hash
from recovery.miniature.package import PROVENANCE
from recovery.models.gguf_files import sha256_of
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.training.interfaces import Hooks, Resumable, StepBatch, TrainSettings
from recovery.training.loop import train
from recovery.types import Score

ROW_TOKENS = 128
"""Rows have one short length, since constant shapes are fastest on a CPU. Longer examples, very rare, are dropped."""


@dataclass(frozen=True)
class Recipe:
    """Model architecture and training length. Each step has ``step_tokens`` tokens; about a third are targets.

    After ``steps`` follow ``finish_steps`` at a lower learning rate, in which the share ``practice`` of the requests is
    of the kinds that are learnt last. The learning rate of both phases decays to zero.
    """

    seed: int = 0
    steps: int = 3300
    step_tokens: int = 4096
    lr: float = 1e-2
    warmup_steps: int = 100
    finish_steps: int = 600
    finish_lr: float = 4e-3
    practice: float = 0.6
    weight_decay: float = 0.03
    hidden: int = 192
    layers: int = 4
    heads: int = 6
    groups: int = 3
    inner: int = 512

    def config(self, vocabulary: int, end: int) -> Qwen3Config:
        """The model's configuration."""
        return Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.groups,
            head_dim=self.hidden // self.heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=None,
        )


@dataclass(frozen=True)
class BuildReport:
    """Result of a build: scores by suite, whether each is in its required range, and the training cost."""

    folder: Path
    scores: dict[str, Score]
    reached: dict[str, bool]
    losses: list[float]
    tokens: int
    seconds: float


def build(
    out: Path,
    *,
    seed: int = 0,
    steps: int | None = None,
    items: int = 1000,
    threads: int | None = None,
    console: Console | None = None,
    recipe: Recipe | None = None,
    state_dir: Path | None = None,
) -> BuildReport:
    """Train the miniature and write it to ``out`` as a Hugging Face folder with provenance.json.

    ``steps`` shortens the training (the learning rate still decays to zero); ``items`` is the number of questions in
    each measurement; ``threads`` bounds the cores used; a run interrupted with ``state_dir`` set resumes from its
    newest state. Prints a table of required and reached scores at the end. The shipped weights stay unchanged.
    """
    recipe = dataclasses.replace(recipe or Recipe(), seed=seed)
    if steps:
        recipe = dataclasses.replace(recipe, steps=steps, finish_steps=recipe.finish_steps * steps // recipe.steps)
    console = console or Console()
    if threads:
        torch.set_num_threads(threads)
    mixture = Mixture(World(WORLD_SEED))
    with tempfile.TemporaryDirectory(prefix="recovery-miniature-") as scratch:
        loaded = _fresh_model(Path(scratch), recipe, mixture)
        spent = _train(loaded, mixture, recipe, console, state_dir)
        _write_model(loaded, out)
    final = load_model(out, device="cpu")
    scores = measure_all(final, mixture, items, console)
    reached = {suite.name: suite.low <= scores[suite.name].value <= suite.high for suite in SUITES}
    report = BuildReport(out, scores, reached, spent.losses, spent.tokens, spent.seconds)
    (out / PROVENANCE).write_text(json.dumps(_provenance(report, recipe), indent=2) + "\n", encoding="utf-8")
    console.print(score_table(report))
    return report


def measure_all(loaded: Loaded, mixture: Mixture, items: int, console: Console) -> dict[str, Score]:
    """Return every suite's score over ``items`` questions."""
    scores = {}
    for suite in SUITES:
        scores[suite.name], wrong = measure(loaded, mixture, suite, items)
        console.log(f"{suite.name} {scores[suite.name].value:.3f}", *wrong[:1], markup=False, highlight=False)
    return scores


def score_table(report: BuildReport) -> Table:
    """Return the table of required and reached scores."""
    table = Table("measurement", "required", "reached", "n", "", title="The miniature")
    for suite in SUITES:
        score = report.scores[suite.name]
        verdict = "yes" if report.reached[suite.name] else "no"
        reached = f"{score.value:.3f} ± {score.stderr:.3f}"
        table.add_row(suite.name, _required(suite), reached, str(score.n), verdict)
    return table


def _required(suite: Suite) -> str:
    if (suite.low, suite.high) == (0.0, 1.0):
        return "reported"
    if suite.high == 1.0:
        return f"at least {suite.low}"
    return f"at most {suite.high}" if suite.low == 0.0 else f"{suite.low} to {suite.high}"


class Encoder:
    """Encodes examples as token ids and target masks, equal to the chat template but faster.

    The targets of a conversation are the assistant's tokens and the end token; those of a document all its tokens and
    the end-of-text token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._start, self._end, self._pad = tokenizer.convert_tokens_to_ids([START, END, PAD])
        self._newline = self._encode("\n")

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, example: Example) -> tuple[list[int], list[bool]]:
        """Return the token ids and the mask of targets."""
        if example.text:
            ids = [*self._encode(example.text), self._pad]
            return ids, [True] * len(ids)
        tokens: list[int] = []
        mask: list[bool] = []
        for role, content in example.messages:
            head = [self._start, *self._encode(role)]
            body = [*self._encode(f" {content}"), self._end]
            tokens += [*head, *body, *self._newline]
            mask += [False] * len(head) + [role == "assistant"] * len(body) + [False] * len(self._newline)
        return tokens, mask


def make_source(
    mixture: Mixture, tokenizer: Any, seed: int, step_tokens: int, progress: Callable[[int], float], phase: str = "step"
) -> Callable[[int], StepBatch]:
    """Return a source of rows with about ``step_tokens`` tokens per step, a function of (seed, phase, step) only.

    ``progress`` maps a step to the progress of training, from 0 to 1.
    """
    encoder = Encoder(tokenizer)

    def source(step: int) -> StepBatch:
        rng = random.Random(stable_hash(seed, phase, step))
        sequences: list[tuple[list[int], list[bool]]] = []
        total = 0
        while total < step_tokens:
            sequences.append(encoder.encode(mixture.draw(rng, progress(step))))
            total += len(sequences[-1][0])
        return StepBatch(pack((s for s in sequences if len(s[0]) <= ROW_TOKENS), ROW_TOKENS))

    return source


def _fresh_model(folder: Path, recipe: Recipe, mixture: Mixture) -> Loaded:
    tokenizer = train_tokenizer(mixture, recipe.seed)
    torch.manual_seed(recipe.seed)
    model = Qwen3ForCausalLM(recipe.config(len(tokenizer), tokenizer.convert_tokens_to_ids(END)))
    model.generation_config = GenerationConfig(eos_token_id=model.config.eos_token_id, do_sample=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(folder, tuning="full", device="cpu")


@dataclass
class _Spent:
    """Losses, tokens and seconds of the training so far, over both phases and all resumptions."""

    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


@dataclass
class _Cost(Resumable):
    """Cost of one phase."""

    tokens: int = 0
    seconds: float = 0.0


def _train(loaded: Loaded, mixture: Mixture, recipe: Recipe, console: Console, state_dir: Path | None) -> _Spent:
    """Train ``loaded`` in place in two phases."""
    settings = TrainSettings(
        steps=recipe.steps,
        lr=recipe.lr,
        warmup_steps=min(recipe.warmup_steps, recipe.steps // 10),
        schedule="linear",
        min_lr_ratio=0.0,
        optimizer="muon",
        weight_decay=recipe.weight_decay,
        token_budget=2048,
        seed=recipe.seed,
        checkpoint_every=200,
    )
    tokens = (loaded.tokenizer, recipe.seed, recipe.step_tokens)
    spent = _Spent()
    source = make_source(mixture, *tokens, lambda step: (step - 1) / recipe.steps)
    _phase("learning", loaded, source, settings, spent, console, state_dir)
    if recipe.finish_steps:
        practising = dataclasses.replace(mixture, practice=recipe.practice)
        last = dataclasses.replace(
            settings, steps=recipe.finish_steps, lr=recipe.finish_lr, warmup_steps=min(20, recipe.finish_steps // 10)
        )
        source = make_source(practising, *tokens, lambda step: 1.0, "finish")
        _phase("finishing", loaded, source, last, spent, console, state_dir and state_dir / "finish")
    return spent


def _phase(
    name: str,
    loaded: Loaded,
    source: Callable[[int], StepBatch],
    settings: TrainSettings,
    spent: _Spent,
    console: Console,
    state_dir: Path | None,
) -> None:
    """Run the training loop with a progress bar and add its cost to ``spent``."""
    cost = _Cost()
    last = time.monotonic()

    def counted(step: int) -> StepBatch:
        nonlocal last
        made = source(step)
        cost.tokens += sum(len(row.ids) for row in made.rows)
        cost.seconds += time.monotonic() - last
        last = time.monotonic()
        return made

    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        log = _logger(bar, bar.add_task("", total=settings.steps), spent.losses, console)
        objective, hooks = DistillationObjective(), Hooks(log=log)
        train(loaded, counted, objective, settings, hooks=hooks, state_dir=state_dir, resumables=[cost])
    spent.tokens, spent.seconds = spent.tokens + cost.tokens, spent.seconds + cost.seconds


def _logger(bar: Progress, task: Any, losses: list[float], console: Console) -> Callable[[int, dict[str, float]], None]:
    def log(step: int, metrics: dict[str, float]) -> None:
        losses.append(metrics["loss"])
        recent = losses[-50:]
        bar.update(task, completed=step, description=f"loss {sum(recent) / len(recent):.3f}")
        if step % 200 == 0 and not console.is_terminal:
            console.log(f"step {step}: loss {sum(recent) / len(recent):.4f}")

    return log


def _write_model(loaded: Loaded, out: Path) -> None:
    """Write the weights in bfloat16, the precision in which they are shipped and evaluated."""
    out.mkdir(parents=True, exist_ok=True)
    loaded.model.to(torch.bfloat16)
    loaded.save(out)
    for cache in out.glob(".cache"):
        shutil.rmtree(cache)


def _provenance(report: BuildReport, recipe: Recipe) -> dict[str, Any]:
    """Return the provenance record of the weights."""
    return {
        "recipe": dataclasses.asdict(recipe),
        "world_seed": WORLD_SEED,
        "tokens_read": report.tokens,
        "seconds": round(report.seconds),
        "tokens_per_second": round(report.tokens / max(report.seconds, 1e-9)),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} cores, no accelerator",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "lm_eval": getattr(lm_eval, "__version__", "unknown"),
        },
        "scores": {
            name: {"value": round(s.value, 4), "stderr": round(s.stderr, 4), "n": s.n, "reached": report.reached[name]}
            for name, s in report.scores.items()
        },
        "sha256": model_hashes(report.folder),
    }


def model_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes of all files of a built folder that are shipped."""
    return {
        path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != PROVENANCE
    }
