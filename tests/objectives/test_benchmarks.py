"""The benchmarks compare like with like, and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import _report, _sides, loss, step

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("divergence", ["reverse_kl", "jsd"])
@pytest.mark.parametrize("trained", [False, True])
def test_every_loss_gives_the_same_value_and_gradient(dtype: str, divergence: str, trained: bool) -> None:
    tensors = loss.Tensors.of(loss.Case("tiny", 40, 16, 96, dtype, trained, divergence), seed=1)
    found = {name: loss.value_and_gradient(name, tensors, divergence) for name in loss.LOSSES}
    tolerance = 1e-4 if dtype == "float32" else 0.1
    for name, values in found.items():
        for key in ("loss", "gradient norm"):
            assert values[key] == pytest.approx(found["ours"][key], rel=tolerance), name
    assert found["ours"]["loss"] > 0


def test_limits_are_judged_at_the_size_they_are_for() -> None:
    def entry(seconds: float, megabytes: float) -> dict[str, object]:
        return {"seconds": [seconds], "processor seconds": [seconds], "megabytes": megabytes}

    found = {"plain": entry(2.0, 800.0), "TRL": entry(4.0, 300.0), "ours": entry(1.0, 100.0)}
    ratios = loss.ratios(found)
    assert ratios["time/TRL"] == 0.25
    assert ratios["memory/plain"] == 0.125
    large, small = loss.Case("0.6B", 1, 1, 1, "bfloat16"), loss.Case("miniature", 1, 1, 1, "bfloat16")
    assert [line.rsplit(" ", 1)[1] for line in loss.verdicts(large, ratios)] == ["met", "MISSED", "met"]
    assert loss.verdicts(small, ratios) == []


def test_results_name_the_machine_and_no_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_report, "RESULTS", tmp_path / "results")
    page = _report.write("x", "Title", _report.table(("a", "b"), [(1, 2)]), _report.machine(), {"figure": 1.5})
    text = page.read_text() + page.with_suffix(".json").read_text()
    assert "| 1 | 2 |" in text
    assert '"figure": 1.5' in text
    assert "torch" in text
    assert os.uname().nodename not in text


def test_the_ratio_is_theirs_over_ours_after_the_warm_up() -> None:
    sides = []
    for name, seconds in (("ours", [9.0, 1.0, 1.0]), ("TRL", [9.0, 2.0, 3.0])):
        steps = [{"seconds": s, "processor seconds": s, "tokens": 10.0} for s in seconds]
        sides.append(_sides.Side(name, process=None, errors=Path(), steps=steps))  # type: ignore[arg-type]
    assert step.ratios(sides) == {"seconds": 2.5, "processor seconds": 2.5}
    assert step.ratios(sides[:1]) == {}


@pytest.mark.slow
def test_a_step_is_measured(tiny_qwen3: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.step", "--model", str(tiny_qwen3)]
    command += ["--prompts", "4", "--new-tokens", "4", "--steps", "1"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "tokens a step" in finished.stdout, finished.stderr
    assert "| ours" in finished.stdout
