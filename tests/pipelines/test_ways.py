"""How many files a reader opens on the way from a command to the optimizer step, and to the loss: traced in a run.
And how many files of the project importing a stage pulls in.

The way is every file of the project with a function on the stack when that place is reached, and the files of what
these functions called before. `pytest tests/pipelines/test_ways.py -s` prints both ways.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from pipelines.cli.main import run
from recovery.losses.dense import divergence_

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(f"{ROOT}/{name}/" for name in ("recovery", "pipelines", "evals", "db", "dashboard"))
MOST = {"midtrain": 25, "distill": 35}
MOST_IMPORTED = {"pipelines.midtraining.stage": 100, "pipelines.distillation.stage": 111}
# The proxy of a module that is taken by name: a reader goes on to the module.
PROXY = f"{ROOT}/recovery/lazy_import.py"


class Way:
    """Traces a command until a function is called for the first time."""

    def __init__(self, reached: Callable[[CodeType], bool]) -> None:
        self.reached, self.called = reached, defaultdict[CodeType, set[str]](set)
        self.files: set[str] = set()
        self.stack: list[str] = []

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        own = code.co_filename.startswith(PACKAGES) and code.co_name != "<module>"
        caller = _own(frame.f_back) if own else None
        if caller is not None:
            self.called[caller.f_code].add(code.co_filename)
        if self.reached(code):
            sys.setprofile(None)
            on: FrameType | None = _own(frame)
            while on is not None:
                self.stack.append(f"{Path(on.f_code.co_filename).relative_to(ROOT)}: {on.f_code.co_name}")
                self.files |= {on.f_code.co_filename, *self.called[on.f_code]} - {PROXY}
                on = _own(on.f_back)


def _own(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the project, from this one outwards."""
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGES):
        frame = frame.f_back
    return frame


def test_the_ways_to_the_optimizer_and_to_the_loss_are_short(
    tiny_model: Path, corpus: Path, prompt_file: Path, tmp_path: Path
) -> None:
    common = ["--workspace", str(tmp_path), "--prompts", str(prompt_file), "--precision", "float32", "--steps", "1",
              "--tuning", "full", "--max-new-tokens", "4"]  # fmt: skip
    commands = {
        "midtrain": ["--model", str(tiny_model), "--docs", str(corpus)],
        "distill": ["--prompts-per-step", "2", "--samples-per-prompt", "1", "--until", "0"],
    }
    places: dict[str, Callable[[CodeType], bool]] = {
        "midtrain": lambda code: code.co_name == "step" and "/torch/optim/" in code.co_filename,
        "distill": lambda code: code is divergence_.__code__,
    }
    for command, options in commands.items():
        way = Way(places[command])
        sys.setprofile(way)
        try:
            assert run([command, *options, *common]) == 0
        finally:
            sys.setprofile(None)
        files = sorted(str(Path(file).relative_to(ROOT)) for file in way.files)
        print(f"\n{command}: {len(files)} files\n  " + "\n  ".join([*reversed(way.stack), *files]))
        assert 5 < len(files) <= MOST[command], files


@pytest.mark.parametrize("stage", MOST_IMPORTED)
def test_a_stage_imports_few_files_of_the_project(stage: str) -> None:
    """What is chosen by name or handed to a stage is not among them: a planner, formats of documents, an engine."""
    code = (
        f"import sys, {stage}\n"
        "files = {getattr(one, '__file__', None) or '' for one in sys.modules.values()}\n"
        f"print('\\n'.join(sorted(file for file in files if file.startswith({PACKAGES!r}))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600, check=True
    )
    files = [str(Path(line).relative_to(ROOT)) for line in done.stdout.split()]
    print(f"\n{stage}: {len(files)} files\n  " + "\n  ".join(files))
    assert 50 < len(files) <= MOST_IMPORTED[stage], files
