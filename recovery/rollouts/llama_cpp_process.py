"""A process that is llama.cpp's server on a file: without torch and transformers, which take longer than to load it."""

import os
import sys


def main(file: str, context: str, slots: str, port: str) -> None:
    """Serve a file until the input ends, and print the address."""
    try:
        import xllamacpp
    except ImportError:
        sys.exit("serving a GGUF file needs: pip install 'recovery[llama]'")
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel, settings.port = file, int(context), int(slots), int(port)
    # torch reads this variable too. On a busy machine it is 1, since two threads would wait for each other.
    if threads := os.environ.get("OMP_NUM_THREADS", ""):
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = int(threads)
    settings.hostnames, settings.warmup, settings.ui = ["127.0.0.1"], False, False
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
