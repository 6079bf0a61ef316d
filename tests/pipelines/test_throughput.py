"""Measurements of this machine, time estimates, and the table of what a run takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.planning import activations
from pipelines.planning.activations import CPU_UTILISATION, Network, Speed, Work, parameters, published, this_machine
from pipelines.planning.memory import free_memory as free_beside
from pipelines.planning.memory import memory_counted
from pipelines.planning.work import midtraining_work
from pipelines.runtime.versions import machine
from pipelines.table import BEFORE, DISTILL, EVALUATE, GIB, MIDTRAIN, PlanRow, compared, duration, size, table, total_of
from recovery.config import MidtrainConfig
from recovery.errors import UsageError
from recovery.models import hardware
from recovery.models.hardware import free_memory, peak_memory, total_memory
from recovery.models.loading import load_model
from tests.conftest import ROOT

NETWORK = Network(multiplied=10**9, layers=20, bytes=2 * 10**9)
SPEED = Speed(operations=1e12, bandwidth=1e11)


def test_parameters_are_counted_from_the_headers_and_the_same_weights_in_another_file_are_not(
    tiny_llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    save_file(
        {f"original.{name}": value for name, value in tensors.items()}, tmp_path / "model" / "consolidated.safetensors"
    )
    assert parameters(tmp_path / "model") == parameters(tiny_llama)
    model = load_model(tmp_path / "model", device="cpu").model
    assert parameters(tiny_llama) == sum(p.numel() for p in model.parameters())
    (tmp_path / "model" / "model.safetensors").unlink()
    model.save_pretrained(tmp_path / "model", max_shard_size="50KB")
    assert parameters(tmp_path / "model") == parameters(tiny_llama)


def test_cached_files_of_a_container_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemAvailable: 120000000 kB\n",
        "/sys/fs/cgroup/memory.max": f"{16 * GIB}\n",
        "/sys/fs/cgroup/memory.current": f"{15 * GIB}\n",
        "/sys/fs/cgroup/memory.stat": f"file {14 * GIB}\ninactive_file {13 * GIB}\nactive_file {GIB}\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda path: files[str(path)])
    assert free_memory("cpu") == 14 * GIB
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PHYS_PAGES": 1 << 24, "SC_PAGE_SIZE": 4096}[name])
    assert total_memory("cpu") == 16 * GIB, "the container's"
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert total_memory("cpu") == 64 * GIB


def test_what_is_measured_is_of_this_machine() -> None:
    assert 10**7 < peak_memory("cpu") < 10**12
    assert 10**7 < free_memory("cpu") <= total_memory("cpu") < 10**14
    speed = this_machine("cpu", torch.float32)
    assert 10**8 < speed.operations < 10**15
    assert 10**7 < speed.bandwidth < 10**13


def test_a_machine_is_measured_once_for_all_plans_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = this_machine("cpu", torch.float32)
    monkeypatch.setattr(activations, "_fastest", lambda *_: pytest.fail("it was measured again"))
    assert this_machine("cpu", torch.float32) == usual
    assert this_machine("cpu", torch.float32, 1.0).operations == pytest.approx(usual.operations / CPU_UTILISATION)


def test_training_takes_six_operations_a_parameter_and_an_adapter_four() -> None:
    assert Work(trained=1000).seconds(NETWORK, SPEED) == pytest.approx(6.0)
    assert Work(trained=1000, frozen=True).seconds(NETWORK, SPEED) == pytest.approx(4.0)
    assert Work(trained=1000, again=True).seconds(NETWORK, SPEED) == pytest.approx(8.0)
    assert Work(read=1000).seconds(NETWORK, SPEED) == pytest.approx(2.0)


def test_a_turn_of_decoding_reads_all_weights_however_few_answers_there_are() -> None:
    one, many = (Work(turns=100, rows=rows, vllm=True).seconds(NETWORK, SPEED) for rows in (1, 8))
    assert one == many == pytest.approx(100 * 2e9 / 1e11)
    assert Work(turns=100, rows=1000, vllm=True).seconds(NETWORK, SPEED) == pytest.approx(100 * 2e12 / 1e12)
    assert Work(turns=100, rows=1).seconds(NETWORK, SPEED) > one  # plus Python's overhead


def test_a_gpu_gets_a_share_of_its_published_peak() -> None:
    assert published(100, 1000).operations == pytest.approx(0.4e14)
    assert published(100, 1000, utilisation=0.2).operations == pytest.approx(0.2e14)


def test_words() -> None:
    assert [size(count) for count in (30 << 20, 3 << 30)] == ["30 MiB", "3.0 GiB"]
    assert [duration(s) for s in (12, 600, 12_000)] == ["12 s", "10 min", "3 h 20 min"]


def test_replay_takes_time_to_sample_first() -> None:
    plain = MidtrainConfig(replay_prompts=130, max_new_tokens=100)
    assert midtraining_work(plain, "full", 500) == Work(trained=500, rows=1)
    sampled = midtraining_work(replace(plain, replay=0.3), "full", 500)
    assert (sampled.turns, sampled.rows) == (3 * 100, 64), "in chunks of 64"
    narrow = midtraining_work(replace(plain, replay=0.3, rollout_tokens=16 * 256), "full", 500)
    assert narrow.turns > sampled.turns and narrow.rows < 64
    assert midtraining_work(replace(plain, replay=0.3, engine="vllm"), "full", 500).vllm
    own = replace(plain, replay=0.3, replay_data=Path("chat.jsonl"))
    assert midtraining_work(own, "full", 500) == Work(trained=500, rows=1)


def test_a_machine_is_named_with_the_gpu_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert machine(hardware.gpu_name("cuda:1")) == machine().replace("Machine: ", "Machine: GPU 1, ")
    assert machine(hardware.gpu_name("cpu")) == machine()


RUN = """
import sys
from pipelines.planning.memory import memory_counted
from pipelines.table import PlanRow
with memory_counted([PlanRow("training", "midtrain", 1.0, int(sys.argv[1]))], "cpu"):
    print("counted", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_counts_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would find the memory free, and the system would kill one of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planned, mine = total_memory("cpu") * 2, [PlanRow("training", "midtrain", 1.0, GIB)]
    command = [sys.executable, "-c", RUN, str(planned)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "counted\n"
        assert free_beside("cpu") == 0 < free_memory("cpu")
        refusal = rf"needs 1\.0 GiB and 0 MiB are left beside process {first.pid}, another run .* wait until it ends"
        with pytest.raises(UsageError, match=refusal), memory_counted(mine, "cpu"):
            pytest.fail("it began")
        first.kill()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        assert free_beside("cpu") > 0, "a process that nobody has waited for holds nothing"
    with memory_counted(mine, "cpu"), memory_counted([PlanRow("training", "midtrain", 1.0, planned)], "cpu"):
        own = list((tmp_path / "recovery" / "runs").rglob("*.json"))
        assert [file.stem for file in own] == [str(os.getpid())], "the killed run's is gone, and one file is a run's"
    assert not list((tmp_path / "recovery" / "runs").rglob("*.json"))


ROWS = (
    PlanRow("mid-training", MIDTRAIN, 600, 2 * GIB, 1),
    PlanRow("sampling", DISTILL, 3600, GIB, 1),
    PlanRow("training", DISTILL, 82_200, 6 * GIB, 1),
    PlanRow("evaluations", EVALUATE, 45, 512 << 20, 1),
)


def took(kind: str, seconds: float, peak: int, **details: int) -> Any:
    return SimpleNamespace(kind=kind, wall_seconds=seconds, peak_memory_bytes=peak, details=details)


def test_rows_line_up_above_their_total() -> None:
    lines = table(ROWS, 9 * GIB).splitlines()
    assert lines == [
        "                       time   memory",
        "mid-training         10 min  2.0 GiB",
        "sampling             60 min  1.0 GiB",
        "training        22 h 50 min  6.0 GiB",
        "evaluations            45 s  512 MiB",
        "total, at most  24 h 01 min  6.0 GiB at the peak, 9.0 GiB free",
    ]
    assert total_of(ROWS) == (86_445, 6 * GIB)
    short = "less memory is free now than this needs: close other programs first"
    assert table(ROWS, 6 * GIB - 1).splitlines()[len(lines) :] == [short]
    assert len(table(ROWS, 6 * GIB).splitlines()) == len(lines)


def test_rows_of_several_cycles_say_which() -> None:
    two = (*ROWS[:1], PlanRow("mid-training", MIDTRAIN, 600, GIB, 2))
    assert [line.split("  ")[0] for line in table(two, 0).splitlines()[1:3]] == [
        "cycle 1: mid-training",
        "cycle 2: mid-training",
    ]


def test_what_a_run_took_stands_beside_what_was_planned() -> None:
    stages = [
        took(EVALUATE, 30, 2 * GIB, **{BEFORE: GIB}),
        took(MIDTRAIN, 1200, 4 * GIB, **{BEFORE: GIB}),
        took(DISTILL, 60, GIB),  # of a release that did not know what there was before
        took(EVALUATE, 60, 0, **{BEFORE: GIB}),
    ]
    assert compared(ROWS, stages) == (
        "took 22 min of 24 h 01 min planned (mid-training 20 min of 10 min, recovery 60 s of 23 h 50 min, evaluation "
        "2 min of 45 s); memory 3.0 GiB of 6.0 GiB planned"
    )
    assert compared(ROWS[:1], stages[1:2]) == "took 20 min of 10 min planned; memory 3.0 GiB of 2.0 GiB planned"
    assert compared(ROWS[:1], []) == "took 0 s of 10 min planned; memory 0 MiB of 2.0 GiB planned"
