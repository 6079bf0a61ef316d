"""Write the option tables of docs/commands.md from the commands' definitions: `make docs`.

Each section "## `recover NAME`" contains a table between two markers, and so does the introduction for the settings
without a flag; the prose around them is written by hand. With --check nothing is written and the exit status is 1 if
the page is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import click
from _pages import between

from pipelines.cli import main as cli
from pipelines.cli.setting_options import default_of
from recovery.config import SECTIONS
from recovery.settings import settings_of

PAGE = Path(__file__).resolve().parent / "commands.md"
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
            raise SystemExit(f"docs/commands.md describes `recover {path}`, which does not exist")
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
    """Return the options of a command as a Markdown table."""
    found = command(path)
    context = click.Context(found)
    options = [option for option in found.params if isinstance(option, click.Option) and not option.hidden]
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


def main() -> int:
    """Rewrite the page; with --check, return 1 if it would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    after = SECTION.sub(lambda m: m["head"] + table(m["name"]) + m["tail"], before)
    after = between(after, "settings without a flag", recipe_only())
    if not check:
        PAGE.write_text(after, encoding="utf-8")
    elif before != after:
        print("docs/commands.md is out of date: run make docs")
    return int(check and before != after)


if __name__ == "__main__":
    sys.exit(main())
