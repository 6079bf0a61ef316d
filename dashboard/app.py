"""The dashboard application: builds the pages for a tracker database and serves them without a network."""

from __future__ import annotations

import errno
import importlib
import socket
import webbrowser
from pathlib import Path

import gradio as gr
from fastapi import FastAPI
from sqlalchemy import URL

from dashboard import pages
from dashboard.access import Access
from dashboard.ask_process import Asker
from dashboard.markup import PAGES
from dashboard.pages import ask
from dashboard.server import run, serve
from dashboard.tracker_source import Source
from db import DatabaseError

TITLE = "Recovery"
PORTS_TRIED = 20


def build_app(database_url: str | Path | URL, access: Access | None = None, workspace: Path | None = None) -> FastAPI:
    """Return the dashboard of a tracker database as an ASGI application; the database may be created later.

    ``workspace`` is the folder with the weights, if it is not the database's own.
    Raises DatabaseError if the address is malformed.
    """
    access = access or Access()
    asker = Asker(access.ask_seconds) if access.ask_seconds is not None else None
    source = Source(database_url, workspace, asking=asker is not None)
    return serve(build_pages(source, access, asker), source, access, asker)


def build_pages(source: Source, access: Access, asker: Asker | None = None) -> gr.Blocks:
    """Return every page of :data:`dashboard.markup.PAGES` at its route; the Ask page only with an ``asker``."""
    start, *others = (importlib.import_module(f"{pages.__name__}.{name}") for name in PAGES)
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as blocks:
        gr.Navbar(visible=False)
        start.build(blocks, source, access)
    for page in others:
        with blocks.route(page.NAME, f"/{page.NAME.lower()}"):
            gr.Navbar(visible=False)
            page.build(blocks, source, access)
    if asker is not None:
        with blocks.route(ask.NAME, f"/{ask.NAME.lower()}"):
            gr.Navbar(visible=False)
            ask.build(blocks, source, asker)
    return blocks


def launch_dashboard(
    database_url: str | Path | URL,
    *,
    access: Access | None = None,
    port: int = 7860,
    open_browser: bool = False,
    workspace: Path | None = None,
) -> None:
    """Serve the dashboard until interrupted, on the given port or the next free one.

    Raises DatabaseError if the address is malformed or no port is free.
    """
    access = access or Access()
    application = build_app(database_url, access, workspace)
    free = free_port(access.host, port)
    address = f"http://{'127.0.0.1' if access.host == '0.0.0.0' else access.host}:{free}"

    def ready() -> None:
        print(f"Dashboard at {address} (stop it with Ctrl-C)", flush=True)
        if open_browser:
            webbrowser.open(address)

    run(application, access.host, free, ready)


def free_port(host: str, first: int) -> int:
    """Return the first free port from ``first`` on. Raises DatabaseError if none is, or if there is no such host."""
    for port in range(first, first + PORTS_TRIED):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                reason = f"--host {host} cannot be used ({error.strerror}): give an address of this machine"
                raise DatabaseError(reason) from error
            return port
    raise DatabaseError(f"no free port from {first} to {first + PORTS_TRIED - 1}: choose another with --port")
