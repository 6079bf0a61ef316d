"""The server of a remote teacher, reached before anything is loaded or trained. Does not import torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from recovery.config import DistillConfig
from recovery.inference_server import RESUME, InferenceServer, served_model
from recovery.server_address import TEACHER_KEYS, check_address

# Where no stage has begun that could be resumed.
NOT_BEGUN = "nothing is trained yet: start the teacher's server first, or raise --server-wait"


def teacher_server(config: DistillConfig) -> InferenceServer:
    """Return the client of the teacher's server."""
    address = check_address(config.teaching.address, "the server")
    return InferenceServer(address, TEACHER_KEYS, timeout=config.server_timeout, patience=config.server_wait)


def reach_teacher(config: DistillConfig, advice: str = RESUME, say: Callable[[str], None] = lambda _line: None) -> None:
    """Raise ServerError, with an ``advice``, if the teacher is a server that does not respond or rejects the key; say
    that it is waited for, up to --server-wait.
    """
    if not config.teaching.remote:
        return
    with contextlib.closing(teacher_server(config)) as server:
        server.advice, server.waiting = advice, say
        served_model(server)
