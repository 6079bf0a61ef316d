"""Access control: passwords, permissions, rejected requests and security headers."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import ipaddress
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from db import DatabaseError

# scrypt's cost: 2^14 blocks of 8, about 50 ms and 16 MiB for each guess (RFC 7914's interactive setting).
_COST, _BLOCK, _PARALLEL = 2**14, 8, 1
# No password has this hash: an unknown name takes as long to refuse as a wrong password.
_HASH_OF_NO_PASSWORD = f"scrypt${'00' * 16}${'00' * 64}"
_HASH = re.compile(r"scrypt(\$([0-9a-f]{2})+){2}")
_LOG = logging.getLogger(__name__)
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
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response; only :func:`is_file` ones may be kept by a browser."""
LONGEST_REQUEST = 2**20
"""Bytes that a request may have: the longest prompt and reason need a few thousand."""
_LONGEST_NAME, _LONGEST_PATH = 255, 2000  # bytes; the system raises an error for a file with a longer name

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")  # a name or an address, perhaps with a port
_PORT = re.compile(r"[0-9]{1,5}")
_FORWARDED_HOST = re.compile(r'(?:^|;)\s*host\s*=\s*"?([^";]*)"?', re.IGNORECASE)  # RFC 7239
# Gradio's routes that the pages use. Others take uploads, read files, fetch other addresses, or describe the server.
_GRADIO, _SESSION = "/gradio_api/", "/gradio_api/heartbeat/"
_USED = {
    _GRADIO + name for name in ("queue/join", "queue/data", "startup-events", "info", "app_id", "theme.css", "cancel")
}
_FILES = ("/assets/", "/static/")
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
    _known: dict[str, tuple[str, str]] = field(default_factory=dict)  # the user of a header, and the hash it matched

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
        kept = self.users.get(name)
        if not matches(password, kept or _HASH_OF_NO_PASSWORD) or kept is None:
            return None
        self._known[_digest(authorization)] = (name, kept)
        return name

    def known(self, authorization: str | None) -> str | None:
        """Return the user of a header that was accepted before, "" if none is needed, else None.

        It avoids the slow hash for a page's many requests, and for users while others guess passwords. An accepted
        header is forgotten once the user is removed or has another password.
        """
        if self.users is None:
            return ""
        if not authorization:
            return None
        name, kept = self._known.get(_digest(authorization), ("", ""))
        return name if kept and self.users.get(name) == kept else None

    def refusal(self, method: str, headers: Mapping[str, str]) -> str | None:
        """Return why a request is rejected (another host name, or another site as origin), or None."""
        host = headers.get("host", "")
        match = _HOST.fullmatch(host)
        if match is None:
            return "the request does not name the host that it is for"
        if is_loopback(self.host) and not is_loopback(match[1].lower()):
            return f"this dashboard accepts requests from this machine only, not for the host name {match[1]}"
        origin = headers.get("origin")
        if method not in ("GET", "HEAD", "OPTIONS") and origin and origin.partition("://")[2] != host:
            return "requests from another site are not allowed to change anything"
        return None


def with_port(headers: Mapping[str, str]) -> str:
    """Return the Host header with the port of a trusted proxy's forwarding headers, if the proxy left it out.

    The name is always that of Host: a page under an attacker's name that resolves here can set the other headers.
    """
    host = headers.get("host", "")
    match = _HOST.fullmatch(host)
    if match is None or match[2]:
        return host
    ports = [headers.get("x-forwarded-port", "").partition(",")[0].strip()]
    forwarded = _FORWARDED_HOST.search(headers.get("forwarded", "").partition(",")[0])
    for value in (headers.get("x-forwarded-host", "").partition(",")[0].strip(), forwarded[1] if forwarded else ""):
        other = _HOST.fullmatch(value)
        if other is not None and other[2] and other[1].lower() == host.lower():
            ports.append(other[2][1:])
    # The last header is the most specific. Browsers leave 80 and 443 out of Origin.
    port = next((int(port) for port in reversed(ports) if _PORT.fullmatch(port)), 0)
    return host if port in (0, 80, 443) or port >= 2**16 else f"{host}:{port}"


