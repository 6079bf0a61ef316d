"""A real instruct model on real documents: an example's folder as the demo's scenario.

The folder names a model and documents in package registries (``packages.toml``), the pages of each corpus and the
package that has them (``corpora.toml``), questions about them (``questions.jsonl``), texts about them for the arms that
use a writer (``rewritten.jsonl``), and settings for two cores (``recipe.toml``, overridden by ``short.toml`` for a run
on a part). It contains neither the model nor the pages.

Packages are fetched by the registry's client, pinned by hash and partly unpacked. A package is used only as an archive:
it is not installed, its code is not run, its dependencies are not fetched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pipelines.data.question_splits import load_questions, write_corpus_files
from pipelines.experiments.demo import Scenario
from recovery.arms import Arm
from recovery.config import WRITER_FILE, DistillConfig, EvalConfig, MidtrainConfig, Recipe, build, read_recipe
from recovery.data.corpus.json_lines import read_records, write_json_lines
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
    packages = {}
    for name, values in read_tables(path).items():
        try:
            packages[name] = Package(**values)
        except TypeError:
            needed = ", ".join(Package.__dataclass_fields__)
            raise UsageError(f"{path}: the table [{name}] is not a package: it needs {needed}") from None
        if packages[name].registry not in _CLIENTS:
            raise UsageError(f"{path}: [{name}] names the registry {packages[name].registry!r}: use pypi or npm")
    return packages


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
    if _is_stored(package, target):
        return wanted
    check_clients([package], target)
    target.mkdir(parents=True, exist_ok=True)
    say(f"fetching {package.package} {package.version} from {package.registry}: {package.title}")
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetching-") as temporary:
        archive = _archive(package, Path(temporary))
        say(f"unpacking {package.path}")
        unpacked = Path(temporary) / "unpacked"
        _unpack(archive, package.path, unpacked)
        if not (unpacked / package.path).exists():
            raise UsageError(f"{package.package} {package.version} holds no {package.path}: check version and path")
        for stamp in target.glob(f".{_label(package)}-*"):  # from another release, whose files are replaced
            stamp.unlink()
        if wanted.is_dir():
            shutil.rmtree(wanted)
        wanted.parent.mkdir(parents=True, exist_ok=True)
        (unpacked / package.path).replace(wanted)
    _done(package, target).touch()
    return wanted


def _label(package: Package) -> str:
    return package.package.replace("/", "+")


def _done(package: Package, target: Path) -> Path:
    """The file that says that this release of a package is stored."""
    return target / f".{_label(package)}-{package.version}-{package.sha256[:12]}"


def _is_stored(package: Package, target: Path) -> bool:
    return _done(package, target).is_file() and (target / package.path).exists()


# Each registry's client, and what it writes between the name and the version of a package.
_CLIENTS = {
    "pypi": ([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"], "=="),
    "npm": (["npm", "pack", "--silent"], "@"),
}


def check_clients(packages: Iterable[Package], target: Path) -> None:
    """Raise UsageError if the client of a package that is not in ``target`` is missing; before anything is fetched."""
    for package in packages:
        if package.registry == "npm" and not _is_stored(package, target) and shutil.which("npm") is None:
            raise UsageError(f"npm, which fetches {package.package}, is not installed: install Node.js and try again")


def _archive(package: Package, folder: Path) -> Path:
    """Run a registry's client in an empty folder and return the archive it saves, which is the pinned one."""
    client, between = _CLIENTS[package.registry]
    command = [*client, f"{package.package}{between}{package.version}"]
    ran = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    files = sorted(folder.iterdir())
    if ran.returncode or not files:
        lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "rror" in line), lines[-1] if lines else "no error output")
        raise UsageError(f"{package.package} {package.version} cannot be fetched from {package.registry}: {reason}")
    with files[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise UsageError(
            f"{package.package} {package.version} has SHA-256 {digest[:16]}..., not "
            f"{package.sha256[:16]}...: it is not the archive that was pinned, and was not used"
        )
    return files[0]


def _unpack(archive: Path, path: str, target: Path) -> None:
    """Unpack the regular files of an archive at or below ``path``; links and names outside of it are skipped."""

    def inside(name: str) -> bool:
        place = PurePosixPath(name)
        return place.is_relative_to(path) and ".." not in place.parts and not place.is_absolute()

    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target, [one for one in wheel.namelist() if inside(one) and not one.endswith("/")])
        return
    with tarfile.open(archive) as tarball:
        for member in tarball:
            opened = tarball.extractfile(member) if member.isfile() and inside(member.name) else None
            if opened is not None:
                file = target / member.name
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as out:
                    shutil.copyfileobj(opened, out, _CHUNK)


MODEL, DOCUMENTS = "model", "documents"  # tables of packages.toml
QUESTIONS = "questions.jsonl"


@dataclass(frozen=True)
class Pages:
    """The pages of one corpus, as paths below the folder of its package; ``short`` is the part for a short run.

    ``package`` is the package's table in ``packages.toml``.
    """

    name: str
    title: str
    pages: tuple[str, ...]
    short: tuple[str, ...] = ()
    package: str = DOCUMENTS


