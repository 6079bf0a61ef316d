"""The dashboard's Gradio application, its pages, and the server that serves it on this machine."""

from __future__ import annotations

import asyncio
import errno
import importlib
import socket
import warnings
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from sqlalchemy import URL
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from dashboard import downloads, health, pages
from dashboard.access import HEADERS, LONGEST_REQUEST, Access, is_file, is_used, with_port
from dashboard.ask_process import Asker
from dashboard.markup import PAGES, SCRIPT, STYLE, WEIGHTS
from dashboard.pages import ask
from dashboard.tracker_source import Source
from db import DatabaseError, queries

SESSIONS = 24
"""Number of open pages whose state is kept, up to three megabytes each; a page whose state was evicted is sent in full
at its next tick."""
PORTS_TRIED = 20
_CHALLENGE = {"www-authenticate": 'Basic realm="Recovery", charset="UTF-8"'}
_FORGED = (b"x-forwarded-host", b"x-gradio-server")


def serve(pages: gr.Blocks, source: Source, access: Access, asker: Asker | None = None) -> FastAPI:
    """Return the pages with access control and downloads as an ASGI application; it stops a running prompt at exit."""

    @asynccontextmanager
    async def life(_api: FastAPI) -> AsyncIterator[None]:
        yield
        if asker is not None:
            asker.stop()

    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    api.add_middleware(Guard, access=access)
    downloads.add_routes(api, source, access)
    pages.state_session_capacity = SESSIONS  # Gradio's default is ten thousand

    @api.get(health.PATH)
    def state() -> PlainTextResponse:
        try:
            queries.experiments(source.database(), limit=1)
        except DatabaseError:
            return PlainTextResponse("the tracker cannot be read", 503)
        return PlainTextResponse("ok")

    # The authenticated user of a request, who is recorded with decisions.
    named = (lambda request: getattr(request.state, "user", None)) if access.users is not None else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "SSR mode is not supported")  # it is off, but Gradio warns anyway
        gr.mount_gradio_app(api, pages, path="/", auth_dependency=named, **look())
    gradio = [route.app for route in api.routes if isinstance(route, Mount) and isinstance(route.app, FastAPI)]
    for application in (api, *gradio):
        # The traceback goes to the terminal.
        failed = "this request failed: reload the page; the dashboard's terminal says why"
        application.add_exception_handler(Exception, _same_response(failed, 500, HEADERS))
        # FastAPI's own response repeats the input, and fails if that holds NaN.
        malformed = "the request is malformed: a part is missing, or of a wrong type"
        application.add_exception_handler(RequestValidationError, _same_response(malformed, 422))
    for application in gradio:  # a call of a function that it does not have; functions themselves run in its queue
        application.add_exception_handler(KeyError, _same_response("there is no such function: reload the page", 404))
    return api


def _same_response(text: str, status: int, headers: Mapping[str, str] | None = None) -> Any:
    """Return a handler that answers every error with the same text."""

    async def answer(_request: Request, _error: Exception) -> Response:
        return PlainTextResponse(text, status, headers)

    return answer