def is_used(path: str) -> bool:
    """Whether the pages use the route of a path: it has a valid length and is not one of Gradio's unused routes."""
    data = path.encode("utf-8", "surrogatepass")
    if len(data) > _LONGEST_PATH or max(map(len, data.split(b"/"))) > _LONGEST_NAME:
        return False
    if path.startswith(_GRADIO):
        return path in _USED or path.startswith(_SESSION)
    return not any(path == one or path.startswith(f"{one}/") for one in _UNUSED)


def is_file(path: str) -> bool:
    """Whether a path is that of a file of Gradio's, the same for everyone."""
    return path.startswith(_FILES)


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


class Users(Mapping[str, str]):
    """Names and hashed passwords of a file with one NAME:HASH per line; read again once the file has changed.

    While a changed file cannot be read, nobody has access: otherwise a removed user could keep it. Raises
    DatabaseError, with the line number, if it cannot be read at first or has no user.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = identity(path)  # before reading: a change in between is seen at the next look
        self._users = _parsed(path, _text(path))

    def __getitem__(self, name: str) -> str:
        return self._current()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())

    def _current(self) -> dict[str, str]:
        """Return the users; each look takes one stat of the file."""
        current = identity(self.path)
        if current != self._identity:
            try:
                users = _parsed(self.path, _text(self.path))
            except DatabaseError as error:
                users = {}
                _LOG.warning("nobody has access: %s", error)
            self._users, self._identity = users, current
        return self._users


def add_user(path: Path, name: str, password: str) -> None:
    """Add a user with a hashed password to the file, or replace the password; only the owner may read a new file.

    Raises DatabaseError for an invalid name, a password that is too short, or a file that cannot be written.
    """
    if not name.strip() or ":" in name or name.startswith("#") or not name.isprintable() or name != name.strip():
        raise DatabaseError(
            f"{name!r} cannot be a name: it must not be empty, contain a colon or control characters, begin with # or "
            "begin or end with a space"
        )
    if len(password) < 8:
        raise DatabaseError("the password needs at least 8 characters")
    added = f"{name}:{hash_password(password)}"
    with changing(path) as file:
        lines = _text(file).splitlines() if file.exists() else []
        if any(map(_is_user, lines)):
            _parsed(file, "\n".join(lines))  # a damaged file is not written to
        others = [line for line in lines if not _is_user(line) or line.strip().partition(":")[0] != name]
        replace(file, "".join(f"{line}\n" for line in (*others, added)))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").replace(
            "\ufeff", ""
        )  # byte-order marks, also of files that were joined
    except (OSError, ValueError) as error:
        raise DatabaseError(f"{path} cannot be read ({error}): create it with --add-user NAME") from error


def _parsed(path: Path, text: str) -> dict[str, str]:
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not _is_user(line):
            continue
        name, _, kept = line.strip().partition(":")
        if not name or not _HASH.fullmatch(kept):
            raise DatabaseError(f"{path} line {number} is not NAME:HASH: write it with --add-user NAME")
        users[name] = kept
    if not users:
        raise DatabaseError(f"{path} contains no users: add one with --add-user NAME")
    return users


def _is_user(line: str) -> bool:
    """Whether a line is for a user: not empty, no comment."""
    return bool(line.strip()) and not line.startswith("#")


def _digest(authorization: str) -> str:
    return hashlib.sha256(authorization.encode()).hexdigest()


def identity(path: Path) -> tuple[int, ...] | None:
    """Return values of a file's status that change when it is changed or replaced; None if it does not exist."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@contextlib.contextmanager
def changing(path: Path) -> Iterator[Path]:
    """Yield the file to read and :func:`replace`, while no other process changes it so.

    Raises DatabaseError if the file cannot be read or written.
    """
    path = path.resolve()  # a link stays one
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # some network drives lock no folder: there the last change remains
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield path
        finally:
            os.close(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DatabaseError(
            f"{path} cannot be written ({reason}): check the folder, its rights and the disk"
        ) from error


def replace(path: Path, text: str) -> None:
    """Replace a file's text in one step: a full disk or a kill leaves the old one. A new file is its owner's alone."""
    # The name is that of recovery.disk: what a killed process leaves in a workspace is removed.
    handle, name = tempfile.mkstemp(prefix=f".writing-{os.getpid()}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            if path.exists():
                # Owner, group and mode stay; who may not set them must not replace the file.
                old, new = path.stat(), os.fstat(stream.fileno())
                if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
                    os.fchown(stream.fileno(), old.st_uid, old.st_gid)
                os.fchmod(stream.fileno(), stat.S_IMODE(old.st_mode))
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
