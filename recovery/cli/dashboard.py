"""`recover dashboard`: the review pages."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import options
from recovery.workspace import Workspace


@click.command()
@options.workspace
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; only this machine by default."
)
@click.option("--port", type=click.IntRange(1, 65535), default=7860, show_default=True, help="Port to listen on.")
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
@click.option(
    "--auth-file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Names and hashed passwords of those who may enter; needed to be reached from elsewhere.",
)
@click.option("--add-user", metavar="NAME", default=None, help="Ask for a password, write it to --auth-file, and end.")
@click.option("--read-only", is_flag=True, help="Show everything, let nobody decide.")
@click.option(
    "--ask", is_flag=True, help="Also a page that puts prompts to checkpoints: it loads models, so needs torch."
)
@click.option(
    "--ask-timeout",
    type=click.FloatRange(min=1),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="With --ask: how long the answers to one prompt may take.",
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
    """Open the review dashboard in a browser.

    Decisions are entered by whoever is at this machine, or by name with --auth-file. To be reached from elsewhere, put
    a proxy that speaks HTTPS before it: passwords are sent with every request.
    """
    from dashboard import access

    if add_user is not None:
        if auth_file is None:
            raise click.UsageError("--add-user NAME goes with --auth-file FILE")
        access.add_user(auth_file, add_user, click.prompt("Password", hide_input=True, confirmation_prompt=True))
        options.note(f"{add_user} may enter by {auth_file}")
        return
    from pipelines.registry import check_readable

    check_readable(workspace)
    users = access.read_users(auth_file) if auth_file is not None else None
    rights = access.Access(users, read_only, host, ask_timeout if ask else None)
    from dashboard.app import launch_dashboard

    folder = workspace.folder.resolve() if workspace.tracker and workspace.exists else None
    launch_dashboard(workspace.database, access=rights, port=port, open_browser=open_browser, workspace=folder)
