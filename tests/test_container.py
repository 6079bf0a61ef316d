"""The Dockerfile, checked without building it: the files in the image, and the order of its layers.

`make container` builds the image and tests it.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Stage:
    """One build stage of the Dockerfile: its parent, and its instructions in order."""

    parent: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [value for instruction, value in self.instructions if instruction == name]


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    """The build stages by name, in file order."""
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found: dict[str, Stage] = {}
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        instruction, _, value = line.strip().partition(" ")
        if instruction == "FROM":
            parent, _, name = value.split()
            found[name] = Stage(parent)
        elif line and found:
            list(found.values())[-1].instructions.append((instruction, value.strip()))
    return found


def lineage(stages: dict[str, Stage], name: str) -> list[tuple[str, str]]:
    """Return all instructions of the target ``name``, starting with those of its base."""
    stage = stages.get(name)
    return [] if stage is None else [*lineage(stages, stage.parent), *stage.instructions]


def sent(path: str) -> bool:
    """Whether .dockerignore includes a path of the repository in the build: the last matching pattern decides."""
    allowed = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if not line or line.startswith("#"):
            continue
        parts = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
        bare = pattern.removeprefix("**/")
        if any(fnmatch.fnmatch(part, bare) or (bare != pattern and Path(part).name == bare) for part in parts):
            allowed = line.startswith("!")
    return allowed


def test_every_file_of_the_packages_is_sent_and_nothing_else() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    tracked = listed.stdout.splitlines()
    if not tracked:
        pytest.skip("not a git checkout")
    packages = ("recovery", "pipelines", "evals", "dashboard", "db")
    beside = {"pyproject.toml", "README.md", "LICENSE", "requirements/lock.txt", "requirements/torch.txt"}
    assert {path for path in tracked if sent(path)} == {
        path for path in tracked if path.split("/")[0] in packages or path in beside
    }
    for private in (".git/config", ".venv/bin/python", "recovery-workspace/tracker.db", ".env", "users", "key.pem"):
        assert not sent(private), private
    assert not sent("pipelines/cli/__pycache__/main.cpython-311.pyc")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_source_comes_after_the_packages(stages: dict[str, Stage], target: str) -> None:
    steps = [
        "source" if "/image/recovery" in value else "packages"
        for instruction, value in lineage(stages, target)
        if (instruction == "COPY" and "/image/recovery" in value) or (instruction == "RUN" and "pip install" in value)
    ]
    assert steps == ["packages", "source"], "a source change must not reinstall the packages"
    assert not any(i == "COPY" and "--from=source" not in value for i, value in lineage(stages, target))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_nobody_is_root_in_the_image(stages: dict[str, Stage], target: str) -> None:
    users = [value for instruction, value in lineage(stages, target) if instruction == "USER"]
    made = next(value for instruction, value in lineage(stages, target) if "useradd" in value)
    assert users and users[-1] in shlex.split(made) and "--uid 1000" in made
    after = lineage(stages, target)[lineage(stages, target).index(("USER", users[-1])) :]
    assert not any(instruction == "RUN" for instruction, _ in after)


def test_the_image_for_a_cpu_is_the_default(stages: dict[str, Stage]) -> None:
    assert list(stages)[-1] == "cpu", "docker build takes the last stage"


def test_all_that_is_written_is_in_the_volume(stages: dict[str, Stage]) -> None:
    made = lineage(stages, "cpu")
    (volume,) = [value for instruction, value in made if instruction == "VOLUME"]
    words = [word for instruction, value in made if instruction == "ENV" for word in shlex.split(value)]
    variables = dict(word.split("=", 1) for word in words)
    assert Path(variables["RECOVER_WORKSPACE"]).is_relative_to(volume) and variables["HOME"] == volume
    assert [value for instruction, value in made if instruction == "WORKDIR"][-1] == volume


def test_what_is_installed_is_what_the_project_needs(stages: dict[str, Stage], tmp_path: Path) -> None:
    (script,) = re.findall(r'python -c "(.*?)"$', stages["source"].values("RUN")[0])
    script = script.replace("/image/needs", str(tmp_path))
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=600)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set((tmp_path / "cpu.txt").read_text().split("\n")) - {""} == {
        *project["dependencies"],
        *extras["docs"],
        *extras["gguf"],
        *extras["postgres"],
    }
    assert (tmp_path / "cuda.txt").read_text().split("\n")[:-1] == extras["vllm"]
    for target in ("cpu", "cuda"):
        installing = next(value for value in stages[target].values("RUN") if "pip install" in value)
        assert "pip install -c lock.txt -r cpu.txt" in installing, "the lock must determine the versions"


def test_the_commands_of_the_image_exist(stages: dict[str, Stage]) -> None:
    made = lineage(stages, "cpu")
    health = next(value for instruction, value in made if instruction == "HEALTHCHECK").partition("CMD ")[2]
    python, *arguments = json.loads(health)
    assert python == "python"
    # Process 1 here is not a dashboard, so the health check succeeds without a request.
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, timeout=600, check=True)
    command = json.loads(next(value for instruction, value in made if instruction == "CMD"))
    assert command[0] in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
