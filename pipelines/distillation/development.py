"""The test of --until: whether a model answers the development prompts as well as the clean model, or another, does.

What the clean model answers is kept in the workspace's cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evals.instruction_following import evaluate_instructions
from evals.paired_tests import NonInferiority, recovered
from pipelines.runtime.engines import weights_hash
from pipelines.runtime.model_loading import FrozenModel
from pipelines.runtime.stage import Stage
from recovery import __version__
from recovery.config import DistillConfig, InterpolateConfig
from recovery.data.prompt_records import prompts_hash
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Engine, Progress
from recovery.types import Item, Prompt, Score, SuiteResult
from recovery.workspace import Checkpoint, write_atomically

DEVELOPMENT = "development/instruction_following"


@dataclass(frozen=True)
class UntilTest:
    """Compares a model's answers to the development ``prompts`` with those of the ``reference``."""

    config: DistillConfig
    prompts: Sequence[Prompt]
    reference: SuiteResult

    def __call__(self, loaded: Loaded, engine: Engine, progress: Progress) -> tuple[float, NonInferiority]:
        """Return the model's score, and whether it has recovered."""
        config = self.config
        result = development_result(loaded, engine, self.prompts, config, progress)
        test = recovered(self.reference, result, until=config.until, margin=config.margin)
        return result.score.value, test


def development_result(
    loaded: Loaded,
    engine: Engine,
    prompts: Sequence[Prompt],
    config: DistillConfig | InterpolateConfig,
    progress: Progress,
) -> SuiteResult:
    """Evaluate instruction following on the development prompts, which decide when recovery stops."""
    return evaluate_instructions(
        loaded.chat,
        engine,
        prompts,
        max_new_tokens=config.max_new_tokens,
        window=loaded.max_length,
        seed=config.seed,
        suite=DEVELOPMENT,
        progress=progress,
    )


def reference_result(
    stage: Stage,
    frozen: FrozenModel,
    clean: Checkpoint,
    prompts: Sequence[Prompt],
    config: DistillConfig | InterpolateConfig,
) -> SuiteResult:
    """Return the clean model's result on the development prompts, cached by its content hash."""
    session = stage.session
    path = development_file(session.workspace.folder / "cache", weights_hash(clean), prompts, config)
    known = read_result(path)
    if known is not None:
        return known
    title = f"{clean.name} on development prompts"
    with session.display.bar(title, len(prompts)) as bar, frozen.sampling(clean) as (loaded, engine):
        result = development_result(loaded, engine, prompts, config, stage.counting(bar))
    stage.interrupts.check()
    write_result(path, result)
    return result


def development_file(cache: Path, base_hash: str, prompts: Sequence[Prompt], config: Any) -> Path:
    """Return the cache file of the clean model's result, named by a hash of everything the result depends on."""
    numerics = (config.precision, config.device, config.engine, torch.__version__)
    asked = (prompts_hash(prompts), config.max_new_tokens, config.seed)
    # The release decides how answers are checked.
    parts = (base_hash, *asked, *numerics, __version__, sorted(config.template_args.items()))
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:24]
    return cache / f"development-{digest}.json"


def read_result(path: Path) -> SuiteResult | None:
    """Return a result written by :func:`write_result`; None if it is missing or unreadable."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        items = tuple(Item(**item) for item in data["items"])
        return SuiteResult(data["suite"], Score(**data["score"]), items)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_result(path: Path, result: SuiteResult) -> None:
    """Write a result's score and items."""
    data = {
        "suite": result.suite,
        "score": dataclasses.asdict(result.score),
        "items": [dataclasses.asdict(item) for item in result.items],
    }
    write_atomically(path, json.dumps(data, ensure_ascii=False))
