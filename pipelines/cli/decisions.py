"""`recover accept`, `recover reject`, `recover rollback`: the user's decision about a cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipelines.cli import common, stage_options
from recovery.errors import UsageError
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.runtime.session import Session

_ARTIFACT = "Put what is served, a name or a file, in service: instead of the decision about the cycle."


def _command(word: str, help_text: str) -> click.Command:
    """Return the command that records the decision ``word``."""

    @click.command(help=help_text)
    @click.argument("cycle")
    @click.option("--why", required=True, help="The reason, stored with the cycle.")
    @click.option("--artifact", metavar="NAME", hidden=word != "accepted", help=_ARTIFACT)
    @click.option("--who", metavar="NAME", help="Who decides.  [default: the user]")
    @common.workspace
    @common.as_json
    def command(
        cycle: str, why: str, artifact: str | None, who: str | None, workspace: Workspace, as_json: bool
    ) -> None:
        from db.artifacts import in_service
        from pipelines.evaluation.acceptance import cycle_number, decide_cycle
        from pipelines.evaluation.shipping import to_serve_again
        from pipelines.runtime.registry import existing

        existing(workspace)
        if artifact is not None and word != "accepted":
            raise UsageError("--artifact is for recover accept: it puts what is served in service")
        with stage_options.at_work(workspace, f"recover {word}", exclusive=False) as session:
            number = cycle_number(session, cycle)
            if artifact is not None:
                _put_in_service(session, number, artifact, who, why, as_json)
                return
            served, _ = in_service(session.tracker.database, session.experiment_id)
            decided = decide_cycle(session, number, word, who=who, why=why)
            again, _ = in_service(session.tracker.database, session.experiment_id)
        text = f"cycle {number}: {word.replace('_', ' ')}"
        text += f" (it was {decided.replaced})" if decided.replaced else ""
        if decided.also:
            text += f", and with it cycle {', '.join(map(str, decided.also))}"
        text += f"; latest is {decided.after}" + ("" if decided.moved else ", as before")
        if line := to_serve_again(served, again):
            text += f"; {line}"
        file = None if again is None else {"artifact": again.checkpoint.name, **again.about}
        common.emit(vars(decided) | {"in_service": file}, as_json, text)

    return command


def _put_in_service(session: Session, number: int, name: str, who: str | None, why: str, as_json: bool) -> None:
    """Record a person's decision that an artifact of a cycle is in service."""
    from pipelines.evaluation.shipping import cycle_of, find_artifact, put_in_service

    artifact = find_artifact(session, name)
    made = cycle_of(session, artifact)
    if made != number:
        raise UsageError(f"{artifact.checkpoint.name} was made from cycle {made}, not {number}")
    if not why.strip():
        raise UsageError("the reason is empty: give one with --why")
    before = put_in_service(session, artifact, who=who, why=why.strip())
    text = f"in service: {artifact.file}" + (f"; before it {before.file}" if before is not None else "")
    common.emit({"in_service": artifact.about, "before": before and before.about}, as_json, text)


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
