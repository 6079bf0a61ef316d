"""The sizes of a trial: a first look in a quarter of an hour on this machine, by the plan's own estimate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from db.records import TRIAL
from pipelines.runtime.progress import Display
from pipelines.table import PlanRow, duration, total_of
from recovery.config import DistillConfig, MidtrainConfig

SECONDS = 15 * 60.0
_CLOSE = 0.9  # the share of SECONDS that a round aims at
_ROUNDS = 5  # what does not shrink (a floor, the reading of prompts) makes one estimate too few
# How each size of a stage follows the share s of the time that there is, as s**power, and the least that shows
# anything. The powers of sizes that multiply to the stage's work add up to 1, so that it takes about s of its time.
_SIZES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "midtrain": {"steps": (1.0, 2), "epochs": (1.0, 0.001), "replay_prompts": (1.0, 32)},
    "distill": {"steps": (0.5, 8), "prompts_per_step": (0.25, 8), "max_new_tokens": (0.25, 64)},
    "eval": {"limit": (0.75, 50), "max_new_tokens": (0.25, 64)},
}

Stages = Mapping[str, Any]


def fitted(
    stages: Stages, given: Collection[str], rows_of: Callable[[Stages], Sequence[PlanRow]], display: Display
) -> dict[str, Any]:
    """Return the configurations of ``stages`` ("midtrain", "distill", "eval") at the sizes of a trial, and say them.

    ``rows_of`` estimates a run at given sizes. What the user has ``given`` as flags stays: NAME, or STAGE_NAME in a
    cycle.
    """
    share, sized = 1.0, _at(stages, given, 1.0)
    took = total_of(rows_of(sized))[0]
    for _ in range(_ROUNDS):
        if took <= SECONDS:
            break
        share *= _CLOSE * SECONDS / took
        smaller = _at(stages, given, share)
        if smaller == sized:  # every size is at its floor
            break
        sized, took = smaller, total_of(rows_of(smaller))[0]
    values = {
        stage: {f.name: getattr(config, f.name) for f in dataclasses.fields(config)} for stage, config in sized.items()
    }
    changed = [
        f"{stage} {name} {value:g}"
        for stage, own in values.items()
        for name, value in own.items()
        if value != getattr(stages[stage], name)
    ]
    sizes = f": {', '.join(changed)}" if changed else ""
    display.say(f"{TRIAL}; about {duration(took)} here{sizes}. Begin again without --trial, in another --workspace")
    return sized


def _at(stages: Stages, given: Collection[str], share: float) -> dict[str, Any]:
    """Return the configurations of stages for a ``share`` of their time.

    A recovery is not tested on the way: each test of --until asks 1,000 development prompts.
    """
    sized = {}
    for stage, config in stages.items():
        own = {name.removeprefix(f"{stage}_") for name in given}
        names = _SIZES[stage].keys() - own
        if isinstance(config, MidtrainConfig):  # one of the two sets its length
            names -= {"steps", "epochs"} if own & {"steps", "epochs"} else {"epochs" if config.steps else "steps"}
        values: dict[str, Any] = {"until": 0.0} if isinstance(config, DistillConfig) and "until" not in own else {}
        for name in names:
            power, least = _SIZES[stage][name]
            full = config.passes if name == "epochs" else getattr(config, name)
            if name == "prompts_per_step" and config.knowledge_share:  # one of them is a question
                least = max(least, math.ceil(1 / config.knowledge_share))
            scaled = max(min(least, full), full * share**power)
            values[name] = float(f"{scaled:.2g}") if name == "epochs" else round(scaled)
        sized[stage] = dataclasses.replace(config, **values)
    return sized
