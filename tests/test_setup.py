"""requirements/install: which installer it takes, and what it says about it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# The settings that tell pip or uv where packages come from.
SOURCES = ("PIP_", "UV", "XDG_CONFIG_HOME")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of a package of one line."""
    folder = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(folder / "harbour-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("harbour.py", "BOATS = 3\n")
        wheel.writestr("harbour-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: harbour\nVersion: 1.0\n")
        wheel.writestr(
            "harbour-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("harbour-1.0.dist-info/RECORD", "")
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment, with pip."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture
def python(environment: Path) -> Iterator[Path]:
    """That environment without the package of the test."""
    yield environment
    if has_it(environment):
        subprocess.run([str(environment), "-m", "pip", "uninstall", "--quiet", "--yes", "harbour"], check=True)


def install(python: Path, *arguments: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run requirements/install with only these settings of pip and uv, without a home folder that has any."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SOURCES)}
    environment = {**kept, "HOME": str(python.parent), "PIP_CONFIG_FILE": os.devnull, **settings}
    command = [str(ROOT / "requirements" / "install"), str(python), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def has_it(python: Path) -> bool:
    """Whether the package of the test is installed."""
    return subprocess.run([str(python), "-c", "import harbour"], capture_output=True, check=False).returncode == 0


def test_without_uv_pip_installs_and_nothing_more_is_said(python: Path, wheels: Path) -> None:
    done = install(python, "--no-index", "--find-links", wheels, "harbour", UV="")
    assert (done.returncode, done.stdout) == (0, f"pip install --no-index --find-links {wheels} harbour\n")
    assert has_it(python)


def test_pips_own_sources_are_respected_and_the_reason_is_said(python: Path, wheels: Path) -> None:
    # uv would not see the folder; the path of a uv is enough, since it is not run.
    done = install(python, "harbour", UV="/bin/false", PIP_FIND_LINKS=str(wheels), PIP_NO_INDEX="1")
    said = "not uv, which does not read pip's find-links, no-index: set UV_FIND_LINKS, UV_INDEX or UV_DEFAULT_INDEX"
    assert (done.returncode, done.stdout) == (0, f"pip install harbour ({said})\n")
    assert has_it(python)


def test_pip_takes_over_from_a_uv_that_fails(python: Path, wheels: Path) -> None:
    done = install(python, "--no-index", "--find-links", wheels, "harbour", UV="/bin/false")
    assert done.returncode == 0 and has_it(python)
    assert done.stdout.endswith("(uv failed with status 1, see above)\n")


def test_a_failing_uv_with_sources_of_its_own_is_not_replaced(python: Path, wheels: Path) -> None:
    done = install(python, "harbour", UV="/bin/false", UV_DEFAULT_INDEX="https://index.invalid/simple")
    assert done.returncode == 1 and "make UV= ..." in done.stderr
    assert not has_it(python)


def test_a_wrong_hash_is_refused(python: Path, wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"harbour==1.0 --hash=sha256:{'0' * 64}\n")
    done = install(python, "--no-index", "--find-links", wheels, "--require-hashes", "-r", tmp_path / "list.txt", UV="")
    assert done.returncode != 0 and not has_it(python)
    assert done.stderr.splitlines()[-1].startswith("A downloaded file is not the one that the list names by its hash")


def test_pip_does_not_take_over_from_a_uv_that_met_a_wrong_hash(python: Path, wheels: Path, tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\necho 'error: Hash mismatch for `harbour==1.0`' >&2\nexit 1\n")
    uv.chmod(0o755)
    done = install(python, "--no-index", "--find-links", wheels, "harbour", UV=str(uv))
    assert done.returncode == 1 and not has_it(python)
    assert "was not installed" in done.stderr.splitlines()[-1]


def test_every_pin_of_the_lock_has_a_hash_and_torch_a_list_of_its_own() -> None:
    lock = (ROOT / "requirements" / "lock.txt").read_text()
    entries = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert len(entries) > 100
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==\S+ (; .*)?\\\n    --hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]
    torch = (ROOT / "requirements" / "torch.txt").read_text()
    assert re.fullmatch(r"torch==[0-9.]+\n", torch) and not re.search(r"^(torch|nvidia|triton)", lock, re.MULTILINE)


@pytest.mark.parametrize("mark", ["vllm", "trackers", "triton"])
def test_marked_tests_are_where_make_looks_for_them(mark: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    (named,) = re.findall(rf"^TESTS_{mark.upper()} := (.+)$", makefile, re.MULTILINE)
    selecting = re.findall(
        rf'pytest.* -m "(?:{mark} and not slow|slow and {mark})"', makefile.replace("$(PYTEST", "pytest")
    )
    assert selecting and all(f"$(TESTS_{mark.upper()}) -m" in line for line in selecting)
    given = [ROOT / name for name in named.split()]
    marked = [path for path in (ROOT / "tests").rglob("*.py") if re.search(rf"mark\.{mark}\b", path.read_text())]
    assert marked and all(path.exists() for path in given)
    assert not [path for path in marked if not any(path.is_relative_to(one) for one in given)]


@pytest.mark.slow  # the setup of .ci/run does it wherever there is a uv
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on the path")
def test_uv_installs_where_there_is_one(python: Path, wheels: Path) -> None:
    uv = str(shutil.which("uv"))
    done = install(python, "--no-index", "--find-links", wheels, "harbour", UV=uv)
    assert (done.returncode, done.stdout) == (0, f"uv pip install --no-index --find-links {wheels} harbour\n")
    assert has_it(python)


def test_the_links_of_a_built_site_are_followed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'docs')\n"
        "from pathlib import Path\n"
        "from build_site import broken_links\n"
        f"print(*broken_links(Path({str(tmp_path)!r})), sep='\\n')\n"
    )
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").write_text('<h2 id="there">x</h2><a href="../index.html#gone">a</a>')
    (tmp_path / "index.html").write_text(
        '<a href="folder/">a</a><a href="folder/#there">b</a><a href="https://example.org/x">c</a><img src="no.png">'
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "folder/index.html: ../index.html#gone leads to no anchor",
        "index.html: no.png leads to no file",
    ]
