"""Health check of a dashboard for container engines: ``python -m dashboard.health``.

If the container's first process is not a dashboard, the check passes. It runs every half minute, so it imports only
the standard library.
"""

from __future__ import annotations

import itertools
import sys
import urllib.error
import urllib.request
from pathlib import Path

PATH = "/health"
PORT = 7860
SECONDS = 5.0


def main(first_process: Path = Path("/proc/1/cmdline")) -> int:
    """Return 0 if the dashboard of this container works or there is none, else 1; print the result on one line."""
    words = first_process.read_bytes().decode(errors="replace").split("\0")
    port = served(words)
    if port is None:
        print("no dashboard is served here")
        return 0
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{PATH}", timeout=SECONDS) as answer:
            print(answer.read().decode())
            return 0
    except urllib.error.HTTPError as error:
        print(error.read().decode(errors="replace") or error)
    except OSError as error:
        print(f"the dashboard does not answer: {error}")
    return 1


def served(words: list[str]) -> int | None:
    """Return the port at which the command line ``words`` serves a dashboard; None for another command."""
    pairs = list(itertools.pairwise(words))
    if not any(Path(name).name in ("recover", "recovery") and command == "dashboard" for name, command in pairs):
        return None
    ports = [value for name, value in pairs if name == "--port"]
    ports += [word.removeprefix("--port=") for word in words if word.startswith("--port=")]
    return int(ports[-1]) if ports else PORT


if __name__ == "__main__":
    sys.exit(main())
