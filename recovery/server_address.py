"""Addresses of servers, as given in place of a name. Imports no HTTP library."""

from __future__ import annotations

from urllib.parse import urlsplit

from recovery.errors import UsageError

# Environment variables of a teacher's key; the first that is set holds it.
TEACHER_KEYS = ("RECOVER_TEACHER_KEY", "VLLM_API_KEY")


def is_address(name: str) -> bool:
    """Return whether a name is the address of a server."""
    return name.startswith(("http://", "https://"))


def check_address(address: str, flag: str) -> str:
    """Return the address of a server, without trailing slash or /v1. Raise UsageError if it is invalid or holds a
    key.
    """
    if any(mark in address for mark in "@?#"):  # the address is not shown, since it may contain a secret
        raise UsageError(
            f"{flag}: an address must not contain a key or user: set the key in the environment "
            "(RECOVER_TEACHER_KEY for a teacher, RECOVER_ENGINE_KEY for an engine or a writer)"
        )
    parts = urlsplit(address)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is not a number
        usable = False
    if not usable:
        raise UsageError(f"{flag} {address!r} is not an address: give one such as http://127.0.0.1:8000")
    return address.rstrip("/").removesuffix("/v1")
