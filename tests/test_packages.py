"""`db`, `evals`, `pipelines`, `dashboard` are this project's packages, in any folder and with any other packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery import _package_guard
from recovery._package_guard import (
    OWN_PACKAGES,
    OwnPackageFinder,
    PackageCollisionError,
    claim_packages,
    leave_current_folder,
)

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = "raise SystemExit('a trap was imported')\n"


@pytest.fixture(params=["recover", "python -m recovery"])
def launcher(request: pytest.FixtureRequest, require_component: Callable[[bool, str], None]) -> list[str]:
    """The two ways to start the command line."""
    if request.param == "recover":
        script = Path(sys.executable).parent / "recover"
        require_component(script.is_file(), "the installed `recover` script")
        return [str(script)]
    return [sys.executable, "-m", "recovery"]


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A user's folder with packages of the same names as ours; importing one of them fails the test."""
    for name in OWN_PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(FOREIGN)
    return tmp_path


def start(launcher: list[str], *arguments: str, cwd: Path, path: list[Path]) -> subprocess.CompletedProcess[str]:
    """Run the command line in ``cwd`` with ``path`` as PYTHONPATH."""
    return subprocess.run(
        [*launcher, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def folders(finished: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the folders from which ``recover doctor --json`` imported the project's packages."""
    assert "trap" not in finished.stdout + finished.stderr
    findings = {finding["name"]: finding for finding in json.loads(finished.stdout)["findings"]}
    return findings["versions"]["facts"]["packages"]


def test_packages_of_the_users_folder_are_not_imported(launcher: list[str], crowded: Path) -> None:
    # The script does not search the current folder by default, so it is put on PYTHONPATH; the module does.
    path = [ROOT] if "-m" in launcher else [crowded, ROOT]
    finished = start(launcher, "doctor", "--json", cwd=crowded, path=path)
    assert folders(finished) == {name: str(ROOT / name) for name in OWN_PACKAGES}


def test_a_foreign_package_imported_before_us_is_refused(launcher: list[str], tmp_path: Path) -> None:
    foreign = tmp_path / "elsewhere"
    (foreign / "evals").mkdir(parents=True)
    (foreign / "evals" / "__init__.py").touch()
    (foreign / "sitecustomize.py").write_text("import evals\n")
    finished = start(launcher, "--version", cwd=tmp_path, path=[foreign, ROOT])
    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert line.startswith("recover: error: ")
    assert str(foreign / "evals") in line
    assert "sitecustomize" in line


def test_a_distribution_installed_over_ours_is_refused_by_name(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(ROOT / "recovery", site / "recovery", ignore=shutil.ignore_patterns("miniature", "__pycache__"))
    for name in OWN_PACKAGES:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text((ROOT / name / "__init__.py").read_text())
    (site / "evals" / "__init__.py").write_text('"""Somebody else\'s evals."""\n')
    (site / "other_evals-9.9.dist-info").mkdir()
    (site / "other_evals-9.9.dist-info" / "METADATA").write_text("Name: other-evals\nVersion: 9.9\n")
    (site / "other_evals-9.9.dist-info" / "top_level.txt").write_text("evals\n")
    finished = start([sys.executable, "-m", "recovery"], "--version", cwd=site, path=[])
    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert f"'evals' at {site / 'evals'} is not Recovery's package" in line
    assert "other-evals" in line
    assert "python -m venv" in line


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in OWN_PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(PackageCollisionError, match=r"own package 'db' is missing .*reinstall"):
        claim_packages(tmp_path)


def test_every_package_carries_the_marker() -> None:
    for name in OWN_PACKAGES:
        assert _package_guard.MARKER in (ROOT / name / "__init__.py").read_text().splitlines(), name


def test_the_finder_answers_for_our_names_only() -> None:
    finder = OwnPackageFinder(ROOT)
    assert finder.find_spec("json") is None
    assert finder.find_spec("db.schema") is None
    spec = finder.find_spec("db")
    assert spec is not None
    assert spec.origin == str(ROOT / "db" / "__init__.py")


def test_claiming_twice_adds_one_finder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    claim_packages()
    claim_packages()
    ours = [finder for finder in sys.meta_path if isinstance(finder, OwnPackageFinder)]
    assert len(ours) == 1


def test_the_users_folder_leaves_the_import_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/elsewhere"])
    leave_current_folder()
    assert sys.path == ["/elsewhere"]
    leave_current_folder()
    assert sys.path == ["/elsewhere"], "entries of PYTHONPATH must stay"


def test_the_projects_own_folder_stays_on_the_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), "/elsewhere"])
    leave_current_folder()
    assert sys.path == [str(ROOT), "/elsewhere"]


@pytest.mark.slow
def test_the_wheel_holds_every_file_and_works_in_an_environment_of_its_own(tmp_path: Path) -> None:
    def run(*command: str | Path, cwd: Path = tmp_path) -> str:
        return subprocess.run(
            [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=600, check=True
        ).stdout

    source = tmp_path / "source"
    tracked = run("git", "ls-files", *OWN_PACKAGES, "recovery", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT)
    for name in tracked.split():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, source)
    (wheel,) = tmp_path.glob("recovery-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    packaged = {name for name in tracked.split() if "/" in name}
    assert packaged <= held, packaged - held

    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # The dependencies are those of the running environment, not installed again.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    doctor = subprocess.run(
        [environment / "bin" / "recover", "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert folders(doctor) == {name: str(site / name) for name in OWN_PACKAGES}
