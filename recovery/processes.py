"""Several processes as one, started by `accelerate launch`, torchrun or Slurm: one a GPU, or a few on CPUs.

The main process runs the command. It alone reads and writes the tracker, prints, decides, draws and saves; the others
follow it. They wait for a piece of work that is to be done together (:func:`together`), do their part, and wait again.
Within such work there are places where only the main process goes on, and the others help where it asks them to
(:func:`lead`, :func:`ask`). So nothing has to be agreed upon: what the main process decides is what happens.

Everything here does nothing where there is one process. Messages travel over a group of their own on the CPU, which
waits as long as the main process has something to do alone; tensors travel over torch's default group.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from recovery.errors import RecoveryError, UsageError

T = TypeVar("T")

Helpers = Mapping[str, Callable[..., Any]]

# Main process to the others: do this, help with this, this came of it, leave what you are at, it is over.
_CALL, _HELP, _RESULT, _LEAVE, _END = "call", "help", "result", "leave", "end"
_ERROR, _ENDED = "recovery/error", "recovery/ended"
_FOREVER = timedelta(days=30)
# How long a process that failed stays, so that its launcher does not stop the main one before it has said why.
_STAY = timedelta(seconds=20)
# Gradients are added up in pieces of so many numbers: few messages, and little memory beside them.
_PIECE = 1 << 24


class _Left(RecoveryError):  # noqa: N818  (no error: the main process left what was done together)
    """Unwinds a process that follows."""


@dataclass
class _World:
    rank: int
    size: int
    local_rank: int
    store: Any
    messages: Any


_world: _World | None = None


def size() -> int:
    """How many processes work together."""
    return 1 if _world is None else _world.size


def rank() -> int:
    """This process's number, from 0."""
    return 0 if _world is None else _world.rank


def is_main() -> bool:
    """Whether this process decides, and speaks for all."""
    return rank() == 0


