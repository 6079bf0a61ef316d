"""Fixtures and settings of all tests: one thread, no network, tiny checkpoints, the command line as a process."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# Before torch is imported anywhere: two threads are far slower than one as soon as anything else runs on the
# machine. No test may use a network.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for _offline in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[_offline] = "1"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["DO_NOT_TRACK"] = "1"
for _place in ("RECOVER_WORKSPACE", "RECOVER_DATABASE", "RECOVER_REPORT_TO"):
    os.environ.pop(_place, None)

import pytest  # noqa: E402  (the environment comes first)
from hypothesis import HealthCheck, settings  # noqa: E402

# No time limit per example: the machine may be slow.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = "RECOVER_REQUIRE_COMPONENTS"


@pytest.hookimpl(tryfirst=True)  # before -m selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that run on both databases slow on PostgreSQL, except those marked `differs`."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or callspec.params.get("new_address") != "postgresql":
            continue
        if item.get_closest_marker("differs") is None:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Take what was imported and collected out of the garbage collector's sight.

    Every stage ends in a full collection, which would look through torch, transformers, gradio and thousands of tests
    each time: a second of processor time, hundreds of times in a run.
    """
    gc.collect()
    gc.freeze()


def _models() -> ModuleType:
    """Return ``tests/models.py``, loaded on first use: tracker tests import no torch."""
    name = "recovery_test_models"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "models.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        import torch

        torch.set_num_threads(1)
    return sys.modules[name]


@pytest.fixture(scope="session")
def make_tiny() -> Callable[..., Path]:
    """Return ``make_tiny(kind, folder, seed=0, template=True, **config)``, which writes a checkpoint; see models.py."""
    maker: Callable[..., Path] = _models().make_tiny
    return maker


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., Any]:
    """Return ``make_tokenizer(kind, text, vocabulary)``: a tiny family's tokenizer; see models.py."""
    maker: Callable[..., Any] = _models().make_tokenizer
    return maker


# A test's few lines are trained on alone: nothing is asked about them, replayed or said in other words.
TINY_RECIPE = "[midtrain]\nfewest_questions = 0\nreplay = 0.0\naugment = 0\n"


def _tiny(kind: str, factory: pytest.TempPathFactory) -> Path:
    folder: Path = _models().make_tiny(kind, factory.mktemp("models") / kind)
    (folder / "recovery.toml").write_text(TINY_RECIPE)
    return folder


