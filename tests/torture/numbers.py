"""Bad numbers: answers of servers with parts of a wrong kind, and checkpoints with weights that are not finite.

Each answer is either taken, with finite log-probabilities of tokens of the vocabulary, or refused in one line.
``python -m tests.torture.numbers SEED SECONDS`` runs it.
"""

from __future__ import annotations

import copy
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from recovery.errors import RecoveryError
from recovery.models.loading import load_model
from recovery.rollouts import sglang_server_engine, vllm_server_engine
from recovery.rollouts.engine import check_completion
from recovery.teachers.remote import entries, parse_positions
from tests.models import make_tiny
from tests.torture.outcome import Outcome

_VOCABULARY, _LONGEST = 448, 8
_BAD: tuple[Any, ...] = (
    math.nan,
    math.inf,
    -math.inf,
    1.5,
    -1,
    10**30,
    None,
    "",
    "x",
    True,
    [],
    {},
    [[]],
    {"logprob": 0},
)
_FAMILIES = ("qwen3", "llama", "gemma2", "gemma3")


def run(seed: int, seconds: float, report: Callable[[str], None]) -> Outcome:
    """Try bad answers and bad checkpoints for ``seconds`` (0: 2,000 answers and 4 checkpoints)."""
    outcome, started = Outcome(), time.monotonic()
    number = 0
    while number < 2000 if seconds <= 0 else time.monotonic() - started < seconds:
        rng = random.Random(f"{seed} {number}")  # of its own: each case can be brought back alone
        kind, work = rng.choice((("teacher", _teacher), ("vllm", _vllm), ("sglang", _sglang)))
        if number % 500 == 0:
            kind, work = "weights", _weights
        try:
            result = work(rng)
        except RecoveryError as error:
            result = "refused" if "\n" not in str(error) and len(str(error)) < 2000 else f"no line: {str(error)!r:.200}"
        except Exception as error:
            result = f"{type(error).__name__}: {error!s:.200}"
        outcome.tried[f"{kind}: {result.partition(':')[0]}"] += 1
        if result not in ("taken", "refused"):
            outcome.faults.append(f"numbers, seed {seed}, {kind} number {number}: {result}")
            report(outcome.faults[-1])
        number += 1
    return outcome


def _spoiled(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one part, anywhere in it, in place of which there is something else or nothing."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return rng.choice(_BAD)
    value = copy.copy(value)
    place = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if rng.random() < 0.1:
        del value[place]
    elif rng.random() < 0.1 and isinstance(value, list):
        value.append(value[place])
    else:
        value[place] = _spoiled(value[place], rng)
    return value


def _teacher(rng: random.Random) -> str:
    prompt = [rng.randrange(_VOCABULARY) for _ in range(5)]
    positions: list[Any] = [None]
    for token in prompt[1:]:
        positions.append(
            {str(n): {"logprob": -2.0 - rng.random()} for n in {token, *rng.sample(range(_VOCABULARY), 4)}}
        )
    whole = {"choices": [{"index": 0, "prompt_logprobs": positions, "prompt_token_ids": list(prompt)}]}
    [found] = parse_positions(_spoiled(whole, rng) if rng.random() < 0.9 else whole, [prompt])
    for position, token in zip(found[1:], prompt[1:], strict=True):
        entry = entries(position, token, 3)
        if not all(map(math.isfinite, [*entry.logprobs, entry.target])) or sum(map(math.exp, entry.logprobs)) > 1.02:
            return f"scores that are none were taken: {entry}"
    return "taken"


def _ids(rng: random.Random) -> list[tuple[int, float]]:
    return [(rng.randrange(_VOCABULARY), -rng.random()) for _ in range(rng.randrange(1, _LONGEST))]


def _vllm(rng: random.Random) -> str:
    pairs = _ids(rng)
    choice = {"token_ids": [a for a, _ in pairs], "logprobs": {"token_logprobs": [b for _, b in pairs]}}
    found = vllm_server_engine.parse_completion(_spoiled({"choices": [choice]}, rng), {2})
    return _checked(check_completion(found, _LONGEST, _VOCABULARY))


def _sglang(rng: random.Random) -> str:
    about = {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[b, a, None] for a, b in _ids(rng)],
        "weight_version": "1",
    }
    found, _ = sglang_server_engine.parse_completion(_spoiled({"meta_info": about}, rng), {2})
    return _checked(check_completion(found, _LONGEST, _VOCABULARY))


def _checked(completion: Any) -> str:
    sound = all(0 <= token < _VOCABULARY for token in completion.ids) and all(map(math.isfinite, completion.logprobs))
    same = len(completion.ids) == len(completion.logprobs)
    return "taken" if sound and same else f"a completion that is none was taken: {completion}"


def _weights(rng: random.Random) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = make_tiny(rng.choice(_FAMILIES), Path(name) / "model")
        file = folder / "model.safetensors"
        tensors = load_file(file)
        spoiled = rng.choice(sorted(tensors))
        place = rng.randrange(tensors[spoiled].numel())
        tensors[spoiled].view(-1)[place] = torch.tensor(rng.choice((math.nan, math.inf, -math.inf)))
        save_file(tensors, file, metadata={"format": "pt"})
        load_model(folder)
    return f"a checkpoint was loaded whose {spoiled} is not finite at {place}"


if __name__ == "__main__":
    numbers = [float(argument) for argument in sys.argv[1:]]
    found = run(int(numbers[0]) if numbers else 0, numbers[1] if len(numbers) > 1 else 0.0, print)
    print(dict(found.tried), len(found.faults), "faults")
