"""Write the tables of docs/commands/ and docs/defaults.md from the commands' definitions: `make docs`.

Each section "## `recover NAME`" contains a table of options between two markers; the index contains the table of all
commands, with links to their sections, and that of the settings without a flag. The prose around them is written by
hand. With --check nothing is written and the exit status is 1 if a page is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import click
from _pages import between

from pipelines.cli import main as cli
from pipelines.cli.common import ShortHelp
from pipelines.cli.stage_options import default_of
from recovery.config import SECTIONS
from recovery.config.defaults import DEFAULTS, OTHERS
from recovery.settings import flag_of, settings_of

FOLDER = Path(__file__).resolve().parent / "commands"
INDEX = FOLDER / "index.md"
PAGE_OF_DEFAULTS = FOLDER.parent / "defaults.md"
PAGES = ("first-steps", "training", "cycles", "evaluation", "experiments", "records")  # in reading order
SECTION = re.compile(
    r"(?P<head>^#{2,3} `recover (?P<name>[a-z ]+)`\n(?:(?!^## ).*\n)*?<!-- options -->\n)"
    r"(?P<table>(?:.*\n)*?)(?P<tail><!-- end of options -->)",
    re.MULTILINE,
)


def command(path: str) -> click.Command:
    """Return the command with this path, e.g. ``"distill"`` or ``"miniature build"``."""
    found: click.Command = cli.recover
    for name in path.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), name)
        if inner is None:
            raise SystemExit(f"docs/commands describes `recover {path}`, which does not exist")
        found = inner
    return found


def taken(option: click.Option, context: click.Context) -> str:
    """Return an option's placeholder: ``N``, ``FOLDER``, ``auto/lora/full``; empty for a flag."""
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return "/".join(option.type.choices)
    return {"INTEGER": "N", "FLOAT": "X", "INTEGER RANGE": "N", "FLOAT RANGE": "X", "DIRECTORY": "FOLDER"}.get(
        metavar := option.make_metavar(context), metavar
    )


def default(option: click.Option) -> str | None:
    """Return the default of an option; None if the help text already contains it."""
    if "[default:" in (option.help or "") or option.is_flag or not option.show_default:
        return None
    return str(option.show_default if isinstance(option.show_default, str) else option.default)


def row(option: click.Option, context: click.Context) -> str:
    """Return one option as a table row: its flags with placeholders, its help and its default."""
    first, *others = [*option.opts, *option.secondary_opts]
    flags = ", ".join([f"`{first} {taken(option, context)}".rstrip() + "`", *(f"`{flag}`" for flag in others)])
    text = re.sub(r"\s*\[default: ([^\]]*)\]", r" Default: \1.", option.help or "")
    known = default(option)
    if known is not None:
        text = f"{text.rstrip('.')}. Default: {known}."
    return f"| {flags} | {text} |".replace("\n", " ")


def table(path: str) -> str:
    """Return the options of a command as Markdown tables: those that `--help` shows, then the rest."""
    found = command(path)
    context = click.Context(found)
    options = [option for option in found.params if isinstance(option, click.Option) and not option.hidden]
    if not isinstance(found, ShortHelp):
        return rows(options, context)
    rest = [option for option in options if not found.shown_in_short(option)]
    common = [option for option in options if option not in rest]
    return rows(common, context) + "The other options, which `--help-all` shows as well:\n" + rows(rest, context)


def rows(options: list[click.Option], context: click.Context) -> str:
    """Return options as one Markdown table."""
    lines = ["", "| option | meaning |", "|---|---|", *(row(option, context) for option in options), ""]
    return "\n".join(lines) + "\n" if options else "\nNo options but `--help`.\n\n"


def recipe_only() -> str:
    """Return the settings that have no flag as a Markdown table."""
    rows: dict[str, list[str]] = {}
    for section, kind in SECTIONS.items():
        flags = {option.name for option in command("train" if section == "distill" else section).params}
        for name, declared in settings_of(kind).items():
            if name not in flags:
                values = f" {'/'.join(declared.choices)}" if declared.choices else ""
                text = f"| `{name}`{values} | {declared.help} Default: {default_of(kind, name)}. |"
                rows.setdefault(text, []).append(f"`[{section}]`")
    lines = [f"| {', '.join(sections)} {text}" for text, sections in rows.items()]
    return "\n".join(["| table | setting | meaning |", "|---|---|---|", *lines])


def command_links(pages: dict[Path, str]) -> str:
    """Return every command with its line of help and a link to its section, as a Markdown table in reading order."""
    lines = ["| command | |", "|---|---|"]
    for page, text in pages.items():
        lines.append(f"| **[{text.partition(chr(10))[0].removeprefix('# ')}]({page.name})** | |")
        for name in re.findall(r"^## `recover ([a-z]+)`$", text, re.MULTILINE):
            lines.append(f"| [`recover {name}`]({page.name}#recover-{name}) | {cli.COMMANDS[name][1]} |")
    return "\n".join(lines)


def defaults() -> str:
    """Return the defaults that steer a training, with their evidence, as a Markdown table."""
    lines = ["| default | value | evidence | what was seen |", "|---|---|---|---|"]
    for stage, found in DEFAULTS.items():
        kind, inside = SECTIONS[stage.removeprefix("cycle.")], ", within a cycle" if stage.startswith("cycle.") else ""
        name = stage.removeprefix("cycle.") + inside
        lines += [
            f"| {name}: `{flag_of(kind, key)}` | {one.value} | {one.evidence} | {one.reason} |"
            for key, one in found.items()
        ]
    return "\n".join(lines + [f"| {name} | {' | '.join(others)} |" for name, others in OTHERS.items()])


def written() -> dict[Path, str]:
    """Return what the pages should contain, by path."""
    pages = {page: (FOLDER / f"{page}.md").read_text(encoding="utf-8") for page in PAGES}
    after = {
        FOLDER / f"{page}.md": SECTION.sub(lambda m: m["head"] + table(m["name"]) + m["tail"], text)
        for page, text in pages.items()
    }
    index = between(INDEX.read_text(encoding="utf-8"), "commands", command_links(after))
    table_of_defaults = between(PAGE_OF_DEFAULTS.read_text(encoding="utf-8"), "defaults", defaults())
    return {
        **after,
        INDEX: between(index, "settings without a flag", recipe_only()),
        PAGE_OF_DEFAULTS: table_of_defaults,
    }


def main() -> int:
    """Rewrite the pages; with --check, return 1 if one would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = {page: text for page, text in written().items() if page.read_text(encoding="utf-8") != text}
    for page, text in stale.items():
        if check:
            print(f"docs/{page.relative_to(FOLDER.parent)} is out of date: run make docs")
        else:
            page.write_text(text, encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
