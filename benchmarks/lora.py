"""A LoRA distillation step, with the adapter off for the teacher, against TRL's with a second model as teacher.

Run: python -m benchmarks.lora [--write]

The model has Qwen3's architecture and vocabulary size (151,936 entries) and random weights, so that every response runs
to the full length. Each side runs in its own process and waits for its turn, as in benchmarks.step: sampling one
response per prompt, scoring it with the teacher, reverse KL, backward, AdamW. TRL gets the same adapter and, like ours,
weights in bfloat16 if the processor supports it; its clean teacher is a second model. Peak memory is the maximum of a
side's process during a step, above its memory before loading anything; on a GPU, that of
the GPU.

The default size suits a CPU; --width 1024 --layers 28 --prompts 32 --new-tokens 1024 is the 0.6B model.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen3Config

from benchmarks import _peer, _report, step
from benchmarks._sides import Side, take_turns
from recovery.data.prompts import behaviour_prompts
from recovery.miniature.package import materialise
from recovery.models.hardware import gpu_name

FASTER, SMALLER = 1.5, 0.5


def random_model(out: Path, width: int, layers: int, vocabulary: int, seed: int, device: str = "cpu") -> int:
    """Write a Qwen3 model with random weights and the miniature's tokenizer; return its number of weights."""
    heads = max(2, width // 64)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        intermediate_size=3 * width,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    with torch.device(device):  # on a GPU in no time, where a processor takes a minute for 0.6B
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tokens = materialise(out.with_name("tokens"))
    ends = GenerationConfig.from_pretrained(tokens)
    model.generation_config = GenerationConfig(eos_token_id=ends.eos_token_id, pad_token_id=ends.pad_token_id)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(tokens).save_pretrained(out)
    return sum(weight.numel() for weight in model.parameters())


def prepare(options: argparse.Namespace, folder: Path) -> tuple[step.Job, int]:
    """Write the model and the prompts of all steps."""
    model, prompts, steps = folder / "model", folder / "prompts.jsonl", options.steps + 1
    weights = random_model(model, options.width, options.layers, options.vocabulary, options.seed, options.device)
    chosen = behaviour_prompts(folder / "tokens").train[: steps * options.prompts]
    prompts.write_text("".join(json.dumps(list(p.messages)) + "\n" for p in chosen), encoding="utf-8")
    numbers = (options.prompts, options.new_tokens, steps, options.threads, options.seed, options.prompts)
    return step.Job(str(model), str(model), str(prompts), *numbers, lora=True, device=options.device), weights


def ratios(sides: Sequence[Side]) -> dict[str, float]:
    """Return TRL's median times over ours, and our peak memory over TRL's."""
    peaks = {side.name: side.largest("megabytes") for side in sides}
    return step.ratios(sides) | ({"megabytes": peaks["ours"] / peaks["TRL"]} if "TRL" in peaks else {})


def markdown(sides: Sequence[Side]) -> str:
    """Return the table and the ratios as Markdown."""
    rows = [
        (
            side.name,
            f"{side.fastest('seconds'):.2f} s",
            f"{side.middle('seconds'):.2f} s",
            f"{side.middle('processor seconds'):.2f} s",
            f"{side.largest('megabytes'):,.0f} MB",
            f"{side.middle('tokens'):,.0f}",
        )
        for side in sides
    ]
    header = ("step of", "fastest", "median", "CPU time, median", "peak memory", "tokens a step")
    ours = next(side for side in sides if side.name == "ours")
    parts = f"{ours.middle('generating'):.2f} s sampling, {ours.middle('training'):.2f} s scoring and training"
    lines = [_report.table(header, rows), "", f"Ours consists of {parts} (medians of wall time).", ""]
    found = ratios(sides)
    if found:
        time = "met" if min(found["seconds"], found["processor seconds"]) >= FASTER else "MISSED"
        memory = "met" if found["megabytes"] <= SMALLER else "MISSED"
        lines += [
            f"- TRL's step over ours: {found['seconds']:.2f} in wall time, {found['processor seconds']:.2f} in CPU "
            f"time (medians); goal {FASTER}: {time}.",
            f"- Our peak memory over TRL's: {found['megabytes']:.2f}; goal {SMALLER}: {memory}.",
        ]
    return "\n".join(lines)


def main() -> int:
    """Measure and print; write with --write. Return 1 if a goal was missed."""
    parser = _report.parser(__doc__, "lora", "seed", "threads", named=True)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--prompts", type=int, default=8, help="prompts per step")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2, help="measured steps, after one warm-up step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    packages = ("torch", "transformers", "peft", "trl")
    facts = _report.machine(packages, gpu=gpu_name(options.device), threads=options.threads, seed=options.seed)
    with tempfile.TemporaryDirectory() as name:
        job, weights = prepare(options, Path(name))
        sides = take_turns("benchmarks.step", _peer.SIDES, vars(job), Path(name), job.steps)
    body = markdown(sides)
    print(body)
    if options.write:
        size = (
            f"{weights / 1e6:.0f}M weights ({options.layers} layers of width {options.width}, vocabulary "
            f"{options.vocabulary:,}), {options.prompts} prompts per step, {options.new_tokens} new tokens each, "
            f"{options.steps} steps."
        )
        data = {"steps": {side.name: side.counted() for side in sides}, "ratios": ratios(sides), "weights": weights}
        text = f"{_report.note(__doc__)}\n{size}\n\n{body}"
        print(_report.write(options.name, "A distillation step under LoRA", text, facts, data))
    return int("MISSED" in body)


if __name__ == "__main__":
    sys.exit(main())
