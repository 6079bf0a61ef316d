"""`recover accept`, `recover reject`, `recover rollback`: the user's decision about a cycle."""

from __future__ import annotations

import click

from pipelines.cli import common, stage_options
from recovery.workspace import Workspace


def _command(word: str, help_text: str) -> click.Command:
    """Return the command that records the decision ``word``."""

    @click.command(help=help_text)
    @click.argument("cycle")
    @click.option("--why", required=True, help="The reason, stored with the cycle.")
    @click.option("--who", default=None, metavar="NAME", help="Who decides.  [default: the user]")
    @common.workspace
    @common.as_json
    def command(cycle: str, why: str, who: str | None, workspace: Workspace, as_json: bool) -> None:
        from pipelines.evaluation.acceptance import cycle_number, decide_cycle
        from pipelines.runtime.registry import existing

        existing(workspace)
        with stage_options.at_work(workspace, f"recover {word}", alone=False) as session:
            number = cycle_number(session, cycle)
            decided = decide_cycle(session, number, word, who=who, why=why)
        text = f"cycle {number}: {word.replace('_', ' ')}"
        text += f" (it was {decided.replaced})" if decided.replaced else ""
        if decided.also:
            text += f", and with it cycle {', '.join(map(str, decided.also))}"
        text += f"; latest is {decided.after}" + ("" if decided.moved else ", as before")
        common.emit(decided, as_json, text)

    return command


accept = _command(
    "accepted",
    "Accept a cycle: the next one starts from it.\n\nIts last checkpoint becomes the latest. Decisions are only added, "
    "never changed; the newest one counts.",
)
reject = _command(
    "rejected",
    "Reject a cycle: the next one starts from before it.\n\nNothing is deleted; accept reverses it.",
)
rollback = _command(
    "rolled_back",
    "Undo a cycle and the cycles built on it.\n\nThe checkpoint that the cycle started from becomes the latest; "
    "nothing is deleted.",
)
