"""A real instruct model on real documents: an example's folder as the demo's scenario.

The folder names a model and documents in package registries (``packages.toml``), the pages of each corpus and the
package that has them (``corpora.toml``), questions about them (``questions.jsonl``), texts about them for the arms that
use a writer (``rewritten.jsonl``), and settings for two cores (``recipe.toml``, overridden by ``short.toml`` for a run
on a part). It contains neither the model nor the pages.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.data.question_splits import load_questions, write_corpus_files
from pipelines.data.registry_packages import Say, check_clients, fetch, read_packages, read_tables
from pipelines.experiments.demo import Scenario
from recovery.arms import Arm
from recovery.config import WRITER_FILE, DistillConfig, EvalConfig, MidtrainConfig, Recipe, build, read_recipe
from recovery.data.corpus.json_lines import read_records, write_json_lines
from recovery.errors import UsageError

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
        corpora = [dataclasses.replace(pages, pages=pages.short) for pages in corpora if pages.short]
    if few := next((whole for whole in corpora if len(whole.pages) < cut), None):
        raise UsageError(f"corpus {few.name} has {len(few.pages)} pages: it cannot be cut into {cut}")
    corpora = [dataclasses.replace(whole, pages=whole.pages[piece::cut]) for piece in range(cut) for whole in corpora]
    needed = read_packages(folder / "packages.toml")
    sources = list(dict.fromkeys(pages.package for pages in corpora))
    for name in (MODEL, *sources):
        if name not in needed:
            raise UsageError(f"{folder / 'packages.toml'} has no table [{name}]: it says where to fetch it")
    recipe = read_recipe(folder / "recipe.toml")
    if short:
        recipe = _over(read_recipe(folder / "short.toml"), recipe)
    _check(recipe, folder)
    wanted = [*([MODEL] if model is None else []), *sources]
    for name in wanted:
        check_clients([needed[name]], _stored_in(packages, name))
    found = {name: fetch(needed[name], _stored_in(packages, name), say) for name in wanted}

    def write(target: Path, _seed: int) -> list[Path]:
        return [
            _write(pages, found[pages.package], folder, target / f"{at}-{pages.name}")
            for at, pages in enumerate(corpora, 1)
        ]

    about = "from " + " and ".join(needed[name].title for name in sources)
    return Scenario(model or str(found[MODEL]), len(corpora), write, about, recipe, short, cut)


def shortened(arm: Arm, folder: Path) -> Arm:
    """Return an arm without the settings that ``short.toml`` overrides."""
    tables = read_recipe(folder / "short.toml").tables

    def left(given: Mapping[str, Any], table: str) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name not in tables.get(table, {})}

    return dataclasses.replace(arm, midtrain=left(arm.midtrain, "midtrain"), settings=left(arm.settings, "distill"))


def read_pages(path: Path) -> list[Pages]:
    """Read the corpora of a TOML file, one table each, in its order. Raises UsageError if one is invalid."""
    found = []
    for name, values in read_tables(path).items():
        try:
            given: dict[str, Any] = {k: v if isinstance(v, str) else tuple(v) for k, v in values.items()}
            found.append(Pages(name, **given))
        except (TypeError, AttributeError):
            raise UsageError(f"{path}: [{name}] is not a corpus: it needs a title and a list of pages") from None
    return found


def _stored_in(packages: Path, name: str) -> Path:
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


def _over(upper: Recipe, lower: Recipe) -> Recipe:
    """Merge two recipes; the first overrides the second."""
    names = dict.fromkeys([*lower.tables, *upper.tables])
    tables = {name: {**lower.tables.get(name, {}), **upper.tables.get(name, {})} for name in names}
    return Recipe(f"{upper.origin} over {lower.origin}", tables)
