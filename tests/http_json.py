"""A real HTTP server for tests whose responses are a function of the request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, Any, "str | None"], tuple[int, Any]]
"""Returns status and body from path, JSON body (None for GET) and the Authorization header. Text is sent as it is."""


Send = Callable[[BaseHTTPRequestHandler, int, Any], None]
"""Sends status and body."""


def send_json(handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
    """Send a body as JSON, or a text as it is."""
    payload = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(payload)))
    handler.end_headers()
    handler.wfile.write(payload)


def serve_json(answer: Answer, port: int = 0, send: Send = send_json) -> ThreadingHTTPServer:
    """Start a server on a port of this machine; 0 is a free one."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._respond(None)

        def do_POST(self) -> None:
            self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _respond(self, asked: Any) -> None:
            send(self, *answer(self.path, asked, self.headers.get("Authorization")))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


def address_of(server: ThreadingHTTPServer) -> str:
    """Return the address of a server."""
    return f"http://127.0.0.1:{server.server_address[1]}"


def stop(server: ThreadingHTTPServer) -> None:
    """Stop a server and close its socket."""
    server.shutdown()
    server.server_close()
