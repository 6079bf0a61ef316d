"""The web server around the pages: access, security headers, downloads."""

from __future__ import annotations

import asyncio
import socket
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboard import downloads, health
from dashboard.access import HEADERS, Access
from dashboard.asking import Asker
from dashboard.source import Source
from dashboard.theme import SCRIPT, STYLE, theme
from db import DatabaseError, queries

SESSIONS = 24
"""So many open pages are remembered with what they were sent, up to three megabytes each; one that is put aside for a
newer one is sent all of it again at its next tick."""

_ASK = {"www-authenticate": 'Basic realm="Recovery", charset="UTF-8"'}


def serve(pages: gr.Blocks, source: Source, access: Access, asker: Asker | None = None) -> FastAPI:
    """The pages with everything around them, as an ASGI application; what is being asked ends with it."""

    @asynccontextmanager
    async def life(_api: FastAPI) -> AsyncIterator[None]:
        yield
        if asker is not None:
            asker.stop()

    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    api.add_middleware(Guard, access=access)
    downloads.add_routes(api, source)
    pages.state_session_capacity = SESSIONS  # Gradio would keep ten thousand

    @api.get(health.PATH)
    def state() -> PlainTextResponse:
        try:
            queries.experiments(source.database(), limit=1)
        except DatabaseError:
            return PlainTextResponse("the tracker cannot be read", 503)
        return PlainTextResponse("ok")

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "SSR mode is not supported")  # it is off, and Gradio says so all the same
        return gr.mount_gradio_app(api, pages, path="/", auth_dependency=_named if access.users else None, **look())


class Guard:
    """Turns requests away that may not come in, and gives every answer the security headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refused = await self._refused(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, secured)

    async def _refused(self, scope: Scope) -> Response | None:
        """The answer to a request that may not come in; the name of one that may goes with it."""
        if scope["type"] != "http":
            return PlainTextResponse("only HTTP is spoken here", 403)
        headers = Headers(scope=scope)
        reason = self.access.refusal(scope["method"], headers)
        if reason is not None:
            return PlainTextResponse(reason, 403, HEADERS)
        if scope["path"] == health.PATH:  # asked by engines that know no password; tells whether it works, no more
            return None
        user = await asyncio.to_thread(self.access.user, headers.get("authorization"))
        if user is None:
            return PlainTextResponse("a name and a password are needed", 401, HEADERS | _ASK)
        scope.setdefault("state", {})["user"] = user
        return None


def run(application: FastAPI, host: str, port: int, ready: Callable[[], None]) -> None:
    """Answer requests until interrupted; ``ready`` is called once the first can be answered."""
    settings = uvicorn.Config(application, host=host, port=port, log_level="warning", timeout_graceful_shutdown=2)
    _Announced(settings, ready).run()


class _Announced(uvicorn.Server):
    """A server that says when it is up."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        if self.started:
            self.ready()


def look() -> dict[str, Any]:
    """How the pages are served: their look, and none of the parts that need a network or keep a history."""
    return {
        "theme": theme(),
        "css_paths": [STYLE],
        "head": f"<script>{SCRIPT.read_text(encoding='utf-8')}</script>",
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "show_error": False,
        "mcp_server": False,
    }


def _named(request: Request) -> str | None:
    """Who is asking, for the decisions' record."""
    return getattr(request.state, "user", None)
