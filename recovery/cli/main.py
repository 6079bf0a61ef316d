"""The ``recover`` command: a table of names, loaded one at a time.

``recover --help`` prints the table and imports none of the commands, so it costs no torch, no database and no
plotting library.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from recovery import __version__
from recovery.errors import RecoveryError

# name -> (module that defines `command`, or module:name, and the one line of help), in the order of the help.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "recovery.cli.demo",
        "Watch three cycles, start to finish: on the built-in miniature, or on a real model with --example.",
    ),
    "plan": ("recovery.cli.plan", "Say what a cycle would take of which GPUs: memory, time, flags."),
    "midtrain": ("recovery.cli.midtrain", "Teach the model a folder of documents."),
    "distill": ("recovery.cli.distill", "Recover a student's behaviour by on-policy distillation."),
    "train": ("recovery.cli.train", "Train by any method: a preset and its dials."),
    "interpolate": ("recovery.cli.interpolate", "Take weights between two checkpoints instead of a recovery."),
    "methods": ("recovery.cli.methods", "List the methods, and explain each."),
    "eval": ("recovery.cli.eval", "Measure behaviour and knowledge of a checkpoint."),
    "ask": ("recovery.cli.ask", "Put one prompt to several checkpoints."),
    "drift": ("recovery.cli.drift", "Say how far a checkpoint has moved from another."),
    "probes": ("recovery.cli.probes", "Make the questions that measure knowledge, and review them."),
    "cycle": ("recovery.cli.cycle", "Run whole cycles: midtrain, eval, distill, eval for each corpus."),
    "gate": ("recovery.cli.gate", "Judge a cycle by rules: accept, reject or undecided."),
    "accept": ("recovery.cli.decisions:accept", "Accept a cycle: the next one goes on from it."),
    "reject": ("recovery.cli.decisions:reject", "Reject a cycle: the next one goes on from what it began with."),
    "rollback": ("recovery.cli.decisions:rollback", "Undo a cycle and what went on from it."),
    "compare": ("recovery.cli.compare", "Compare methods from the same start at the same cost."),
    "study": ("recovery.cli.study", "Run the published claims as experiments on the miniature."),
    "resume": ("recovery.cli.resume", "Continue what was interrupted."),
    "status": ("recovery.cli.status", "Show the cycles and what each of them won and lost."),
    "checkpoints": ("recovery.cli.checkpoints", "List the checkpoints and where they came from."),
    "export": ("recovery.cli.export", "Write a checkpoint as an ordinary model folder."),
    "report": ("recovery.cli.report", "Write a cycle's report: figures, tests, samples, decision."),
    "prune": ("recovery.cli.prune", "Free the space of weights that nobody needs any more."),
    "dashboard": ("recovery.cli.dashboard", "Open the review dashboard in a browser."),
    "miniature": ("recovery.cli.miniature", "Rebuild the built-in model, or write its world's corpora."),
    "doctor": ("recovery.cli.doctor", "Say what this machine can run."),
}

INTERRUPTED = 130


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are asked for, not before."""

    def __init__(self, *, table: dict[str, tuple[str, str]], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the table, in its order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of ``cmd_name`` and return its command; None for an unknown name."""
        if cmd_name not in self.table:
            return None
        module, _, name = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands from its own one-liners, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `recover demo`. Every command explains itself with --help.",
)
@click.version_option(__version__, prog_name="recover")
def recover() -> None:
    """Teach a model new documents, then give it back the behaviour it lost on the way."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run ``recover`` with ``arguments`` (default: the process's own) and return the exit status.

    An error raised on purpose becomes one line on stderr and status 1; Ctrl-C becomes status 130. Of several processes
    (docs/launching.md) one runs the command and the others follow it.
    """
    try:
        if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
            return _run(arguments)
        from recovery import processes

        return processes.run(lambda: _run(arguments))
    except RecoveryError as error:
        return _say(error)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        status = recover.main(
            args=list(arguments) if arguments is not None else None,
            prog_name="recover",
            standalone_mode=False,
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except Exception as error:
        if not _is_deliberate(error):
            raise
        return _say(error)
    return status if isinstance(status, int) else 0


def _say(error: Exception) -> int:
    """One line that says what is wrong."""
    print(f"recover: error: {error}", file=sys.stderr)
    return 1


def _is_deliberate(error: Exception) -> bool:
    """Whether ``error`` is one of the project's own; the tracker's are known only once it is loaded."""
    database = getattr(sys.modules.get("db.errors"), "DatabaseError", None)
    return isinstance(error, RecoveryError) or (database is not None and isinstance(error, database))
