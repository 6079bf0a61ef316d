"""The dashboard: builds the pages over a tracker database and serves them, with nothing from elsewhere."""

from __future__ import annotations

import socket
import webbrowser
from pathlib import Path
from typing import Any

import gradio as gr
from sqlalchemy import URL

from dashboard.pages import live, overview
from dashboard.source import Source
from dashboard.theme import STYLE, theme
from db import DatabaseError

TITLE = "Recovery"
PORTS_TRIED = 20


def build_app(database_url: str | Path | URL) -> gr.Blocks:
    """The pages over a tracker database, which need not exist yet: they fill when it does.

    Theme and style go to ``launch`` (see ``launch_settings``). Raises DatabaseError if the address is malformed.
    """
    source = Source(database_url)
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as app:
        gr.Navbar(visible=False)
        overview.build(app, source)
    with app.route(live.NAME, "/live"):
        gr.Navbar(visible=False)
        live.build(app, source)
    return app


def launch_settings() -> dict[str, Any]:
    """How the app is served: its look, and none of the parts that need a network or keep a history."""
    return {
        "theme": theme(),
        "css_paths": [STYLE],
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "share": False,
        "ssr_mode": False,
        "quiet": True,
        "show_error": False,
        "mcp_server": False,
    }


def launch_dashboard(
    database_url: str | Path | URL, host: str = "127.0.0.1", port: int = 7860, open_browser: bool = False
) -> None:
    """Serve the dashboard until interrupted; if the port is taken, on the next free one.

    Raises DatabaseError if the address is malformed or no port is free.
    """
    app = build_app(database_url)
    free = free_port(host, port)
    address = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{free}"
    app.launch(server_name=host, server_port=free, prevent_thread_lock=True, **launch_settings())
    print(f"Dashboard at {address} (Ctrl-C ends it)", flush=True)
    if open_browser:
        webbrowser.open(address)
    app.block_thread()


def free_port(host: str, first: int) -> int:
    """The first port from ``first`` on that nobody listens at."""
    for port in range(first, first + PORTS_TRIED):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise DatabaseError(f"no free port from {first} to {first + PORTS_TRIED - 1}: choose another with --port")
