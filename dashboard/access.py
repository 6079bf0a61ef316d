"""Access control: passwords, permissions, rejected requests and security headers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from db import DatabaseError

# scrypt's cost: 2^14 blocks of 8, about 50 ms and 16 MiB for each guess (RFC 7914's interactive setting).
_COST, _BLOCK, _PARALLEL = 2**14, 8, 1
_LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}

POLICY = "; ".join(
    (
        "default-src 'self'",
        # Gradio and Plotly use inline scripts and styles, and compile templates; none needs handlers in attributes.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "script-src-attr 'none'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
LONGEST_REQUEST = 2**20
"""Bytes that a request may have: the longest prompt and reason need a few thousand."""
_LONGEST_NAME, _LONGEST_PATH = 255, 2000  # bytes; looking for a file with a longer name is an error of the system

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")  # a name or an address, perhaps with a port
# What the pages use of Gradio. The rest takes uploads, reads files, fetches other addresses, or describes the server.
_GRADIO, _SESSION = "/gradio_api/", "/gradio_api/heartbeat/"
_USED = {
    _GRADIO + name for name in ("queue/join", "queue/data", "startup-events", "info", "app_id", "theme.css", "cancel")
}
_UNUSED = ("/login", "/logout", "/monitoring", "/openapi.json", "/run-history", "/runs")


@dataclass
class Access:
    """Access settings. ``users`` maps names to hashed passwords; None: everyone on this machine has access.

    ``ask_seconds`` is the timeout of a prompt on the Ask page; None disables the page.
    """

    users: Mapping[str, str] | None = None
    read_only: bool = False
    host: str = "127.0.0.1"
    ask_seconds: float | None = None
    _known: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.users is None and not is_loopback(self.host):
            raise DatabaseError(
                f"--host {self.host} can be reached from other machines: give --auth-file with names and passwords, or "
                "leave --host out"
            )
        if self.read_only and self.ask_seconds is not None:
            raise DatabaseError("--ask lets users run models, --read-only allows no actions: leave one out")

    def user(self, authorization: str | None) -> str | None:
        """Return the user of an Authorization header; "" if none is needed, None if the header is invalid."""
        if self.users is None:
            return ""
        if not authorization or not authorization.lower().startswith("basic "):
            return None
        known = self.known(authorization)
        if known is not None:
            return known
        try:
            name, _, password = base64.b64decode(authorization[6:], validate=True).decode().partition(":")
        except ValueError:  # not base64, not ASCII, or not UTF-8
            return None
        if not matches(password, self.users.get(name, hash_password("nobody", b"0" * 16))) or name not in self.users:
            return None
        self._known[_digest(authorization)] = name
        return name

    def known(self, authorization: str | None) -> str | None:
        """Return the user of a header that was accepted before, "" if none is needed, else None; does not hash slowly.

        So a page's many requests, and those of users while others guess passwords, need no slow hash.
        """
        if self.users is None:
            return ""
        return self._known.get(_digest(authorization)) if authorization else None

    def refusal(self, method: str, headers: Mapping[str, str]) -> str | None:
        """Return why a request is rejected (another host name, or another site as origin), or None."""
        host = headers.get("host", "")
        found = _HOST.fullmatch(host)
        if found is None:
            return "the request does not name the host that it is for"
        if is_loopback(self.host) and not is_loopback(found[1].lower()):
            return f"this dashboard accepts requests from this machine only, not for the host name {found[1]}"
        origin = headers.get("origin")
        if method not in ("GET", "HEAD", "OPTIONS") and origin and origin.partition("://")[2] != host:
            return "requests from another site are not allowed to change anything"
        return None


def is_used(path: str) -> bool:
    """Whether the pages use the route of a path: all but those of Gradio's that they do not need, of usual length."""
    data = path.encode("utf-8", "surrogatepass")
    if len(data) > _LONGEST_PATH or max(map(len, data.split(b"/"))) > _LONGEST_NAME:
        return False
    if path.startswith(_GRADIO):
        return path in _USED or path.startswith(_SESSION)
    return not any(path == one or path.startswith(f"{one}/") for one in _UNUSED)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.strip("[]") in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def hash_password(password: str, salt: bytes | None = None) -> str:
    """Return a hashed password: "scrypt$SALT$HASH" in hexadecimal."""
    salt = os.urandom(16) if salt is None else salt
    digest = hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL, maxmem=64 * 2**20)
    return f"scrypt${salt.hex()}${digest.hex()}"


def matches(password: str, kept: str) -> bool:
    """Whether a password matches a stored hash; compared in constant time."""
    salt = bytes.fromhex(kept.split("$")[1])
    return hmac.compare_digest(hash_password(password, salt), kept)


def read_users(path: Path) -> dict[str, str]:
    """Return the names and hashes of a file with one NAME:HASH per line. Raises DatabaseError with the line number."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatabaseError(f"{path} cannot be read ({error}): create it with --add-user NAME") from error
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, kept = line.strip().partition(":")
        if not name or not _is_hash(kept):
            raise DatabaseError(f"{path} line {number} is not NAME:HASH: write it with --add-user NAME")
        users[name] = kept
    if not users:
        raise DatabaseError(f"{path} contains no users: add one with --add-user NAME")
    return users


def add_user(path: Path, name: str, password: str) -> None:
    """Add a user with a hashed password to the file, or replace the password; only the owner may read the file.

    Raises DatabaseError for an invalid name, or a password that is too short.
    """
    if not name.strip() or ":" in name or name.startswith("#") or "\n" in name:
        raise DatabaseError(f"{name!r} cannot be a name: it must not be empty, contain a colon or begin with #")
    if len(password) < 8:
        raise DatabaseError("the password needs at least 8 characters")
    users = read_users(path) if path.is_file() and path.read_text(encoding="utf-8").strip() else {}
    users[name] = hash_password(password)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write("".join(f"{key}:{kept}\n" for key, kept in users.items()))


def _digest(authorization: str) -> str:
    return hashlib.sha256(authorization.encode()).hexdigest()


def _is_hash(kept: str) -> bool:
    parts = kept.split("$")
    hexadecimal = set("0123456789abcdef")
    return len(parts) == 3 and parts[0] == "scrypt" and all(p and set(p) <= hexadecimal for p in parts[1:])