def local_device(kind: str) -> torch.device:
    """This process's own device of a kind: the GPU of its number on its machine where there are several processes."""
    device = torch.device(kind)
    if _world is not None and device.type == "cuda" and device.index is None:
        device = torch.device("cuda", _world.local_rank % max(1, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    return device


# --- the life of the processes -----------------------------------------------------------------------------------


def run(command: Callable[[], int]) -> int:
    """Run ``command`` in the main process while the others follow it; returns this process's exit status.

    Raises UsageError where the environment does not say who this process is.
    """
    _join()
    if not is_main():
        return _follow()
    try:
        return command()
    finally:
        _end()


def _join() -> None:
    """Meet the other processes, as the launcher's environment says."""
    global _world
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UsageError(
            f"WORLD_SIZE is {os.environ.get('WORLD_SIZE')} but {', '.join(missing)} is not set: start with accelerate "
            f"launch or torchrun (docs/launching.md), or unset WORLD_SIZE"
        )
    store, number, count = next(rendezvous("env://"))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=dist.PrefixStore("recovery", store), rank=number, world_size=count)
    messages = dist.new_group(backend="gloo", timeout=_FOREVER)
    _world = _World(number, count, int(os.environ.get("LOCAL_RANK", 0)), store, messages)


def _end() -> None:
    """Send the others home."""
    with contextlib.suppress(RecoveryError):
        _tell(_END, None)
    with contextlib.suppress(RuntimeError):
        if _world is not None:
            _world.store.set(_ENDED, "1")
    _leave()


def _leave() -> None:
    """Close this process's connections: whoever waits for it knows at once."""
    if _world is not None and _world.messages is not None:
        _world.messages = None
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
        gc.collect()


def _follow() -> int:
    """Do what the main process asks for until it ends. What goes wrong here is said by it, in its one line."""
    # Outside training a stop is the main process's affair; within it, the stage listens for itself.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        _do_as_told()
    except BaseException as error:
        if not isinstance(error, (RecoveryError, KeyboardInterrupt)):
            traceback.print_exc(file=sys.stderr)
        problem = None if isinstance(error, _Lost) else _line(error)
        traceback.clear_frames(error.__traceback__)  # they hold the model, which may hold connections
    else:
        _leave()
        return 0
    _fail(problem)
    return 1


def _do_as_told() -> None:
    while True:
        kind, work = _heard()
        if kind == _END:
            return
        if kind == _CALL:
            function, arguments = work
            with contextlib.suppress(_Left):
                function(*arguments)


def _fail(problem: str | None) -> None:
    """Leave word, close the connections, and stay until the main process has passed it on.

    A launcher stops all processes as soon as one of them ends with an error.
    """
    assert _world is not None
    with contextlib.suppress(RuntimeError):
        if problem is not None:
            _world.store.set(_ERROR, f"process {_world.rank}: {problem}")
        _leave()
        _world.store.wait([_ENDED], _STAY)


# --- working together --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def together(function: Callable[..., Any], *arguments: Any) -> Iterator[None]:
    """While the block runs here, the other processes run ``function(*arguments)``.

    Both must come to the same calls of this module in the same order. Where the block ends by an error, the others
    leave their function at the next place where they wait for the main process.
    """
    if size() == 1:
        yield
        return
    _tell(_CALL, (function, arguments))
    try:
        yield
    except RecoveryError:
        with contextlib.suppress(RecoveryError):
            _tell(_LEAVE, None)
        raise
    except BaseException:  # the others may be anywhere, waiting for what does not come
        _leave()
        raise


@contextlib.contextmanager
def in_step() -> Iterator[None]:
    """Where every process waits for the others' tensors: one that fails here closes its connections at once."""
    try:
        yield
    except BaseException as error:
        lost = _lost(error) if _of_connection(error) else None
        _leave()
        if lost is not None:
            raise lost from error
        raise


def lead(work: Callable[[], T], helpers: Helpers | None = None) -> T:
    """What ``work`` returns in the main process, in every process; the others help with ``helpers`` by name."""
    if size() == 1:
        return work()
    if is_main():
        result = work()
        _tell(_RESULT, result)
        return result
    while True:
        kind, told = _heard()
        if kind == _RESULT:
            return told  # type: ignore[no-any-return]  # what `work` returned
        if kind != _HELP:
            raise _Left("the main process left")
        name, parts = told
        _answers(lambda: (helpers or {})[name](*parts[rank()]))  # noqa: B023  (called at once)


def ask(name: str, parts: Sequence[Sequence[Any]], own: Callable[..., T]) -> list[T]:
    """Inside :func:`lead`, in the main process: each process does its part of some work; its results, in order.

    ``parts`` are the arguments of each process's helper ``name``, the first those of ``own``, which does the main
    process's part. Raises RecoveryError where any of them fails.
    """
    if size() == 1:
        return [own(*parts[0])]
    _tell(_HELP, (name, parts))
    return _answers(lambda: own(*parts[0]))


def gather(work: Callable[[], T]) -> list[T]:
    """What ``work`` returns in each process, in order, in every process.

    Raises RecoveryError in all of them where it raises in any.
    """
    return [work()] if size() == 1 else _answers(work)


def anywhere(flag: bool) -> bool:
    """Whether the flag is set in any process."""
    return flag if size() == 1 else any(gather(lambda: flag))


def cut(items: Sequence[T]) -> list[Sequence[T]]:
    """Consecutive parts of a sequence, one a process, as even as can be."""
    count = size()
    bounds = [round(at * len(items) / count) for at in range(count + 1)]
    return [items[start:stop] for start, stop in itertools.pairwise(bounds)]


def add_up(tensors: Iterable[torch.Tensor]) -> None:
    """Replace tensors by their sums over all processes, in place; every process gives the same shapes."""
    if size() == 1:
        return
    waiting: list[torch.Tensor] = []
    held = 0
    for tensor in tensors:
        if waiting and (held + tensor.numel() > _PIECE or tensor.dtype != waiting[0].dtype):
            _add_up_piece(waiting)
            waiting, held = [], 0
        waiting.append(tensor)
        held += tensor.numel()
    if waiting:
        _add_up_piece(waiting)


def _add_up_piece(tensors: Sequence[torch.Tensor]) -> None:
    with _lost_in_one_line():
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
    for tensor, summed in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(summed.view_as(tensor))


# --- messages ----------------------------------------------------------------------------------------------------


class _Lost(RecoveryError):  # noqa: N818
    """Another process is gone."""


def _tell(kind: str, payload: Any) -> None:
    if _world is None or _world.messages is None:
        return
    with _lost_in_one_line():
        dist.broadcast_object_list([kind, payload], src=0, group=_world.messages)


def _heard() -> tuple[str, Any]:
    message: list[Any] = [None, None]
    with _lost_in_one_line():
        assert _world is not None
        dist.broadcast_object_list(message, src=0, group=_world.messages)
    return message[0], message[1]


def _answers(work: Callable[[], T]) -> list[T]:
    """Every process's result, or one error for all."""
    assert _world is not None
    failed: Exception | None = None
    mine: tuple[str | None, Any]
    try:
        mine = (None, work())
    except Exception as error:
        failed, mine = error, (_line(error), None)
    if failed is not None and _world.messages is None:  # it closed the connections, so that nobody waits for it
        raise failed
    answers: list[Any] = [None] * _world.size
    with _lost_in_one_line():
        dist.all_gather_object(answers, mine, group=_world.messages)
    if failed is not None and is_main():
        raise failed
    for number, (problem, _) in enumerate(answers):
        if problem is not None:
            raise (RecoveryError if is_main() else _Left)(f"process {number}: {problem}")
    return [value for _, value in answers]


@contextlib.contextmanager
def _lost_in_one_line() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise _lost(error) from error


def _of_connection(error: BaseException) -> bool:
    """Whether the fault lies between the processes, and not in this one's own work."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _lost(error: BaseException) -> _Lost:
    """A broken connection as one line: the reason for which a process left, or that one was lost."""
    said = None
    with contextlib.suppress(RuntimeError):
        if _world is not None and _world.store.check([_ERROR]):
            said = _world.store.get(_ERROR).decode()
    return _Lost(said or f"another process was lost ({_line(error)}): `recover resume` goes on")


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    told = lines[0] if lines else type(error).__name__
    return told if isinstance(error, RecoveryError) else f"{type(error).__name__}: {told}"
