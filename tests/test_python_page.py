"""The code of docs/python.md runs as it is printed, in a copy of the packages."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What the tests in tests/losses ask of every divergence, asked of the page's, which is not among them.
CONTRACT = """
logits = torch.randn(3, 50, dtype=torch.float64)
value, gradient = divergence("total_variation", logits, logits.clone())
assert not value.any() and not gradient.any(), "of equal sides"
entries = (student.softmax(-1) - teacher.softmax(-1)).abs() / 2
student.grad = None
entries.clamp(max=0.01).sum().backward()
value, gradient = divergence("total_variation", student.detach(), teacher, entry_clip=0.01)
assert (entries > 0.01).any() and torch.allclose(value, entries.clamp(max=0.01).sum(-1))
assert torch.allclose(gradient, student.grad, atol=1e-6)
"""
BLOCK = re.compile(r'^```python(?: title="(?P<file>[^"]+)")?\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL)


def _blocks() -> list[re.Match[str]]:
    return list(BLOCK.finditer((ROOT / "docs" / "python.md").read_text("utf-8")))


def test_what_the_page_imports_exists() -> None:
    added = {Path(block["file"]).with_suffix("").as_posix().replace("/", ".") for block in _blocks() if block["file"]}
    imports = [
        (found.module, name.name)
        for block in _blocks()
        for found in ast.walk(ast.parse(block["code"]))
        if isinstance(found, ast.ImportFrom) and found.module and not found.level and found.module not in added
        for name in found.names
    ]
    assert len(imports) >= 10
    for module, name in imports:
        known = importlib.import_module(module)
        assert hasattr(known, name) or importlib.util.find_spec(f"{module}.{name}"), (module, name)


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for package in ("recovery", "pipelines", "evals", "db", "dashboard"):
        shutil.copytree(ROOT / package, copy / package)
    blocks = _blocks()
    for block in blocks:
        if block["file"]:  # a file that the page adds to the packages
            assert not (copy / block["file"]).exists()
            (copy / block["file"]).write_text(block["code"], encoding="utf-8")
    program = tmp_path / "page.py"
    code = [*(block["code"] for block in blocks if not block["file"]), CONTRACT]
    program.write_text("\n".join(code), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program)]
    finished = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    printed = finished.stdout.splitlines()
    assert {"midtrain finished 3", "distill finished 2"} <= {" ".join(line.split()[:3]) for line in printed}
    assert any(line.startswith("cycle 1: ") for line in printed)
    assert any(re.search(r"'reverse_kl': [0-9.]+", line) for line in printed)
    assert any(line.startswith("Score(value=") for line in printed)
