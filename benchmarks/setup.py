"""Time of `make .venv/.ready` in a fresh clone, with pip and with uv. Run: python -m benchmarks.setup --write

Each side sets up a clone of this repository twice: with an empty cache and with the cache that the first run filled.
The time ends when `recover doctor` has run once, since pip compiles byte code while installing and uv leaves it to the
first import. The files come from the network, so the times with an empty cache are as good as it is. uv must be on the
path, or named by --uv; the UV_* and PIP_* variables of the caller apply. No limit: reported only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import _report

ROOT = Path(__file__).resolve().parent.parent


def prepared(clone: Path, uv: str, cache: Path) -> tuple[float, float]:
    """Return the seconds of `make .venv/.ready` in the clone, and of the first `recover doctor` after it."""
    shutil.rmtree(clone / ".venv", ignore_errors=True)
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "UV")},
        "PIP_CACHE_DIR": str(cache / "pip"),
        "UV_CACHE_DIR": str(cache / "uv"),
    }
    began = time.monotonic()
    made = subprocess.run(
        ["make", ".venv/.ready", f"UV={uv}"], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    installed = time.monotonic()
    expected = "uv pip install" if uv else "pip install"
    said = re.findall(r"^(?:uv )?pip install", made.stdout, flags=re.MULTILINE)
    if made.returncode != 0 or set(said) != {expected}:
        raise SystemExit(f"make .venv/.ready did not install with {expected}:\n{made.stdout}{made.stderr}")
    doctor = [".venv/bin/recover", "doctor", "--workspace", str(clone / "workspace")]
    subprocess.run(doctor, cwd=clone, env=environment, capture_output=True, check=True)
    return installed - began, time.monotonic() - installed


def measured(folder: Path, uv: str) -> list[tuple[float, float]]:
    """Return the times with an empty cache and with a filled one, each in a fresh environment of one clone."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    return [prepared(clone, uv, folder / "cache") for _ in range(2)]


def main() -> None:
    """Measure both sides, print the table, and store it with --write."""
    parser = _report.parser(__doc__, "setup")
    parser.add_argument("--uv", default=shutil.which("uv"), help="the uv to measure; default: the one on the path")
    arguments = parser.parse_args()
    if not arguments.uv:
        raise SystemExit("uv is not on the path: pip install uv, or name it with --uv")
    facts = _report.machine(("pip",))
    facts["uv"] = subprocess.run([arguments.uv, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    rows, data = [], {}
    for name, uv in (("pip", ""), ("uv", arguments.uv)):
        with tempfile.TemporaryDirectory(prefix="recovery-setup-") as folder:
            times = measured(Path(folder), uv)
        data[name] = [{"cache": cache, "install": a, "doctor": b} for cache, (a, b) in zip(CACHES, times, strict=True)]
        rows += [(name, cache, f"{a:.0f} s", f"{b:.0f} s") for cache, (a, b) in zip(CACHES, times, strict=True)]
    body = _report.table(("installer", "cache", "make .venv/.ready", "first recover doctor"), rows)
    print(body)
    if arguments.write:
        _report.write("setup", "Setting up: pip and uv", f"{INTRODUCTION}\n\n{body}", facts, data)


CACHES = ("empty", "filled")
INTRODUCTION = (
    "One fresh environment each, in a clone of this repository. pip compiles byte code while it installs, uv leaves\n"
    "it to the first import. The times depend on the network, on where torch comes from, on what the registry lets a\n"
    "cache keep, and on other load (below)."
)

if __name__ == "__main__":
    main()
