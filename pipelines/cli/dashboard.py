"""`recover dashboard`: the web server of the review pages."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common
from recovery.workspace import Workspace


@click.command()
@common.workspace
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; only this machine by default."
)
@click.option("--port", type=common.WholeRange(1, 65535), default=7860, show_default=True, help="Port to listen on.")
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
@click.option(
    "--auth-file",
    type=common.NamedPath(dir_okay=False),
    help="Names and hashed passwords of the users; required for access from other machines.",
)
@click.option("--add-user", metavar="NAME", help="Prompt for a password, write it to --auth-file, and exit.")
@click.option("--read-only", is_flag=True, help="Show everything, accept no decisions.")
@click.option(
    "--ask", is_flag=True, help="Add a page that sends prompts to checkpoints; it loads models, so it needs torch."
)
@click.option(
    "--ask-timeout",
    type=common.FiniteRange(min=1),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="With --ask: time limit for the responses to one prompt.",
)
def command(
    workspace: Workspace,
    host: str,
    port: int,
    open_browser: bool,
    auth_file: Path | None,
    add_user: str | None,
    read_only: bool,
    ask: bool,
    ask_timeout: float,
) -> None:
    """Serve the review dashboard on this machine.

    With --open it is also opened in a browser. Anyone on this machine can enter decisions; with --auth-file, users
    enter them by name. For access from other machines, put an HTTPS proxy in front of it: passwords are sent with
    every request.
    """
    from dashboard import access

    if add_user is not None:
        if auth_file is None:
            raise click.UsageError("--add-user NAME needs --auth-file FILE")
        access.add_user(auth_file, add_user, click.prompt("Password", hide_input=True, confirmation_prompt=True))
        common.note(f"added {add_user} to {auth_file}")
        return
    from pipelines.runtime.registry import check_readable

    check_readable(workspace)
    users = access.Users(auth_file) if auth_file is not None else None
    rights = access.Access(users, read_only, host, ask_timeout if ask else None)
    from dashboard.app import launch_dashboard

    folder = workspace.folder.resolve() if workspace.tracker and workspace.exists else None
    launch_dashboard(workspace.database, access=rights, port=port, open_browser=open_browser, workspace=folder)
