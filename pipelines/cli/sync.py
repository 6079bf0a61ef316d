"""`recover sync`: records of the tracker to W&B, MLflow, Trackio or SwanLab."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from pipelines.cli import common, stage_options
from recovery.workspace import Workspace


@click.command()
@common.report_to(required=True)
@common.workspace
@click.option("--follow", is_flag=True, hidden=True, help="Send the stages whose ids are read from standard input.")
@common.as_json
def command(workspace: Workspace, follow: bool, as_json: bool) -> None:
    """Send the tracker's records to W&B, MLflow, Trackio or SwanLab.

    Everything that --report-to did not send, or was not asked to: metrics, checkpoints (name, hash and path), scores,
    decisions and reports of all finished stages and cycles. Nothing is sent twice.
    """
    from pipelines.runtime.registry import existing

    existing(workspace)
    if follow:
        _follow(workspace)
        return
    from pipelines.forwarding.forwarder import Forwarder, ServiceError, Source
    from pipelines.reports.cycle_report import write_reports

    missing: dict[str, str] = {}
    with stage_options.at_work(workspace, "recover sync") as session:
        write_reports(session)
        for service in workspace.report_to:
            forwarder = Forwarder(service, Source(workspace, session.tracker.database, session.experiment_id))
            try:
                with contextlib.redirect_stdout(sys.stderr):  # of a service's package
                    forwarder.forward()
                    forwarder.close()
            except ServiceError as error:
                common.note(f"{service}: {error}")
            missing[service] = forwarder.missing()
    lines = (f"{name}: {f'not sent: {parts}' if parts else 'everything is sent'}" for name, parts in missing.items())
    common.emit({"missing": missing}, as_json, "\n".join(lines))
    if any(missing.values()):
        raise click.exceptions.Exit(1)


def _follow(workspace: Workspace) -> None:
    """Send stages of another process while it runs them; see pipelines.forwarding.forwarder."""
    from pipelines.forwarding.forwarder import Forwarder, Source, follow
    from pipelines.runtime.registry import reading

    # What a service's package prints goes to the log, which is this process's standard error.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with reading(workspace) as registry:
        source = Source(workspace, registry.database, registry.experiment_id)
        forwarder = Forwarder(workspace.report_to[0], source)
        follow(forwarder, sys.stdin.fileno(), lambda line: print(line, file=lines, flush=True))