def scenario(
    folder: Path, packages: Path, *, short: bool, say: Say, cut: int = 1, model: str | None = None
) -> Scenario:
    """Return the scenario of an example's ``folder``; ``packages`` is the folder of fetched packages.

    ``model`` replaces the example's own.

    The pages of each corpus are dealt out to ``cut`` pieces, so that these are alike in size and subjects, with a cycle
    each: the first piece of every corpus, then the second.

    The settings are those of the recipe, for a short run overridden by ``short.toml``. Raises UsageError if a file of
    the folder is missing or damaged, a setting is wrong, or a package cannot be fetched.
    """
    corpora = read_pages(folder / "corpora.toml")
    if short:
        corpora = [dataclasses.replace(corpus, pages=corpus.short) for corpus in corpora if corpus.short]
    if few := next((corpus for corpus in corpora if len(corpus.pages) < cut), None):
        raise UsageError(f"corpus {few.name} has {len(few.pages)} pages: it cannot be cut into {cut}")
    corpora = [dataclasses.replace(one, pages=one.pages[piece::cut]) for piece in range(cut) for one in corpora]
    needed = read_packages(folder / "packages.toml")
    sources = list(dict.fromkeys(corpus.package for corpus in corpora))
    for name in (MODEL, *sources):
        if name not in needed:
            raise UsageError(f"{folder / 'packages.toml'} has no table [{name}]: it says where to fetch it")
    recipe = read_recipe(folder / "recipe.toml")
    if short:
        recipe = _merged(read_recipe(folder / "short.toml"), recipe)
    _check(recipe, folder)
    wanted = [*([MODEL] if model is None else []), *sources]
    for name in wanted:
        check_clients([needed[name]], _package_folder(packages, name))
    folders = {name: fetch(needed[name], _package_folder(packages, name), say) for name in wanted}

    def write(target: Path, _seed: int) -> list[Path]:
        return [
            _write(corpus, folders[corpus.package], folder, target / f"{at}-{corpus.name}")
            for at, corpus in enumerate(corpora, 1)
        ]

    about = "from " + " and ".join(needed[name].title for name in sources)
    return Scenario(model or str(folders[MODEL]), len(corpora), write, about, recipe, short, cut)


def shortened(arm: Arm, folder: Path) -> Arm:
    """Return an arm without the settings that ``short.toml`` overrides."""
    tables = read_recipe(folder / "short.toml").tables

    def remaining(values: Mapping[str, Any], table: str) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in tables.get(table, {})}

    midtrain, settings = remaining(arm.midtrain, "midtrain"), remaining(arm.settings, "distill")
    return dataclasses.replace(arm, midtrain=midtrain, settings=settings)


def read_pages(path: Path) -> list[Pages]:
    """Read the corpora of a TOML file, one table each, in its order. Raises UsageError if one is invalid."""
    corpora = []
    for name, values in read_tables(path).items():
        try:
            fields: dict[str, Any] = {k: v if isinstance(v, str) else tuple(v) for k, v in values.items()}
            corpora.append(Pages(name, **fields))
        except (TypeError, AttributeError):
            raise UsageError(f"{path}: [{name}] is not a corpus: it needs a title and a list of pages") from None
    return corpora


def _package_folder(packages: Path, name: str) -> Path:
    """Return the folder of a package; another release of one would have the same paths, so that each has its own."""
    return packages if name in (MODEL, DOCUMENTS) else packages / name


def _write(pages: Pages, documents: Path, folder: Path, target: Path) -> Path:
    """Write one corpus as a folder: its pages, the questions about them, and texts about them if ``folder`` has any."""
    shutil.rmtree(target, ignore_errors=True)
    for page in pages.pages:
        copied = target / page
        copied.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(documents / page, copied)
        except OSError as error:
            raise UsageError(f"the page {page} of corpus {pages.name} is not in the documents: {error}") from error
    write_corpus_files(folder / QUESTIONS, pages.name, target, pages=pages.pages)
    if texts := [record for record in _texts(folder / WRITER_FILE) if record.get("document") in pages.pages]:
        write_json_lines(target / WRITER_FILE, texts)
    return target


def _texts(path: Path) -> list[dict[str, Any]]:
    """Return the texts about the pages, none if the example has no such file. Raises UsageError for a broken line."""
    if not path.is_file():
        return []
    records, problems = read_records(path)
    problems += [f"line {n}: not an object" for n, record in records if not isinstance(record, dict)]
    if problems:
        raise UsageError(f"{path} {problems[0]}: repair it")
    return [record for _, record in records]


def _check(recipe: Recipe, folder: Path) -> None:
    """Raise UsageError for a wrong setting, question or text, before anything is fetched."""
    build(MidtrainConfig, {}, recipe)
    build(DistillConfig, {}, recipe)
    build(EvalConfig, {}, recipe)
    load_questions(folder / QUESTIONS)
    _texts(folder / WRITER_FILE)


def _merged(upper: Recipe, lower: Recipe) -> Recipe:
    """Merge two recipes; the first overrides the second."""
    names = dict.fromkeys([*lower.tables, *upper.tables])
    tables = {name: {**lower.tables.get(name, {}), **upper.tables.get(name, {})} for name in names}
    return Recipe(f"{upper.origin} over {lower.origin}", tables)