class Guard:
    """Middleware that rejects unauthorised requests and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refused = await self._refused(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        await self.app(scope, receive, _SecuredSender(scope, send, self.access))

    async def _refused(self, scope: Scope) -> Response | None:
        """Return the response to a rejected request, or None; store the user of an accepted one in its state."""
        if scope["type"] != "http":
            return PlainTextResponse("only HTTP is supported", 403)
        headers = Headers(scope=scope)
        reason = self.access.refusal(scope["method"], headers)
        if reason is not None:
            return PlainTextResponse(reason, 403, HEADERS)
        if scope["path"] == health.PATH:  # container engines have no password; the response contains only the status
            return None
        key = headers.get("authorization")
        user = self.access.known(key)
        if user is None:
            user = await asyncio.to_thread(self.access.user, key)
        if user is None:
            return PlainTextResponse("a user name and a password are required", 401, HEADERS | _CHALLENGE)
        scope.setdefault("state", {})["user"] = user
        if not is_used(scope["path"]):
            return PlainTextResponse("there is no such page", 404, HEADERS)
        if scope["method"] not in ("GET", "HEAD"):
            size = headers.get("content-length", "")
            if not size.isdecimal():
                return PlainTextResponse("the length of the request is missing", 411, HEADERS)
            if int(size) > LONGEST_REQUEST:
                return PlainTextResponse(f"a request may have {LONGEST_REQUEST:,} bytes at most", 413, HEADERS)
        # Gradio would take these for its own address; a proxy keeps the Host header.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name not in _FORGED]
        return None


class _SecuredSender:
    """Sends a response with the security headers, and ends a stream of events once its user has no access any more."""

    def __init__(self, scope: Scope, send: Send, access: Access) -> None:
        self.send, self.access = send, access
        self.key = Headers(scope=scope).get("authorization")
        self.file = is_file(scope["path"])
        self.stream = self.ended = False

    async def __call__(self, message: Message) -> None:
        """Send one message."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            # Gradio lets any site read the pages, as their user, unless the dashboard is called localhost.
            for name in [name for name in headers if name.startswith("access-control-")]:
                del headers[name]
            succeeded = message["status"] in (200, 206, 304)
            headers.update({k: v for k, v in HEADERS.items() if k != "cache-control" or not (self.file and succeeded)})
            self.stream = headers.get("content-type", "").startswith("text/event-stream")
        elif self.stream and not self.ended and self.access.known(self.key) is None:
            self.ended = True
            await self.send({"type": "http.response.body", "body": b""})
        if not self.ended:
            await self.send(message)


class Forwarded(ProxyHeadersMiddleware):
    """uvicorn's middleware for trusted proxies, with the port that a proxy left out of the Host header."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request; ``scope["client"]`` is the proxy until uvicorn has read its headers."""
        if scope["type"] == "http" and (scope.get("client") or ("",))[0] in self.trusted_hosts:
            headers = MutableHeaders(raw=list(scope["headers"]))
            if (host := with_port(headers)) != headers.get("host"):
                headers["host"] = host
                scope["headers"] = headers.raw
        await super().__call__(scope, receive, send)


def configured(application: FastAPI, host: str, port: int) -> uvicorn.Config:
    """Return the server's settings; FORWARDED_ALLOW_IPS names the proxies that are trusted, as for uvicorn."""
    settings = uvicorn.Config(
        application, host=host, port=port, log_level="warning", timeout_graceful_shutdown=2, server_header=False
    )
    settings.app = Forwarded(application, settings.forwarded_allow_ips)  # type: ignore[arg-type]
    settings.proxy_headers = False
    return settings


class _AnnouncingServer(uvicorn.Server):
    """A server that calls ``ready`` when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call ``ready``."""
        await super().startup(sockets)
        if self.started:
            self.ready()


def look() -> dict[str, Any]:
    """Return Gradio's settings: theme and style, without features that need a network or keep a history."""
    return {
        "theme": _theme(),
        "css_paths": [STYLE],
        "head": f"<script>{SCRIPT.read_text(encoding='utf-8')}</script>",
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "show_error": False,
        "mcp_server": False,
    }


def _theme() -> gr.themes.Base:
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        font=(gr.themes.LocalFont("IBM Plex Sans", weights=WEIGHTS), "system-ui", "sans-serif"),
        font_mono=(gr.themes.LocalFont("IBM Plex Mono", weights=(400,)), "ui-monospace", "monospace"),
    ).set(
        body_background_fill="#f6f7f9",
        body_background_fill_dark="#0e1116",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_shadow="none",
        block_padding="0px",
    )


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
    with gr.Blocks(title="Recovery", analytics_enabled=False, fill_width=True) as blocks:
        gr.Navbar(visible=False)
        start.build(blocks, source, access)
    for page, context in [*((page, access) for page in others), *([(ask, asker)] if asker is not None else [])]:
        with blocks.route(page.NAME, f"/{page.NAME.lower()}"):
            gr.Navbar(visible=False)
            page.build(blocks, source, context)
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
        moved = f"port {port} is in use. " if free != port else ""
        print(f"{moved}Dashboard at {address} (stop it with Ctrl-C)", flush=True)
        if open_browser:
            webbrowser.open(address)

    _AnnouncingServer(configured(application, access.host, free), ready).run()


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
