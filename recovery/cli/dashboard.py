"""`recover dashboard`: the review pages."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import options


@click.command()
@options.workspace
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; only this machine by default."
)
@click.option("--port", type=click.IntRange(1, 65535), default=7860, show_default=True, help="Port to listen on.")
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
def command(workspace: Path, host: str, port: int, open_browser: bool) -> None:
    """Open the review dashboard in a browser."""
    from pipelines.registry import existing

    database = existing(workspace).database.resolve()
    from dashboard.app import launch_dashboard

    options.note(f"dashboard of {workspace} on http://{host}:{port} (Ctrl-C ends it)")
    launch_dashboard(str(database), host=host, port=port, open_browser=open_browser)
