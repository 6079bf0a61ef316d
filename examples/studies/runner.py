"""What the runs of a study share: the runner of one seed, the miniature's tasks as data, and the measures of drift."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from db import queries
from evals import drift
from evals.generation import answer
from evals.suites import sample
from examples.miniature.tasks import editing
from pipelines.experiments.compare import INSTRUCTIONS, RETAINED, ExperimentRunner, stage_of
from recovery.data.prompt_files import load_prompts, write_prompts
from recovery.miniature.corpora import WORLD_SEED, Example, World, stable_hash, write_corpora
from recovery.models.loaded import Loaded
from recovery.rewards import exact
from recovery.rollouts.engine import Engine
from recovery.types import Check, Message, Prompt
from recovery.workspace import write_atomically

TRAIN, TEST = 2000, 600  # prompts of a set
DRIFT_PROMPTS, DRIFT_TOKENS = 60, 64
# The measures of drift that are reported, of those in evals.drift.
DRIFT_MEASURES = ("lexical_mmd2", "hidden_mmd2", "hidden_sliced_wasserstein", "token_jaccard")


@dataclass
class Runner(ExperimentRunner):
    """Runs of one study and seed. ``budget`` scales steps and items; ``arms`` and ``cycles`` are those that were
    chosen, if any; ``record`` stores figures of a study that goes on.
    """

    budget: float = 1.0
    arms: tuple[str, ...] = ()
    cycles: int | None = None
    record: Callable[..., None] = lambda figures, complete=False: None
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.session.workspace.folder / "made"
        # Items are cheaper than steps, so they are scaled less.
        self.items = max(50, round(self.items * min(1.0, 2 * self.budget)))

    def scale(self, count: int, least: int = 1) -> int:
        """Return a number of steps at this budget."""
        return max(least, round(count * self.budget))

    # --- training data, each written on first use ----------------------------------------------------------

    def corpora(self, count: int = 1, **shape: int) -> list[Path]:
        """Return folders of documents with questions and probes for this seed."""
        target = self.folder / f"corpora-{count}"
        found = [target / f"q{number}" for number in range(1, count + 1)]
        written = all((folder / "probes.jsonl").is_file() for folder in found)  # the last file of each
        return found if written else write_corpora(target, count, self.seed, **shape)

    def prompts(self, name: str, make: Callable[[], Mapping[str, Sequence[Prompt]]]) -> Path:
        """Return a folder of train/development/test prompts."""
        target = self.folder / "prompts" / name
        if not (target / "done").is_file():
            target.mkdir(parents=True, exist_ok=True)
            for split, prompts in make().items():
                write_prompts(target / f"{split}.jsonl", prompts)
            write_atomically(target / "done", "")
        return target

    def data(self, name: str, make: Callable[[], Sequence[Sequence[Message]]]) -> Path:
        """Return a file of conversations to imitate."""
        target = self.folder / "data" / f"{name}.jsonl"
        if not target.is_file():
            lines = (json.dumps({"messages": list(messages)}, ensure_ascii=False) for messages in make())
            write_atomically(target, "".join(f"{line}\n" for line in lines))
        return target

    def demonstrations(self, prompts: Path, name: str = "") -> Path:
        """Return a file of a folder's training prompts with their reference answers."""

        def make() -> list[tuple[Message, ...]]:
            train = load_prompts(prompts / "train.jsonl")
            return [(*p.messages, Message(role="assistant", content=p.answer or "")) for p in train]

        return self.data(name or prompts.name, make)

    def mending(self, kinds: Sequence[str] = editing.MEASURED, name: str = "mending") -> Path:
        """Return a folder of damaged sentences to mend: of ``kinds`` of damage, by default those of which the clean
        model mends half. The folder's name is the suite's.
        """
        sizes = {"test": TEST, "development": 50, "train": TRAIN}
        return self.prompts(
            name, lambda: self.draw(name, lambda rng, world: editing.draw(rng, world, tuple(kinds)), sizes)
        )

    def draw(
        self, name: str, make: Callable[[random.Random, World], Example], sizes: Mapping[str, int]
    ) -> dict[str, list[Prompt]]:
        """Draw distinct prompts for each split; no prompt is in two splits."""
        world, seen = World(WORLD_SEED), set[str]()
        found: dict[str, list[Prompt]] = {split: [] for split in sizes}
        for split, count in sizes.items():
            rng = random.Random(stable_hash(self.seed, "study", name, split))
            for _ in range(count * 20):
                made = _prompt(f"{name}-{split}-{len(found[split])}", make(rng, world))
                if made.text not in seen:
                    seen.add(made.text)
                    found[split].append(made)
                if len(found[split]) == count:
                    break
        return found

    # --- measures ------------------------------------------------------------------------------------------

    def asked(self, suite: str) -> Sequence[Prompt]:
        """Return the prompts of a suite: the model's own, or of a folder of the study's, NAME or NAME/SPLIT (default:
        test).
        """
        kind, _, rest = suite.partition("/")
        if kind != INSTRUCTIONS:
            return load_prompts(self.folder / "prompts" / kind / f"{rest or 'test'}.jsonl")
        return [p for p in super().asked(suite) if not rest or ("held-out-id" in p.tags) == (rest == "held-out")]

    def by_type(self, name: str, suite: str) -> dict[str, float]:
        """Return the share of a suite's instructions that were followed, by type."""
        self.scores(name, suite)
        checkpoint = self.session.registered(self.session.resolve(name))
        assert checkpoint.id is not None
        rows = queries.evaluations(self.session.tracker.database, checkpoint.id)
        details = next(row.details for row in rows if row.suite == suite)
        found = {key.removeprefix("id/"): score for key, score in details.items() if key.startswith("id/")}
        return {kind: float(score["value"]) for kind, score in sorted(found.items())}

    def curve(self, name: str, metric: str) -> list[tuple[int, float]]:
        """Return a metric of a run as (step, value)."""
        stage = stage_of(self.session, name)
        found = queries.series(self.session.tracker.database, stage.id, [metric], max_points=None)
        return [(point.step, point.value) for point in found.get(metric, ()) if point.value is not None]

    def exact_share(self, asked: Sequence[Prompt], loaded: Loaded, engine: Engine) -> float:
        """Return the share of prompts whose greedy completion is exactly the reference answer."""
        conversations = [p.messages for p in asked]
        responses = answer(loaded.chat, engine, conversations, max_new_tokens=40, window=loaded.max_length)
        return sum(exact(p, r.text) for p, r in zip(asked, responses, strict=True)) / len(asked)

    def retention(self, name: str) -> float:
        """Return the mean of instruction following and general knowledge, each relative to base."""
        before, after = (self.scores(which, INSTRUCTIONS, RETAINED) for which in ("base", name))
        return sum(after[suite].value / before[suite].value for suite in (INSTRUCTIONS, RETAINED)) / 2

    def points(self, names: Sequence[str], task: str) -> dict[str, float]:
        """Return each run's gain on the task, forgetting, and drift from base: the distance of its completions from
        base's on ordinary requests, the same for base against itself, and the forward KL to base on the task (RL's
        Razor, arXiv 2509.04259).
        """
        before = self.value("base", task)
        figures = {f"gain, {name}": self.value(name, task) - before for name in names}
        figures |= {f"forgetting, {name}": 1.0 - self.retention(name) for name in names}
        base, engine = self.loaded("base")
        asked = sample(self.asked(INSTRUCTIONS), DRIFT_PROMPTS)

        def completions(loaded: Loaded, sampler: Engine, prompts: Sequence[Prompt], seed: int) -> Any:
            return drift.rollouts(loaded.chat, sampler, prompts, max_new_tokens=DRIFT_TOKENS, seed=self.seed + seed)

        reference = completions(base, engine, asked, 0)
        on_task = completions(base, engine, sample(self.asked(task), 4 * DRIFT_PROMPTS), 0)
        again = completions(base, engine, asked, 1000)
        null = drift.drift(reference, again, base, seed=self.seed)
        figures |= {f"{measure}, base against itself": null[measure] for measure in DRIFT_MEASURES}
        for number, name in enumerate(names, 1):
            other, sampler = self.loaded(name)
            found = drift.drift(reference, completions(other, sampler, asked, 1000 + number), base, seed=self.seed)
            figures |= {f"{measure}, {name}": found[measure] for measure in DRIFT_MEASURES}
            figures[f"kl to base on the task, {name}"] = drift.forward_kl(base, other, on_task).value
        return figures


def _prompt(key: str, example: Example) -> Prompt:
    """Return an example as a prompt: its conversation without the last answer, which is the reference."""
    messages = tuple(Message(role=role, content=content) for role, content in example.messages[:-1])
    checks = tuple(Check(instruction, arguments) for instruction, arguments in example.checks)
    return Prompt(key, messages, checks=checks, answer=example.answer, tags=(example.task, *example.tags))
