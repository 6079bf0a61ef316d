"""`recover accept`, `recover reject`, `recover rollback`: a person's decision about a cycle."""

from __future__ import annotations

import click

from recovery.cli import options, stages
from recovery.workspace import Workspace


def _command(word: str, told: str) -> click.Command:
    """One of the three: they differ in the word that is entered and in their help."""

    @click.command(help=told)
    @click.argument("cycle", type=click.IntRange(min=1))
    @click.option("--why", required=True, help="The reason, which stays with the cycle.")
    @click.option("--who", default=None, metavar="NAME", help="Who decides.  [default: the user]")
    @options.workspace
    @options.as_json
    def command(cycle: int, why: str, who: str | None, workspace: Workspace, as_json: bool) -> None:
        from pipelines.gate import decide_cycle
        from pipelines.registry import existing

        existing(workspace)
        with stages.at_work(workspace, f"recover {word}", alone=False) as session:
            decided = decide_cycle(session, cycle, word, who=who, why=why)
        text = f"cycle {cycle}: {word.replace('_', ' ')}"
        if decided.also:
            text += f", and with it cycle {', '.join(map(str, decided.also))}"
        text += f"; latest is {decided.after}" + ("" if decided.moved else ", as before")
        options.emit(decided, as_json, text)

    return command


accept = _command(
    "accepted",
    "Accept a cycle: the next one goes on from it.\n\nIts last checkpoint becomes the latest. Decisions are only ever "
    "added; the newest holds.",
)
reject = _command(
    "rejected",
    "Reject a cycle: the next one goes on from what it began with.\n\nNothing is deleted; accept takes it up again.",
)
rollback = _command(
    "rolled_back",
    "Undo a cycle and what went on from it.\n\nThe latest checkpoint moves back to what the cycle "
    "began with; nothing is deleted.",
)
