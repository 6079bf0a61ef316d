"""The documents match the code: every command, option, link and file, none missing and none invented."""

from __future__ import annotations

import dataclasses
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pipelines.cli import main
from pipelines.forwarding.services import WRITERS
from recovery import __version__

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS += [ROOT / folder / "README.md" for folder in ("requirements", "benchmarks")]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))


def every_command() -> dict[str, click.Command]:
    """Return every command and subcommand by its path, e.g. ``"miniature build"``."""
    context = click.Context(main.recover)
    found: dict[str, click.Command] = {}
    for name in main.recover.list_commands(context):
        command = main.recover.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            inner = click.Context(command)
            found.update({f"{name} {sub}": command.commands[sub] for sub in command.list_commands(inner)})
    return found


def sections() -> dict[str, str]:
    """Return the sections of docs/commands by command: the text after "## `recover NAME`"."""
    found: dict[str, str] = {}
    for page in (ROOT / "docs" / "commands").glob("*.md"):
        parts = re.split(r"^#{2,3} `recover ([a-z ]+)`.*$", page.read_text(), flags=re.MULTILINE)
        found |= zip(parts[1::2], parts[2::2], strict=True)
    return found


def first_sentence(command: click.Command) -> str:
    """Return the first paragraph of a command's help on one line."""
    return " ".join((command.help or "").strip().split("\n\n")[0].split())


def test_every_command_has_help_and_every_option_too() -> None:
    wrong = []
    for name, command in every_command().items():
        if not first_sentence(command).endswith("."):
            wrong.append(f"recover {name}: no sentence of help")
        for option in command.params:
            if isinstance(option, click.Option) and not option.help and not option.hidden:
                wrong.append(f"recover {name} {option.opts[0]}: no help")
    assert not wrong, "\n".join(wrong)


def test_the_table_of_commands_says_what_each_command_says() -> None:
    for name, command in every_command().items():
        if name in main.COMMANDS:
            assert first_sentence(command) == main.COMMANDS[name][1], name


def test_the_command_pages_have_every_command_and_every_long_option() -> None:
    pages = sections()
    commands = every_command()
    assert sorted(pages) == sorted(commands)
    wrong = []
    for name, command in commands.items():
        options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        longs = {flag for option in options for flag in option.opts if flag.startswith("--")}
        shown = set(re.findall(r"`(--[a-z][a-z-]*)", pages[name]))
        wrong += [f"recover {name}: {flag} is not documented" for flag in sorted(longs - shown)]
        known = longs | {flag for option in options for flag in option.secondary_opts} | {"--help"}
        wrong += [f"recover {name}: {flag} is documented and does not exist" for flag in sorted(shown - known)]
    assert not wrong, "\n".join(wrong)


def test_commands_written_anywhere_exist() -> None:
    commands = set(every_command())
    wrong = []
    for document in DOCUMENTS:
        for line in re.findall(r"(?:^|`|&& )recover ([a-z][^`\n&|]*)", document.read_text(), flags=re.MULTILINE):
            words = line.split()
            if words[0] not in commands:
                wrong.append(f"{document.name}: recover {line}")
                continue
            wrong += [
                f"{document.name}: recover {line}: no option {flag}"
                for flag in words
                if flag.startswith("--") and flag.partition("=")[0] not in all_flags(words)
            ]
    assert not wrong, "\n".join(wrong)


