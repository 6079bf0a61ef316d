"""Bad numbers: answers of servers with parts of a wrong kind, and checkpoints with weights that are not finite.

Each answer is either taken, with finite log-probabilities of tokens of the vocabulary, or refused in one line.
``python -m tests.torture numbers`` runs it.
"""

from __future__ import annotations

import copy
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from recovery.errors import RecoveryError
from recovery.models.loading import load_model
from recovery.prompt_logprobs import entries, parse_positions
from recovery.rollouts import vllm_server_engine
from recovery.rollouts.engine import check_completion
from tests.models import make_tiny
from tests.torture.outcome import Outcome, numbers

_VOCABULARY, _LONGEST = 448, 8
_NUMBERS = (math.nan, math.inf, -math.inf, 1.5, -1, 10**30)
_BAD: tuple[Any, ...] = (*_NUMBERS, None, "", "x", True, [], {}, [[]], {"logprob": 0})
_FAMILIES = ("qwen3", "llama", "gemma2", "gemma3")


def run(seed: int, seconds: float, report: Callable[[str], None], only: int | None = None) -> Outcome:
    """Try bad answers and bad checkpoints for ``seconds`` (0: 2,000 of both); ``only`` repeats one by its number."""
    outcome = Outcome()
    for number in range(2000) if seconds <= 0 and only is None else numbers(seconds, only):
        kind, result = _tried(random.Random(f"{seed} {number}"), number)  # each case can be brought back alone
        outcome.count(f"{kind}: {result.partition(':')[0]}")
        if result not in ("taken", "refused"):
            outcome.faults.append(f"--seed {seed} numbers --only {number}: {kind}: {result}")
            report(outcome.faults[-1])
        elif only is not None:
            report(f"numbers {number}: {kind}: {result}")
    return outcome


def _tried(rng: random.Random, number: int) -> tuple[str, str]:
    """Return what was tried, and how it ended: "taken", "refused", or what is wrong."""
    kind, work = rng.choice((("teacher", _teacher), ("vllm", _vllm)))
    if number % 500 == 0:
        kind, work = "weights", _weights
    try:
        return kind, work(rng)
    except RecoveryError as error:
        message = str(error)
        return kind, "refused" if "\n" not in message and len(message) < 2000 else f"no line: {message!r:.200}"
    except Exception as error:
        return kind, f"{type(error).__name__}: {error!s:.200}"


def spoiled(value: Any, rng: random.Random) -> Any:
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
        value[place] = spoiled(value[place], rng)
    return value


def _teacher(rng: random.Random) -> str:
    prompt = [rng.randrange(_VOCABULARY) for _ in range(5)]
    positions: list[Any] = [None]
    for token in prompt[1:]:
        positions.append(
            {str(n): {"logprob": -2.0 - rng.random()} for n in {token, *rng.sample(range(_VOCABULARY), 4)}}
        )
    whole = {"choices": [{"index": 0, "prompt_logprobs": positions, "prompt_token_ids": list(prompt)}]}
    [found] = parse_positions(spoiled(whole, rng) if rng.random() < 0.9 else whole, [prompt])
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
    found = vllm_server_engine.parse_completion(spoiled({"choices": [choice]}, rng), {2})
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
