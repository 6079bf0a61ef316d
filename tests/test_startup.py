"""Modules imported before a command runs, and the note printed while they load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recovery._startup import StartupFinder
from recovery.lazy_import import lazily

ROOT = Path(__file__).resolve().parent.parent
SELDOM_NEEDED = ("datasets", "lm_eval", "nltk", "plotly", "gradio")


def test_stages_load_no_library_that_they_do_not_use_and_say_when_they_load_any() -> None:
    code = (
        "import sys; from recovery._startup import arrange; arrange(); arrange();"
        "import pipelines.plan, pipelines.midtrain, pipelines.distillation.stage;"
        f"print([name for name in {SELDOM_NEEDED!r} if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"
    assert finished.stderr == "loading torch and transformers\n"


def test_the_finder_leaves_all_other_modules_to_others(capsys: pytest.CaptureFixture[str]) -> None:
    finder = StartupFinder()
    finder.find_spec("json")
    assert not finder.reported
    assert capsys.readouterr().err == ""


def test_a_lazy_module_is_imported_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    module = lazily("colorsys")
    assert "colorsys" not in sys.modules
    assert module.rgb_to_hls(0, 0, 0) == (0.0, 0.0, 0.0)


def test_a_plan_imports_no_library_that_builds_models() -> None:
    code = (
        "import sys; from pipelines.plan import make_plan; make_plan('docs/qwen3-8b.json', '24,cpu');"
        "print([name for name in ('transformers', 'peft', 'sklearn', 'sqlalchemy') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"
