"""Rollout engines by the name that --engine takes. Does not import torch.

An engine is a module with a function ``sampler(loaded, settings)``, which returns a
:class:`recovery.rollouts.weight_sync.Sampler`. A server's name is its address; the part before "+" says what kind of
server it is, as in vllm+http://127.0.0.1:8000, and is omitted for vLLM. An engine of your own is registered in
:data:`SAMPLERS` or :data:`SERVERS`, as examples/engines/sglang_server.py does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recovery.errors import UsageError
from recovery.server_address import check_address

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
    if not is_server(engine):
        if engine in SAMPLERS:
            return SAMPLERS[engine]
    elif (found := SERVERS.get(_split(engine)[0])) is not None:
        return found
    raise UsageError(
        f"--engine {engine!r} is not known: use {', '.join((TRANSFORMERS, *SAMPLERS))}, a server's address such as "
        f"http://127.0.0.1:8000, or an engine of your own (examples/engines)"
    )


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
