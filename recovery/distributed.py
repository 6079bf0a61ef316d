"""Coordination of several processes started by `accelerate launch`, torchrun or Slurm: one per GPU, or a few on CPUs.

The main process (rank 0) runs the command. It alone reads and writes the tracker, prints, decides, samples and saves;
the others wait for a function to run together with it (:func:`others_run`), run it, and wait again. Inside such a
function, :func:`lead` runs a part in the main process only, which can call helpers of the other processes by name
(:func:`ask`). No consensus is needed: the main process decides.

With one process all of this has no effect. Messages use a separate gloo group on the CPU with a timeout of 30 days,
since the main process may work alone for long; tensors use torch's default group.
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

from recovery.errors import RecoveryError, UsageError, first_line

T = TypeVar("T")

Helpers = Mapping[str, Callable[..., Any]]

# Messages of the main process: run a function, run a helper, the result of `lead`, abandon the function, exit.
_CALL, _HELP, _RESULT, _LEAVE, _END = "call", "help", "result", "leave", "end"
_ERROR, _ENDED = "recovery/error", "recovery/ended"
_TIMEOUT = timedelta(days=30)
# How long a failed process stays alive, so that its launcher does not stop the main one before it reports the error.
_LINGER = timedelta(seconds=20)
# Gradients are all-reduced in flat buffers of this many elements: few messages, little additional memory.
_CHUNK = 1 << 24


class _Abandoned(RecoveryError):  # noqa: N818  (not an error: the main process abandoned the function)
    """Unwinds the function of a follower process."""


@dataclass
class _World:
    rank: int
    size: int
    local_rank: int
    store: Any
    messages: Any


_world: _World | None = None


def size() -> int:
    """Return the number of processes."""
    return 1 if _world is None else _world.size


def rank() -> int:
    """Return this process's rank, from 0."""
    return 0 if _world is None else _world.rank


def is_main() -> bool:
    """Return whether this is the main process."""
    return rank() == 0


def local_device(kind: str) -> torch.device:
    """Return this process's device of a kind; with several processes, the GPU of its local rank.

    A GPU becomes the current one: kernels and graphs are started on it.
    """
    device = torch.device(kind)
    if _world is not None and device.type == "cuda" and device.index is None:
        device = torch.device("cuda", _world.local_rank % max(1, torch.cuda.device_count()))
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


# --- process lifetime ---------------------------------------------------------------------------------------------


def run(command: Callable[[], int]) -> int:
    """Run ``command`` in the main process while the others follow it; return this process's exit status.

    Raise UsageError if the environment does not define this process's rank.
    """
    _join()
    if not is_main():
        return _follow()
    try:
        return command()
    finally:
        _end()


def _join() -> None:
    """Initialise the process groups from the launcher's environment."""
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
    messages = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    _world = _World(number, count, int(os.environ.get("LOCAL_RANK", 0)), store, messages)


def _end() -> None:
    """Let the other processes exit."""
    with contextlib.suppress(RecoveryError):
        _send(_END, None)
    with contextlib.suppress(RuntimeError):
        if _world is not None:
            _world.store.set(_ENDED, "1")
    _leave()


def _leave() -> None:
    """Close this process's connections, so that processes waiting for it fail at once."""
    if _world is not None and _world.messages is not None:
        _world.messages = None
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
        gc.collect()


def _follow() -> int:
    """Serve the main process until it ends; return the exit status. The main process reports errors of this one."""
    # Outside training only the main process handles signals; during training the stage installs its own handlers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        _serve()
    except BaseException as error:
        if not isinstance(error, (RecoveryError, KeyboardInterrupt)):
            traceback.print_exc(file=sys.stderr)
        problem = None if isinstance(error, _ProcessLost) else _line(error)
        traceback.clear_frames(error.__traceback__)  # the frames hold the model, which may hold connections
    else:
        _leave()
        return 0
    _fail(problem)
    return 1


def _serve() -> None:
    """Run the functions that the main process sends until it ends."""
    while True:
        kind, work = _receive()
        if kind == _END:
            return
        if kind == _CALL:
            function, arguments = work
            with contextlib.suppress(_Abandoned):
                function(*arguments)


def _fail(problem: str | None) -> None:
    """Store the error, close the connections, and wait until the main process has reported it.

    A launcher stops all processes as soon as one of them exits with an error. A main process that was killed reports
    nothing, so this one does.
    """
    assert _world is not None
    try:
        if problem is not None:
            _world.store.set(_ERROR, f"process {_world.rank}: {problem}")
        _leave()
        _world.store.wait([_ENDED], _LINGER)
    except RuntimeError:
        problem = problem or "the main process was lost or has not ended"
        print(f"recover: error: process {_world.rank}: {problem}: continue with `recover resume`", file=sys.stderr)


# --- collective work ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def others_run(function: Callable[..., Any], *arguments: Any) -> Iterator[None]:
    """While the block runs in the main process, the others run ``function(*arguments)``.

    Both must make the same calls of this module in the same order. If the block raises an error, the others abandon
    their function at the next point where they wait for the main process.
    """
    if size() == 1:
        yield
        return
    _send(_CALL, (function, arguments))
    try:
        yield
    except RecoveryError:
        with contextlib.suppress(RecoveryError):
            _send(_LEAVE, None)
        raise
    except BaseException:  # the others may be waiting anywhere
        _leave()
        raise


