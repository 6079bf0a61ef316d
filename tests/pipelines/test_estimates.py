"""What a dry run says without loading weights."""

from __future__ import annotations

from pathlib import Path

from pipelines.estimates import Needs, free_memory, parameters, peak_memory, seconds_for, training_needs
from pipelines.progress import duration
from recovery.loading import load_model


def test_parameters_are_counted_from_the_headers(tiny_llama: Path) -> None:
    model = load_model(tiny_llama, device="cpu").model
    assert parameters(tiny_llama) == sum(p.numel() for p in model.parameters())


def test_full_fine_tuning_needs_more_than_an_adapter_and_a_teacher_adds_to_it() -> None:
    full = training_needs(10**9, "full", teachers=0, device="cpu").needed
    assert full == 16 * 10**9
    assert training_needs(10**9, "full", teachers=1, device="cpu").needed == 20 * 10**9
    assert training_needs(10**9, "lora", teachers=0, device="cpu").needed < full / 3


def test_memory_must_leave_room_for_activations() -> None:
    assert Needs(79, 100).fits
    assert not Needs(90, 100).fits


def test_what_is_measured_is_of_this_machine() -> None:
    assert 10**7 < peak_memory("cpu") < 10**12
    assert 10**7 < free_memory("cpu") < 10**14
    assert 0 < seconds_for(10**6, trained=1000) < seconds_for(10**6, trained=10**6)


def test_sizes_in_words() -> None:
    assert str(Needs(30 << 20, 3 << 30)) == "about 30 MiB for weights and optimizer, 3.0 GiB free"


def test_durations_in_words() -> None:
    assert [duration(s) for s in (12, 600, 12_000)] == ["12 s", "10 min", "3 h 20 min"]
