"""What a dry run says without loading weights."""

from __future__ import annotations

from pathlib import Path

import torch

from pipelines.estimates import (
    Network,
    Work,
    flops,
    free_memory,
    parameters,
    peak_memory,
    published,
    size,
    this_machine,
)
from pipelines.memory import Memory, Needs
from pipelines.progress import duration
from recovery.loading import load_model

NETWORK = Network(multiplied=10**9, layers=30, bytes=2 * 10**9)


def test_parameters_are_counted_from_the_headers(tiny_llama: Path) -> None:
    model = load_model(tiny_llama, device="cpu").model
    assert parameters(tiny_llama) == sum(p.numel() for p in model.parameters())


def test_the_peak_is_what_is_held_and_the_larger_of_training_and_sampling() -> None:
    memory = Memory({"weights": 40, "optimizer": 20}, {"activations": 10, "logits": 5}, {"KV cache": 12})
    assert memory.peak == 75 and sum(memory.at_peak.values()) == 75
    assert Needs(memory, 101).fits and not Needs(memory, 99).fits, "a quarter of a CPU's memory is not counted on"
    assert Needs(memory, 82, gpu=True).fits
    assert str(Needs(Memory({"weights": 30 << 20}), 3 << 30)) == "about 30 MiB at the peak, 3.0 GiB free"
    assert size(5 << 30) == "5.0 GiB"


def test_what_is_measured_is_of_this_machine() -> None:
    assert 10**7 < peak_memory("cpu") < 10**12
    assert 10**7 < free_memory("cpu") < 10**14
    speed = this_machine("cpu", torch.float32)
    assert 10**8 < speed.operations < 10**14 and 10**7 < speed.bandwidth < 10**13


def test_work_takes_the_longer_the_more_there_is_of_it() -> None:
    speed = published(tflops=100, gigabytes=1000, utilisation=0.5)
    some = Work(trained=10**6).seconds(NETWORK, speed)
    assert some == flops(10**9, trained=10**6) / 0.5e14
    assert Work(trained=2 * 10**6).seconds(NETWORK, speed) == 2 * some
    assert Work(trained=10**6, frozen=True).seconds(NETWORK, speed) < some, "frozen weights get no gradient"
    assert Work(trained=10**6, again=True).seconds(NETWORK, speed) > some, "a forward pass more"
    slow, fast = (Work(turns=100, rows=8, vllm=vllm).seconds(NETWORK, speed) for vllm in (False, True))
    assert 0 < fast < slow, "Python between the layers"


def test_durations_in_words() -> None:
    assert [duration(s) for s in (12, 600, 12_000)] == ["12 s", "10 min", "3 h 20 min"]