def all_flags(words: list[str]) -> set[str]:
    """Return all flags of the command in ``words``, including its subcommand's."""
    commands = every_command()
    called = [commands[words[0]], commands.get(" ".join(words[:2]))]
    parameters = [option for command in called if command is not None for option in command.params]
    flags = {flag for option in parameters for flag in [*option.opts, *option.secondary_opts]}
    return flags | {"--help", "--version"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    broken = [
        target
        for target in targets
        if "://" not in target and not target.startswith("mailto:") and not (document.parent / target).exists()
    ]
    assert not broken


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name


@pytest.mark.parametrize("folder", ["commands", "questions"])
def test_every_page_of_a_folder_is_in_its_index(folder: str) -> None:
    index = (ROOT / "docs" / folder / "index.md").read_text()
    for page in (ROOT / "docs" / folder).glob("*.md"):
        assert page.name == "index.md" or f"({page.name}" in index, page.name


def test_the_site_shows_every_page_in_its_menu() -> None:
    def pages(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            yield from pages(inner)

    menu = set(pages(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    docs = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert menu == {page for page in docs if not page.startswith("methods/")}  # reached from methods.md


def test_names_of_links_are_defined() -> None:
    for document in DOCUMENTS:
        text = re.sub(r"^( {4}|```).*?$", "", document.read_text(), flags=re.MULTILINE)
        used = set(re.findall(r"\]\[([a-z-]+)\]", text))
        assert used == set(re.findall(r"^\[([a-z-]+)\]: http", text, flags=re.MULTILINE)), document.name


@pytest.mark.parametrize("script", ["write_architecture", "write_methods", "write_options", "write_plan", "write_real"])
def test_the_generated_pages_are_up_to_date(script: str) -> None:
    command = [sys.executable, f"docs/{script}.py", "--check"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_the_documentation_written_by_hand_is_at_most_as_long_as_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    script = importlib.import_module("count_words")
    counts = script.counts()
    assert sum(counts.values()) <= script.LIMIT, "shorten a page: python docs/count_words.py"
    assert {"README.md", "docs/index.md", "examples/npm/README.md"} <= set(counts)
    assert not {"docs/log.md", "docs/log/2026-11.md", "docs/real.md"} & set(counts)
    assert counts["docs/commands/index.md"] < len((ROOT / "docs/commands/index.md").read_text().split())  # no tables


@pytest.fixture
def small_project(tmp_path: Path) -> Path:
    """A project with the packages that docs/write_architecture.py reads, its own copy, and a page without a table."""
    for package in ("pipelines", "evals", "dashboard", "recovery", "db"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f'"""Package {package}."""\n')
        (tmp_path / package / "rows.py").write_text('"""Rows."""\n\nLIMIT = 3\n')
    (tmp_path / "recovery" / "__main__.py").write_text('"""Entry point."""\n')
    (tmp_path / "docs" / "images").mkdir(parents=True)
    for name in ("write_architecture.py", "_pages.py"):
        shutil.copy(ROOT / "docs" / name, tmp_path / "docs")
    page = "[`LIMIT`](../db/rows.py)\n\n<!-- files -->\n<!-- end of files -->\n"
    (tmp_path / "docs" / "architecture.md").write_text(page)
    return tmp_path


def test_runs_on_corpora_in_pieces_change_only_the_table_of_all_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    script = importlib.import_module("write_real")
    records = [record for record in script.records_of(ROOT / "docs" / "real") if record.cut == 1]
    without = script.pages(records)
    both = script.pages([*records, *(dataclasses.replace(record, cut=2) for record in records)])
    assert both[script.README] == without[script.README]
    before, after = (text[script.PAGE].splitlines() for text in (without, both))
    assert [line for line in after if line not in before] == [after[2]], "how many records there are"
    assert len(both[script.TABLE]) > 1.9 * len(without[script.TABLE])
    assert len(after) <= 250


def write_architecture(project: Path, *flags: str) -> tuple[int, str]:
    """Run the script in a project; return the exit status and what it prints."""
    command = [sys.executable, "docs/write_architecture.py", *flags]
    finished = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600, check=False)
    return finished.returncode, finished.stdout + finished.stderr


def test_a_stale_page_is_reported_and_left_as_it_is(small_project: Path) -> None:
    page, picture = small_project / "docs" / "architecture.md", small_project / "docs" / "images" / "architecture.svg"
    stale = page.read_text()
    both = "docs/architecture.md{0}\ndocs/images/architecture.svg{0}\n".format(" is out of date: make docs")
    assert write_architecture(small_project, "--check") == (1, both)
    assert page.read_text() == stale and not picture.exists()
    assert write_architecture(small_project)[0] == 0
    written = page.read_text()
    assert "[`LIMIT`](../db/rows.py#L3)" in written and "| 1 | [`rows.py`](../db/rows.py) | Rows |" in written
    assert write_architecture(small_project, "--check") == (0, "")
    (small_project / "db" / "rows.py").write_text('"""Rows."""\n\n\nLIMIT = 3\n')
    assert write_architecture(small_project, "--check") == (1, "docs/architecture.md is out of date: make docs\n")
    assert page.read_text() == written


def test_a_circle_of_imports_and_an_undefined_name_are_refused(small_project: Path) -> None:
    page = small_project / "docs" / "architecture.md"
    text = page.read_text()
    page.write_text(text.replace("LIMIT", "MOST"))
    assert write_architecture(small_project) == (1, "docs/architecture.md: db/rows.py does not define MOST\n")
    page.write_text(text)
    (small_project / "db" / "rows.py").write_text('"""Rows."""\n\nfrom db import table\n\nLIMIT = 3\n')
    (small_project / "db" / "table.py").write_text('"""Table."""\n\n\ndef read():\n    import db.rows\n')
    circle = "these import each other in a circle: db/rows.py, db/table.py\n"
    assert write_architecture(small_project) == (1, circle)
    assert page.read_text() == text


def test_make_targets_named_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text()))
        assert named <= targets, f"{document.name}: {named - targets}"


def test_every_direct_dependency_is_pinned_and_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    direct = {re.split(r"[\[<>=!~ ]", line)[0] for line in lines}
    explained = (ROOT / "requirements" / "README.md").read_text()
    lists = "".join((ROOT / "requirements" / name).read_text() for name in ("lock.txt", "torch.txt"))
    locked = set(re.findall(r"^([a-z0-9-]+)==", lists, flags=re.MULTILINE))
    for name in direct:
        assert re.search(rf"(\| |, ){re.escape(name)}( \||, )", explained), f"{name} is not explained"
        assert name in locked or name in {"vllm", "psycopg", "inspect-ai", *WRITERS} or name.lower() in locked, (
            f"{name} is not locked"
        )


def test_the_lock_holds_no_address_of_a_host() -> None:
    lock = (ROOT / "requirements" / "lock.txt").read_text()
    assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host| @ ", lock)


def test_the_change_log_has_this_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {__version__}" in text
    assert len(text.split()) <= 3000, "one line for each change that a user needs"