@contextlib.contextmanager
def in_step() -> Iterator[None]:
    """Context in which all processes exchange tensors: one that fails closes its connections at once."""
    try:
        yield
    except BaseException as error:
        process_error = _lost_process_error(error) if _is_connection_error(error) else None
        _leave()
        if process_error is not None:
            raise process_error from error
        raise


def lead(work: Callable[[], T], helpers: Helpers | None = None) -> T:
    """Run ``work`` in the main process and return its result in every process; the others serve ``helpers``."""
    if size() == 1:
        return work()
    if is_main():
        result = work()
        _send(_RESULT, result)
        return result
    while True:
        kind, payload = _receive()
        if kind == _RESULT:
            return payload  # type: ignore[no-any-return]  # what `work` returned
        if kind != _HELP:
            raise _Abandoned("the main process left")
        name, parts = payload
        _gather_results(lambda: (helpers or {})[name](*parts[rank()]))  # noqa: B023  (called at once)


def ask(name: str, parts: Sequence[Sequence[Any]], own: Callable[..., T]) -> list[T]:
    """Run one part of some work in each process and return the results in order; main process, inside :func:`lead`.

    ``parts`` are the arguments of helper ``name`` in each process; the first are for ``own``, which runs in the main
    process. Raise RecoveryError if any of them fails.
    """
    if size() == 1:
        return [own(*parts[0])]
    _send(_HELP, (name, parts))
    return _gather_results(lambda: own(*parts[0]))


def gather(work: Callable[[], T]) -> list[T]:
    """Run ``work`` in each process and return all results, in order, in every process.

    Raise RecoveryError in every process if it fails in any.
    """
    return [work()] if size() == 1 else _gather_results(work)


def any_process(flag: bool) -> bool:
    """Return whether the flag is set in any process."""
    return flag if size() == 1 else any(gather(lambda: flag))


def any_process_in_step(flag: bool) -> bool:
    """Return whether the flag is set in any process, inside :func:`in_step`: no error is exchanged, so it takes a
    fraction of the time of :func:`any_process`.
    """
    if size() == 1:
        return flag
    total = torch.tensor([float(flag)])
    with _connection_errors():
        dist.all_reduce(total)
    return bool(total)


def cut(items: Sequence[T]) -> list[Sequence[T]]:
    """Split a sequence into consecutive parts of nearly equal length, one per process."""
    count = size()
    bounds = [round(at * len(items) / count) for at in range(count + 1)]
    return [items[start:stop] for start, stop in itertools.pairwise(bounds)]


def add_up(tensors: Iterable[torch.Tensor]) -> None:
    """Replace tensors by their sums over all processes, in place; every process passes the same shapes."""
    if size() == 1:
        return
    pending: list[torch.Tensor] = []
    elements = 0
    for tensor in tensors:
        if pending and (elements + tensor.numel() > _CHUNK or tensor.dtype != pending[0].dtype):
            _add_up_piece(pending)
            pending, elements = [], 0
        pending.append(tensor)
        elements += tensor.numel()
    if pending:
        _add_up_piece(pending)


def _add_up_piece(tensors: Sequence[torch.Tensor]) -> None:
    with _connection_errors():
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
    for tensor, summed in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(summed.view_as(tensor))


# --- messages ----------------------------------------------------------------------------------------------------


class _ProcessLost(RecoveryError):  # noqa: N818
    """Another process was lost."""


def _send(kind: str, payload: Any) -> None:
    if _world is None or _world.messages is None:
        return
    with _connection_errors():
        dist.broadcast_object_list([kind, payload], src=0, group=_world.messages)


def _receive() -> tuple[str, Any]:
    message: list[Any] = [None, None]
    with _connection_errors():
        assert _world is not None
        dist.broadcast_object_list(message, src=0, group=_world.messages)
    return message[0], message[1]


def _gather_results(work: Callable[[], T]) -> list[T]:
    """Return the result of every process, or raise one error in all."""
    assert _world is not None
    failed: Exception | None = None
    mine: tuple[str | None, Any]
    try:
        mine = (None, work())
    except Exception as error:
        failed, mine = error, (_line(error), None)
    if failed is not None and _world.messages is None:  # the failure has closed the connections already
        raise failed
    results: list[Any] = [None] * _world.size
    with _connection_errors():
        dist.all_gather_object(results, mine, group=_world.messages)
    if failed is not None and is_main():
        raise failed
    for number, (problem, _) in enumerate(results):
        if problem is not None:
            raise (RecoveryError if is_main() else _Abandoned)(f"process {number}: {problem}")
    return [value for _, value in results]


@contextlib.contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise _lost_process_error(error) from error


def _is_connection_error(error: BaseException) -> bool:
    """Return whether an error comes from the connection rather than from this process's own work."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _lost_process_error(error: BaseException) -> _ProcessLost:
    """Return a connection error as one line: the stored error of a failed process, or that one was lost."""
    reason = None
    with contextlib.suppress(RuntimeError):
        if _world is not None and _world.store.check([_ERROR]):
            reason = _world.store.get(_ERROR).decode()
    return _ProcessLost(reason or f"another process was lost ({_line(error)}): continue with `recover resume`")


def _line(error: BaseException) -> str:
    return str(error) if isinstance(error, RecoveryError) else f"{type(error).__name__}: {first_line(error)}"
