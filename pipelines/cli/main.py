"""The ``recover`` command: a table of subcommands, each imported on first use.

``recover --help`` prints the table and imports none of the commands, so it loads no torch, no database and no
plotting library.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from recovery import __version__
from recovery.errors import DISK_FAILURES, RecoveryError, UsageError, disk_failure, first_line, memory_is_full

# section of the help -> name -> (module that defines `command`, or module:name, and the one line of help)
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Begin": {
        "demo": ("pipelines.cli.demo", "Run three whole cycles on the built-in model, in minutes."),
        "doctor": ("pipelines.cli.doctor", "Check what this machine can run."),
        "plan": ("pipelines.cli.plan", "Estimate the memory and the time of a cycle on given GPUs."),
    },
    "Run cycles": {
        "cycle": ("pipelines.cli.cycle", "Run whole cycles: midtrain, eval, distill, eval for each corpus."),
        "resume": ("pipelines.cli.cycle:resume", "Resume interrupted work."),
        "status": ("pipelines.cli.status", "Show the cycles with the gains and losses of each."),
        "dashboard": ("pipelines.cli.dashboard", "Serve the review dashboard on this machine."),
    },
    "Stage by stage": {
        "midtrain": ("pipelines.cli.midtrain", "Mid-train the model on a folder of documents."),
        "distill": ("pipelines.cli.distill", "Recover a student's behaviour by on-policy distillation."),
        "eval": ("pipelines.cli.eval", "Measure behaviour and knowledge of a checkpoint."),
        "probes": ("pipelines.cli.probes", "Build and review the questions that measure knowledge."),
    },
    "Decide": {
        "report": ("pipelines.cli.report", "Write a cycle's report: figures, tests, samples, decision."),
        "facts": ("pipelines.cli.facts", "List the facts, and which were learnt or lost."),
        "withdraw": ("pipelines.cli.facts:withdraw", "Show what a document taught, and train without it again."),
        "ask": ("pipelines.cli.ask", "Send one prompt to several checkpoints."),
        "gate": ("pipelines.cli.gate", "Judge a cycle by rules: accept, reject or undecided."),
        "accept": ("pipelines.cli.decisions:accept", "Accept a cycle: the next one starts from it."),
        "reject": (
            "pipelines.cli.decisions:reject",
            "Reject a cycle: the next one starts from before it.",
        ),
        "rollback": ("pipelines.cli.decisions:rollback", "Undo a cycle and the cycles built on it."),
    },
    "Ship and keep": {
        "export": (
            "pipelines.cli.checkpoints:export",
            "Write a checkpoint as an ordinary model folder, or as a GGUF file.",
        ),
        "checkpoints": ("pipelines.cli.checkpoints:checkpoints", "List the checkpoints and where they came from."),
        "prune": ("pipelines.cli.checkpoints:prune", "Delete weights that are no longer needed."),
        "sync": ("pipelines.cli.sync", "Send the tracker's records to W&B, MLflow, Trackio or SwanLab."),
    },
    "Research": {
        "methods": ("pipelines.cli.methods", "List and explain the methods."),
        "train": ("pipelines.cli.distill:train", "Train with any method: a preset and its settings."),
        "interpolate": (
            "pipelines.cli.checkpoints:interpolate",
            "Mix the weights of two checkpoints, in place of a recovery.",
        ),
        "drift": ("pipelines.cli.compare:drift", "Measure how far a checkpoint has moved from another."),
        "confirm": ("pipelines.cli.confirm", "Test the claim on a model of your own."),
        "compare": ("pipelines.cli.compare", "Compare methods from the same start at the same cost."),
        "study": ("pipelines.cli.study", "Run published claims as experiments on the miniature."),
        "miniature": ("pipelines.cli.study:miniature", "Rebuild the built-in model, or write its world's corpora."),
    },
}
COMMANDS = {name: found for section in SECTIONS.values() for name, found in section.items()}
INTERRUPTED = 130
_MEMORY_ADVICE = (
    "lower --token-budget or --rollout-tokens, use --gradient-checkpointing or --tuning lora, or end other programs "
    "that use the GPU; `recover resume` goes on from the last saved state"
)
# Numbers of an OSError that mean a path at which there can be no file or folder.
_INVALID_PATHS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST)


class LazyGroup(click.Group):
    """A click group whose commands are imported on first use."""

    def __init__(self, *, table: dict[str, tuple[str, str]], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the table, in its order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of ``cmd_name`` and return its command; None for an unknown name."""
        if cmd_name not in self.table:
            return None
        module, _, name = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        command.name = cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument. Fails with a near spelling if there is none of that name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.table, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the tables of commands, by when one needs them, without importing any of them."""
        width = max(map(len, self.table)) + 2
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width - 2), text) for name, (_, text) in commands.items()])


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `recover demo`. Every command explains itself with --help.",
)
@click.version_option(__version__, prog_name="recover")
def recover() -> None:
    """Mid-train a model on new documents, then recover the behaviour it lost."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run ``recover`` with ``arguments`` (default: the process's own) and return the exit status.

    A deliberate error becomes one line on stderr and status 1; Ctrl-C becomes status 130. With several processes
    (docs/launching.md), one runs the command and the others follow it.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # a file's name may have bytes that are no text
    try:
        if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
            return _run(arguments)
        from recovery import distributed

        return distributed.run(lambda: _run(arguments))
    except RecoveryError as error:
        return _report(error)


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
        if isinstance(error, OSError) and error.errno in (*DISK_FAILURES, *_INVALID_PATHS):
            return _report(UsageError(disk_failure(error.filename, error, "read or written")))
        if isinstance(error, RuntimeError) and "home directory" in str(error):  # by pathlib for ~ or ~name
            return _report(UsageError(f"{_with_tilde(arguments)}: there is no such home folder: write the whole path"))
        if memory_is_full(error):
            return _report(RecoveryError(f"the GPU's memory is full ({first_line(error)}): {_MEMORY_ADVICE}"))
        # The tracker's errors exist only once its module is imported.
        database = getattr(sys.modules.get("db.errors"), "DatabaseError", RecoveryError)
        if not isinstance(error, (RecoveryError, database)):
            raise
        return _report(error)
    return status if isinstance(status, int) else 0


def _with_tilde(arguments: Sequence[str] | None) -> str:
    """Return the argument that has a ~."""
    words = sys.argv[1:] if arguments is None else arguments
    return next((argument for argument in words if "~" in argument), "a path with ~")


def _report(error: Exception) -> int:
    """Print the error as one line and return the exit status."""
    print(f"recover: error: {error}", file=sys.stderr)
    return 1
