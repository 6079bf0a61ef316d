"""llama.cpp's server on a GGUF file, in a process of its own that ends with this one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from recovery.errors import EngineError

PACKAGE = "xllamacpp"
SLOTS = 4
"""Answers that it samples at once; they share the server's threads."""
_LONGEST_CONTEXT = 8192  # tokens of a slot: a model's whole window may take more memory than its weights
_LISTENING = "listening at "


@contextlib.contextmanager
def started(file: Path, window: int, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve a file on 127.0.0.1 for the block; yield the address and the process. ``window`` is a slot's, in tokens.

    Raise EngineError, with llama.cpp's reason, if it cannot be served.
    """
    context = SLOTS * min(window, _LONGEST_CONTEXT)
    command = [sys.executable, "-m", __name__, str(file), str(context), str(port)]
    with tempfile.TemporaryFile("w+") as log:
        # It ends when its input does: also if this process is killed.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            lines = (line.strip() for line in process.stdout)
            address = next((line.removeprefix(_LISTENING) for line in lines if line.startswith(_LISTENING)), "")
            if not address:
                log.seek(0)
                raise EngineError(f"llama.cpp cannot serve {file}: {_reason(log.read())}")
            threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()  # nobody reads the rest
            yield address, process
        finally:
            process.kill()
            process.communicate()


def _reason(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line for line in lines if any(word in line.lower() for word in ("error", "failed", "unknown", "needs"))]
    return (named or lines or ["it ended without a word"])[0][-300:]


def _main(file: str, context: str, port: str) -> None:
    try:
        import xllamacpp
    except ImportError:
        sys.exit("serving a GGUF file needs: pip install 'recovery[llama]'")
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel, settings.port = file, int(context), SLOTS, int(port)
    if threads := os.environ.get("OMP_NUM_THREADS", ""):  # as torch does; on a busy machine two wait for each other
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = int(threads)
    settings.hostnames, settings.warmup, settings.ui = ["127.0.0.1"], False, False
    server = xllamacpp.Server(settings)
    print(f"{_LISTENING}{server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _main(*sys.argv[1:])
