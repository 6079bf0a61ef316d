"""Write the option tables of docs/commands.md from the commands themselves: `make docs`.

Each section "## `recover NAME`" holds a table between two markers; the prose around it is written by hand. With
--check nothing is written and the exit status says whether the page is true.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import click

from recovery.cli import main as cli

PAGE = Path(__file__).resolve().parent / "commands.md"
SECTION = re.compile(
    r"(?P<head>^#{2,3} `recover (?P<name>[a-z ]+)`\n(?:(?!^## ).*\n)*?<!-- options -->\n)"
    r"(?P<table>(?:.*\n)*?)(?P<tail><!-- end of options -->)",
    re.MULTILINE,
)


def command(path: str) -> click.Command:
    """The command of ``"distill"`` or ``"miniature build"``."""
    found: click.Command = cli.recover
    for name in path.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), name)
        if inner is None:
            raise SystemExit(f"docs/commands.md describes `recover {path}`, which does not exist")
        found = inner
    return found


def row(option: click.Option, context: click.Context) -> str:
    """One option as a line of the table: its flags with what they take, and its help with its default."""
    flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
    takes = "" if option.is_flag else option.make_metavar(context)
    first, comma, rest = flags.partition("`,")
    flags = f"{first.rstrip('`')} {takes}`{comma[1:]}{rest}" if takes else flags
    help_text = re.sub(r"\s*\[default: ([^\]]*)\]", r" Default: \1.", option.help or "")
    if option.show_default and option.default not in (None, ()):
        shown = option.show_default if isinstance(option.show_default, str) else option.default
        help_text = f"{help_text.rstrip('.')}. Default: {shown}."
    return f"| {flags} | {help_text} |".replace("\n", " ").replace("|lora|full", "\\|lora\\|full")


def table(path: str) -> str:
    """The arguments and options of a command as a Markdown table."""
    found = command(path)
    context = click.Context(found)
    options = [option for option in found.params if isinstance(option, click.Option) and not option.hidden]
    lines = ["", "| option | meaning |", "|---|---|", *(row(option, context) for option in options), ""]
    return "\n".join(lines) + "\n" if options else "\nNo options but `--help`.\n\n"


def main() -> int:
    """Rewrite the page, or say whether it would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    after = SECTION.sub(lambda m: m["head"] + table(m["name"]) + m["tail"], before)
    if not check:
        PAGE.write_text(after, encoding="utf-8")
    elif before != after:
        print("docs/commands.md is out of date: run make docs")
    return int(check and before != after)


if __name__ == "__main__":
    sys.exit(main())
