"""Rollout engines by the name that --engine takes, and addresses of servers. Imports no torch and no HTTP library.

An engine is a module with a function ``sampler(loaded, settings)``, which returns a
:class:`recovery.rollouts.weight_sync.Sampler`. A server's name is its address; the part before "+" says what kind of
server it is, as in vllm+http://127.0.0.1:8000, and is omitted for vLLM. An engine of your own is registered in
:data:`SAMPLERS` or :data:`SERVERS`, as examples/engines/sglang_server.py does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from recovery.errors import UsageError

TRANSFORMERS = "transformers"
# In this process, by name.
SAMPLERS = {
    "vllm": "recovery.rollouts.vllm_engine",
}
# Servers, by what precedes "+http" in their address.
SERVERS = {
    "vllm": "recovery.rollouts.vllm_server_engine",
}
_DEFAULT = "vllm"
# Environment variables of a teacher's key; the first that is set holds it.
TEACHER_KEYS = ("RECOVER_TEACHER_KEY", "VLLM_API_KEY")


@dataclass(frozen=True)
class EngineSettings:
    """What an engine other than transformers needs to know.

    ``tokens`` are held at once while sampling; ``free`` and ``memory`` are bytes: free on the model's device, and for
    the cache of keys and values (None: chosen from ``free``). ``sleep`` releases memory between calls. A server reads
    weights from ``folder`` (None: a temporary one); one request may take ``timeout`` seconds, and it may be unreachable
    for ``wait`` seconds.
    """

    name: str
    tokens: int
    free: int
    memory: int | None = None
    sleep: bool = False
    folder: Path | None = None
    timeout: float = 600.0
    wait: float = 600.0


def is_server(engine: str) -> bool:
    """Return whether an engine's name is an address."""
    return "://" in engine


def module_of(engine: str) -> str:
    """Return the module of an engine other than transformers. Raise UsageError if there is none of that name."""
    module = SERVERS.get(_split(engine)[0]) if is_server(engine) else SAMPLERS.get(engine)
    if module is None:
        raise UsageError(
            f"--engine {engine!r} is not known: use {', '.join((TRANSFORMERS, *SAMPLERS))}, a server's address such as "
            f"http://127.0.0.1:8000, or an engine of your own (examples/engines)"
        )
    return module


def server_address(engine: str) -> str:
    """Return the address of a server without the kind of server. Raise UsageError if it is invalid."""
    return check_address(_split(engine)[1], "--engine")


def check_engine(engine: str) -> None:
    """Raise UsageError if an engine's name is unknown, or the address of a server invalid."""
    if is_server(engine):
        server_address(engine)
    if engine != TRANSFORMERS:
        module_of(engine)


def _split(engine: str) -> tuple[str, str]:
    """Return the kind of server and its address."""
    scheme, separator, rest = engine.partition("://")
    kind, plus, protocol = scheme.rpartition("+")
    return (kind, f"{protocol}{separator}{rest}") if plus else (_DEFAULT, engine)


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


# The device memory that vLLM in this process needs, from a model's sizes.

WEIGHTS_ALLOWED = 1.2  # times the weights, for temporary copies while they are loaded
WORKSPACE = 2 << 30  # bytes for activations
SPARE = 256  # tokens of partially used blocks
_FREE_SHARE = 0.4


def cache_bytes(each: int, tokens: int, longest: int, free: int | None = None) -> int:
    """Return the size of the KV cache in bytes, with ``each`` bytes per token: for ``tokens`` tokens, but at least for
    the model's longest input; at most 40% of the ``free`` bytes, if known.
    """
    needed = (max(tokens, longest) + SPARE) * each
    return needed if free is None else min(needed, int(_FREE_SHARE * free))


def device_bytes(weights: int, cache: int) -> int:
    """Return the bytes of free device memory that vLLM needs to start; ``weights`` and ``cache`` are in bytes, too."""
    return cache + round(WEIGHTS_ALLOWED * weights) + WORKSPACE
