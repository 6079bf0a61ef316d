"""Adapters that lead elsewhere, execute, or do not fit."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.torture.hostile_models.case import (
    ADAPTER,
    TEXTS,
    Case,
    Write,
    code,
    filled,
    instead,
    linked,
    pickle_file,
    pickled,
    stored,
    zipped,
)


def adapter(folder: Path, **values: Any) -> None:
    """Replace the model in ``folder`` by a LoRA adapter on ``base`` beside it; ``values`` change its configuration."""
    shutil.rmtree(folder)
    folder.mkdir()
    header = json.loads((folder.parent / "base" / "config.json").read_text())
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": str(folder.parent / "base"),
        "lora_dropout": 0.0,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | values))
    rows = header["num_attention_heads"] * header["head_dim"]
    tensors = {}
    for layer in range(header["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_"
        tensors |= {f"{name}A.weight": torch.ones(2, header["hidden_size"]), f"{name}B.weight": torch.zeros(rows, 2)}
    save_file(tensors, folder / ADAPTER)


def _adapted(after: Callable[[Path], object] = lambda f: None, **values: Any) -> Write:
    def write(folder: Path) -> None:
        adapter(folder, **values)
        after(folder)

    return write


def _adapter_pickle(data: Callable[[Path], bytes], *, beside: bool) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        if not beside:
            (folder / ADAPTER).unlink()
        (folder / "adapter_model.bin").write_bytes(data(folder))

    return write


def adapters() -> Iterator[Case]:
    yield Case("adapter", _adapted(), fine=True)
    for kind, data in (("pickle", pickled), ("torch.save", zipped)):
        yield Case(f"adapter of a {kind}", _adapted(_adapter_pickle(data, beside=False)))
        yield Case(f"adapter with a {kind} beside", _adapted(_adapter_pickle(data, beside=True)), fine=True)
    paths = ("org/model", "../../../../etc", "/etc/passwd", "/dev/zero", "", ".", "model")
    for base in (*paths, 7, [], {}, None, "x" * 9000, "a\0b", "https://example.org/x", "C:\\x"):
        yield Case(f"adapter on {base!r:.40}", _adapted(base_model_name_or_path=base))
    yield Case("adapter on itself", lambda f: adapter(f, base_model_name_or_path=str(f)))
    yield Case("adapter on an adapter", _on_another)
    yield Case(
        "adapter on a pickle",
        lambda f: (adapter(f), pickle_file(zipped, "pytorch_model.bin", beside=False)(f.parent / "base")),
    )
    system = {"base_model_class": "system", "parent_library": "os"}
    yield Case("adapter with code", _adapted(auto_mapping=system), fine=None)
    yield Case(
        "adapter with a library",
        lambda f: (
            adapter(f, megatron_config={"x": 1}, megatron_core="custom"),
            (f / "custom.py").write_text(code(f)),
        ),
        fine=None,
    )
    yield from _settings()
    yield from _files()


def _settings() -> Iterator[Case]:
    for rank in (10**9, 10**18, 0, -1, "x", None, [], 1.5, 3, math.nan):
        yield Case(f"adapter of rank {rank!r}", _adapted(r=rank))
    patterns = (r"(.*)*x", r"((a|.)+)+\d#", "[", ".*" * 30 + "x", 7, None, {}, [7], [], "", ["x" * 10**6], "all-linear")
    for pattern in (*patterns, ".*"):
        yield Case(f"adapter of modules {pattern!r:.40}", _adapted(target_modules=pattern), fine=None)
    slow = r"(.*)*x"
    for key, value in {
        "rank_pattern": {slow: 2},
        "alpha_pattern": {slow: 2},
        "exclude_modules": slow,
        "layers_pattern": slow,
        "layers_to_transform": list(range(10**6)),
        "layer_replication": [[0, 2]] * 200_000,
        "modules_to_save": ["lm_head", "embed_tokens"],
        "trainable_token_indices": [10**9],
        "init_lora_weights": "eva",
        "use_dora": True,
        "use_rslora": "x",
        "bias": "zzz",
        "lora_alpha": math.nan,
        "task_type": "zzz",
        "peft_type": "zzz",
        "target_parameters": [slow],
        "loftq_config": {"loftq_bits": 4},
        "unknown": 1,
        "runtime_config": {"ephemeral_gpu_offload": True},
        "fan_in_fan_out": True,
        "inference_mode": False,
    }.items():
        yield Case(f"adapter with {key}", _adapted(**{key: value}), fine=None)
    yield Case("adapter with ranks of 10^9", _adapted(rank_pattern={"q_proj": 10**9}))
    for kind in ("PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING", "IA3", "XLORA", "ADALORA", "VERA", 7, None, []):
        yield Case(f"adapter of type {kind!r}", _adapted(peft_type=kind, num_virtual_tokens=10**9), fine=None)


def _files() -> Iterator[Case]:
    yield Case("adapter of no tensors", _adapted(lambda f: (f / ADAPTER).write_bytes(stored(b"{}"))), fine=None)
    yield Case("adapter of other tensors", _adapted(lambda f: save_file({"x": torch.ones(3)}, f / ADAPTER)), fine=None)
    yield Case("adapter of wrong shapes", _adapted(_tensors(lambda tensor: tensor.T.contiguous())))
    yield Case("adapter not finite", _adapted(_tensors(lambda tensor: tensor * math.nan)))
    for what, text in TEXTS.items():
        yield Case(f"adapter_config.json {what}", _adapted(lambda f, t=text: filled(f / "adapter_config.json", t)))
    for name in ("adapter_config.json", ADAPTER):
        yield Case(
            f"{name} linked out", _adapted(lambda f, n=name: (adapter(_beside(f)), linked(n, f"../other/{n}")(f)))
        )
        yield Case(f"{name} linked to /dev/zero", _adapted(linked(name, "/dev/zero")))
        yield Case(f"{name} a pipe", _adapted(instead(name, os.mkfifo)))


def _tensors(change: Callable[[torch.Tensor], torch.Tensor]) -> Write:
    def write(folder: Path) -> None:
        save_file({name: change(tensor) for name, tensor in load_file(folder / ADAPTER).items()}, folder / ADAPTER)

    return write


def _beside(folder: Path) -> Path:
    other = folder.parent / "other"
    other.mkdir()
    return other


def _on_another(folder: Path) -> None:
    adapter(_beside(folder))
    adapter(folder, base_model_name_or_path=str(folder.parent / "other"))
