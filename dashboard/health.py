"""Whether a dashboard answers, asked by a container engine: ``python -m dashboard.health``.

The image's commands are not all dashboards: where the container's first process is another command there is nothing to
ask, and all is well. Asked every half a minute, so it imports nothing but the standard library.
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
    """0 if the dashboard of this container works or there is none, 1 if it does not; says which in one line."""
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
    """The port at which the command line ``words`` serves a dashboard; None if it is another command."""
    pairs = list(itertools.pairwise(words))
    if not any(Path(name).name in ("recover", "recovery") and command == "dashboard" for name, command in pairs):
        return None
    given = [value for name, value in pairs if name == "--port"]
    given += [word.removeprefix("--port=") for word in words if word.startswith("--port=")]
    return int(given[-1]) if given else PORT


if __name__ == "__main__":
    sys.exit(main())
