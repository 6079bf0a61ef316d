"""Real vLLM, on a CPU: engines in this process and servers as processes of their own.

These tests run in the environment that `make test-vllm` builds. Every file that is to run there is marked `vllm`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = "a-key-that-nobody-may-find"
_START = 1200.0  # seconds

# vLLM's CPU kernels take heads of 32 and more.
SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}


@pytest.fixture(scope="session", autouse=True)
def _vllm(require_component: Callable[[bool, str], None]) -> None:
    require_component(importlib.util.find_spec("vllm") is not None, "vLLM")


@pytest.fixture(scope="session")
def tied(make_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3: its head is its embedding."""
    return make_tiny("qwen3", tmp_path_factory.mktemp("vllm") / "tied", **SHAPE)


@pytest.fixture(scope="session")
def untied(make_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama: its head is a matrix of its own."""
    return make_tiny("llama", tmp_path_factory.mktemp("vllm") / "untied", **SHAPE)


@dataclass
class Served:
    """A vLLM server on one port, which can be killed and started again."""

    model: Path
    log: Path
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=lambda: _free_port())
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, wait: bool = True) -> None:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--enforce-eager"]
        command += ["--kv-cache-memory-bytes", str(64 << 20), "--max-logprobs", "32", *self.flags]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "VLLM_API_KEY": KEY,
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            **self.environment,
        }
        environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        begun = time.monotonic()
        while time.monotonic() - begun < _START:
            assert self.process is not None
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        pytest.fail(f"vLLM did not start:\n{self.log.read_text()[-3000:]}", pytrace=False)

    def kill(self) -> None:
        """End the server and its engine at once, as a crash would."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="session")
def teacher_server(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with nothing but a teacher in it."""
    served = Served(tied, tmp_path_factory.mktemp("log") / "teacher.log", ("--served-model-name", "clean"))
    served.start()
    yield served
    served.kill()


@pytest.fixture(scope="module")
def engine_server(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that takes over adapters and weights; it keeps the last ones, so that each module has its own."""
    flags = ("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", *PROJECTIONS)
    flags += ("--worker-extension-cls", "recovery.rollouts.vllm_worker.FollowedWeights")
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    served = Served(tied, tmp_path_factory.mktemp("log") / "engine.log", flags, environment)
    served.start()
    yield served
    served.kill()


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