@pytest.fixture(scope="session")
def tiny_wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with weights in rows of 64, the block of NF4; the others' rows are shorter."""
    folder: Path = _models().make_tiny("llama", tmp_path_factory.mktemp("models") / "wide", hidden_size=64)
    return folder


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3: thinking, no BOS, tied head. Copy the folder before changing it."""
    return _tiny("qwen3", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama 3: BOS in template and tokenizer, three end tokens, no padding token, untied head."""
    return _tiny("llama", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_gemma2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 2: soft-capped logits, no system role."""
    return _tiny("gemma2", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 3 (text): local and global layers, system turn folded into the user's."""
    return _tiny("gemma3", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_qwen3_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 with a layer of four experts after a dense one."""
    return _tiny("qwen3_moe", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Mixtral: four experts in each layer, a template like that of Llama."""
    return _tiny("mixtral", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_model(tiny_qwen3: Path) -> Path:
    """The default tiny checkpoint, for tests that do not depend on the family."""
    return tiny_qwen3


# The two that are most unlike each other and the default of all other tests, Qwen3, and experts.
CONTRASTING = ["llama", "gemma2", "qwen3_moe"]
OTHERS = ["qwen3", "gemma3", "mixtral"]


@pytest.fixture(scope="session", params=[*CONTRASTING, *OTHERS])
def tiny_family(request: pytest.FixtureRequest) -> Path:
    """Each of the tiny checkpoints in turn."""
    folder: Path = request.getfixturevalue(f"tiny_{request.param}")
    return folder


@pytest.fixture(scope="session", params=[*CONTRASTING, *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)])
def tiny_contrasting(request: pytest.FixtureRequest) -> Path:
    """Each of the tiny checkpoints in turn; those that add little to the others only in the slow tests."""
    folder: Path = request.getfixturevalue(f"tiny_{request.param}")
    return folder


def _made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a copy of a folder that the first test process to need it has made for all of this run."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    common = factory.getbasetemp() if alone else factory.getbasetemp().parent
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the system, too, if its holder is killed
        if not (common / f"{name}-made").exists():
            shutil.rmtree(common / f"{name}-making", ignore_errors=True)
            make(common / f"{name}-making")
            (common / f"{name}-making").rename(common / f"{name}-made")
    return Path(shutil.copytree(common / f"{name}-made", factory.mktemp(name) / name))


@pytest.fixture(scope="session")
def shipped_miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model as it is unpacked, whose suites take a second to write. Copy it before changing it."""
    from recovery.miniature.package import materialise

    return _made_once(tmp_path_factory, "miniature", materialise)


@pytest.fixture(scope="session")
def small_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace: the built-in model, mid-trained for a few steps on one document. Copy it before changing it."""
    from pipelines.cli.main import run

    def make(folder: Path) -> None:
        (folder / "corpus").mkdir(parents=True)
        (folder / "corpus" / "ferry.md").write_text(
            "# The Harbour ferry\n\nThe Harbour ferry is kept by Anna Berg in the town of Lund and carries 34 "
            "passengers.\n"
        )
        arguments = ["midtrain", "--docs", folder / "corpus", "--workspace", folder / "workspace", "--steps", "8"]
        arguments += ["--fewest-questions", "0"]
        assert run([str(argument) for argument in arguments]) == 0

    return _made_once(tmp_path_factory, "small", make) / "workspace"


@pytest.fixture(scope="session")
def require_component() -> Callable[[bool, str], None]:
    """Return ``require_component(found, what)``: skip without the component, or fail if all are required.

    A build that installs every component sets ``RECOVER_REQUIRE_COMPONENTS=1``, so that a missing one is a failure
    and not a skipped test.
    """

    def require(found: bool, what: str) -> None:
        if found:
            return
        if os.environ.get(REQUIRED, "") not in ("", "0"):
            pytest.fail(f"{what} is missing, and {REQUIRED} is set", pytrace=False)
        pytest.skip(f"{what} is missing")

    return require


@pytest.fixture(scope="session")
def postgres(require_component: Callable[[bool, str], None]) -> Iterator[Any]:
    """A running PostgreSQL server of this test process, as a tests.postgres.Server."""
    from tests.postgres import programs, running

    found = programs()
    require_component(found is not None, "PostgreSQL's server (apt-get install postgresql)")
    with running(found) as server:
        yield server


@pytest.fixture(scope="session", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def new_address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path | str]:
    """Return ``new_address()``: the address of a new tracker. Tests that use it run on both databases."""
    if request.param == "postgresql":
        make: Callable[[], str] = request.getfixturevalue("postgres").create
        return make
    return lambda: tmp_path_factory.mktemp("tracker") / "tracker.db"


@pytest.fixture
def address(new_address: Callable[[], Path | str], request: pytest.FixtureRequest) -> Iterator[Path | str]:
    """The address of a new tracker for this test."""
    made = new_address()
    server = request.getfixturevalue("postgres") if isinstance(made, str) else None
    yield made
    if server is not None:
        server.drop(made)


@pytest.fixture(scope="session")
def empty_tracker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tracker's file without any record. A copy takes less than a hundredth of the time of the migrations."""
    from db import open_database

    path = tmp_path_factory.mktemp("empty") / "tracker.db"
    open_database(path).close()
    return path


@pytest.fixture(scope="session")
def seeding() -> ModuleType:
    """The module that fills trackers."""
    from tests.db import seeding

    return seeding


@pytest.fixture(scope="session")
def seeded(new_address: Callable[[], Path | str], seeding: ModuleType) -> Any:
    """A tracker with three finished cycles. Do not write to it."""
    return seeding.seed(new_address())


@pytest.fixture(scope="session")
def readable(seeded: Any) -> Iterator[Any]:
    """The seeded database, open for reading."""
    from db import open_readonly

    database = open_readonly(seeded.address)
    yield database
    database.close()


@pytest.fixture
def recover(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the command line as a process: ``recover("status", "--json")``.

    It runs in ``cwd`` (default: an empty folder) and returns the finished process. ``check=True`` fails the
    test with the output unless the status is 0. ``env`` is added to the environment.
    """

    def run(
        *arguments: str | Path,
        cwd: Path = tmp_path,
        check: bool = True,
        env: dict[str, str] | None = None,
        timeout: float = 1000,
    ) -> subprocess.CompletedProcess[str]:
        finished = subprocess.run(
            [sys.executable, "-m", "recovery", *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if check and finished.returncode != 0:
            pytest.fail(
                f"recover {' '.join(map(str, arguments))} ended with {finished.returncode}\n"
                f"{finished.stdout}\n{finished.stderr}",
                pytrace=False,
            )
        return finished

    return run
