"""Packages fetched by their registry's client, checked by hash, unpacked in part and never run."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.experiments.example import Package, _unpack, check_clients, fetch, read_packages
from recovery.errors import UsageError
from tests.wheels import wheel

FILES = {
    "parcel/model.bin": b"weights",
    "parcel/__init__.py": b"raise SystemExit('it was run')",
    "other/notes.txt": b"",
}


@pytest.fixture
def parcel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A wheel that pip finds in a folder instead of a registry."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    digest = wheel(shelf, "parcel", FILES)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return Package("pypi", "parcel", "1.0", digest, "parcel/model.bin", "a parcel")


def test_a_pinned_wheel_is_fetched_once_and_only_what_is_wanted_unpacked(parcel: Package, tmp_path: Path) -> None:
    messages: list[str] = []
    found = fetch(parcel, tmp_path / "here", messages.append)
    assert found.read_bytes() == b"weights"
    assert [line.split()[0] for line in messages] == ["fetching", "unpacking"]
    kept = {path.name for path in (tmp_path / "here").rglob("*") if path.is_file()}
    assert kept == {"model.bin", f".parcel-1.0-{parcel.sha256[:12]}"}
    messages.clear()
    assert fetch(parcel, tmp_path / "here", messages.append) == found
    assert messages == [], "what is there is not fetched again"
    folder = fetch(replace(parcel, path="parcel"), tmp_path / "whole", messages.append)
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "model.bin"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, "it is not the archive that was pinned, and was not used"),
        ({"path": "parcel/weights"}, "parcel 1.0 holds no parcel/weights"),
        ({"version": "2.0"}, "parcel 2.0 cannot be fetched from pypi: ERROR"),
    ],
)
def test_what_is_not_as_pinned_is_refused_and_leaves_nothing(
    parcel: Package, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        fetch(replace(parcel, **change), tmp_path / "here", lambda _line: None)
    assert "\n" not in str(refused.value)
    assert list((tmp_path / "here").iterdir()) == []


def test_a_client_is_needed_only_for_what_is_not_stored_yet(
    parcel: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(parcel, tmp_path, lambda _line: None)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    stored = replace(parcel, registry="npm")
    check_clients([stored], tmp_path)
    assert fetch(stored, tmp_path, lambda _line: None).exists()
    with pytest.raises(UsageError, match="npm, which fetches parcel, is not installed"):
        check_clients([stored], tmp_path / "another")


def test_a_tarball_puts_nothing_outside_its_folder(tmp_path: Path) -> None:
    archive = tmp_path / "docs.tgz"
    with tarfile.open(archive, "w:gz") as tarball:
        for name in ("package/docs/a.md", "package/docs/../../../out.md", "/package/docs/b.md", "package/code.js"):
            info = tarfile.TarInfo(name)
            info.size = 4
            tarball.addfile(info, io.BytesIO(b"text"))
        link = tarfile.TarInfo("package/docs/link.md")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tarball.addfile(link)
    _unpack(archive, "package/docs", tmp_path / "in" / "here")
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()]
    assert sorted(files) == ["docs.tgz", "in/here/package/docs/a.md"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model", "cannot be read"),
        ('[model]\nregistry = "pypi"\n', r"the table \[model\] is not a package: it needs registry, package"),
        (
            '[model]\nregistry = "tape"\npackage = "a"\nversion = "1"\nsha256 = ""\npath = ""\ntitle = ""\n',
            "names the registry 'tape': use pypi or npm",
        ),
    ],
)
def test_a_file_that_names_no_packages_is_refused_in_a_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "packages.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_packages(path)
