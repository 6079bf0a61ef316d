"""Settings: every field of a configuration class declares its help and range, which are checked on creation."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.config import SECTIONS, CycleConfig, DistillConfig, EvalConfig, InterpolateConfig, MidtrainConfig
from recovery.errors import UsageError
from recovery.settings import Setting, check_settings, flag_of, same_as, setting, settings_of
from recovery.teacher_spec import KINDS

ROOT = Path(__file__).resolve().parents[2]
# Given as an argument, or configurations themselves.
UNDECLARED = {"checkpoint", "midtrain", "distill", "eval", "file"}


def refused(declared: Setting) -> Iterator[Any]:
    """Yield the nearest values that a setting does not allow."""
    if declared.choices:
        yield "surely not one of them"
    for bound, step in ((declared.minimum, -1), (declared.maximum, 1), (declared.above, 0), (declared.below, 0)):
        if bound is not None:
            yield bound + step


@pytest.mark.parametrize("kind", SECTIONS.values(), ids=SECTIONS)
def test_every_field_declares_a_help(kind: type) -> None:
    declared = settings_of(kind)
    assert {field.name for field in dataclasses.fields(kind)} - declared.keys() <= UNDECLARED
    for name, one in declared.items():
        assert one.help.endswith("."), f"{name}: {one.help}"


@pytest.mark.parametrize("kind", SECTIONS.values(), ids=SECTIONS)
def test_a_value_outside_its_range_is_refused_in_one_line_by_flag(kind: type) -> None:
    tried = 0
    for name, declared in settings_of(kind).items():
        for value in refused(declared):
            given = (value,) if isinstance(getattr(kind, name), tuple) else value
            with pytest.raises(UsageError) as caught:
                kind(**{name: given})
            assert str(caught.value).startswith(f"{flag_of(kind, name)} "), name
            assert repr(value) in str(caught.value) and "\n" not in str(caught.value)
            tried += 1
    assert tried >= 6
    for name, one in settings_of(kind).items():
        if one.choices:
            default = getattr(kind, name)
            assert set(default if isinstance(default, tuple) else (default,)) <= {None, *one.choices}, name


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (MidtrainConfig, {"replay": 1.0}, "--replay is 1.0, but must be between 0 and 0.95"),
        (MidtrainConfig, {"lr": 0.0}, "--lr is 0.0, but must be above 0"),
        (MidtrainConfig, {"lr": float("nan")}, "--lr is nan, but must be a finite number"),
        (MidtrainConfig, {"weight_decay": -0.1}, "--weight-decay is -0.1, but must be at least 0"),
        (MidtrainConfig, {"tuning": "some"}, "--tuning 'some' is not known: use auto, lora or full"),
        (MidtrainConfig, {"seed": -1}, "--seed is -1, but must be at least 0 and below 2**31"),
        (MidtrainConfig, {"replay_loss": "mse"}, "--replay-loss 'mse' is not known: use answers or kl"),
        (DistillConfig, {"steps": 0}, "--steps is 0, but must be at least 1"),
        (DistillConfig, {"lam": 1.5}, "--lambda is 1.5, but must be between 0 and 1"),
        (DistillConfig, {"ema_decay": 1.0}, "--ema-decay is 1.0, but must be above 0 and below 1"),
        (DistillConfig, {"floor": 1.0}, "--floor is 1.0, but must be at most 0"),
        (InterpolateConfig, {"alphas": (0.5, 2.0)}, "--alpha is 2.0, but must be between 0 and 1"),
        (EvalConfig, {"limit": 0}, "--limit is 0, but must be at least 1"),
        (EvalConfig, {"seed": 2**31}, "--seed is 2147483648, but must be at least 0 and below 2**31"),
        (CycleConfig, {"gate_alpha": 0.5}, "--gate-alpha is 0.5, but must be above 0 and below 0.5"),
    ],
)
def test_the_message_says_what_is_allowed(kind: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        kind(**values)
    assert str(caught.value) == message


@pytest.mark.parametrize("bound", ["minimum", "above", "maximum", "below"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_never_allowed(bound: str, value: float) -> None:
    declared = Setting("help", **{bound: 0})  # type: ignore[arg-type]
    assert not declared.allows(value)
    assert declared.refusal(value) == f"is {value}, but must be a finite number"


def test_a_declaration_can_be_taken_over_and_changed() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own:
        size: int = setting(4, "Size.", minimum=1)
        names: dict[str, str] = setting(dict, "Names.", flag="--name")

    @dataclasses.dataclass(frozen=True)
    class Other:
        size: int = same_as(Own, "size", value=8, maximum=9)

    assert (Own().size, Own().names, Other().size) == (4, {}, 8)
    assert flag_of(Own, "names") == "--name"
    assert settings_of(Other)["size"] == Setting("Size.", minimum=1, maximum=9)
    check_settings(Other(9))
    with pytest.raises(UsageError, match="--size is 10, but must be between 1 and 9"):
        check_settings(Other(10))


def test_the_contexts_are_those_that_a_teacher_can_be_given() -> None:
    assert settings_of(DistillConfig)["context"].choices == ("none", *KINDS)


def test_the_configurations_import_nothing_heavy() -> None:
    code = "import sys, recovery.config; sys.exit(str([m for m in ('torch', 'numpy', 'httpx') if m in sys.modules]))"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.stderr.strip() == "[]"


def test_a_run_is_tested_every_few_steps_and_once_at_least() -> None:
    assert DistillConfig(steps=200, check_every=25).planned_tests == 8
    assert DistillConfig(steps=20, check_every=25).planned_tests == 1
