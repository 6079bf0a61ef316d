"""A remote teacher, and its server, which is reached before anything is loaded or trained. Does not import torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from recovery.config import DistillConfig
from recovery.engines import TEACHER_KEYS, check_address
from recovery.inference_server import RESUME, InferenceServer, served_model
from recovery.lazy_import import lazily

if TYPE_CHECKING:
    from recovery.models.loaded import Loaded
    from recovery.teachers import remote
    from recovery.teachers.remote import RemoteTeacher
else:
    remote = lazily("recovery.teachers.remote")  # torch, which a plan does not need

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


def remote_teacher(loaded: Loaded, config: DistillConfig) -> RemoteTeacher:
    """Return the teacher on a server, after a check that it uses the student's tokens and returns enough scores."""
    server = teacher_server(config)
    teacher = remote.RemoteTeacher(server, loaded.tokenizer, loaded.chat, loaded.head.vocabulary, config.top_k)
    teacher.check()
    return teacher
