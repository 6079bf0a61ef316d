"""Whole runs for the campaign of servers: a distillation that a server disturbs, and that is resumed if it ends."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COUNT = 5  # entries of the vocabulary per token
RUN = ("distill", "--model", "student", "--prompts", "prompts", "--divergence", "top_k", "--top-k", str(COUNT),
       "--steps", "4", "--prompts-per-step", "2", "--samples-per-prompt", "1", "--max-new-tokens", "4",
       "--checkpoint-every", "1", "--until", "0", "--precision", "float32", "--tuning", "full", "--server-wait", "1",
       "--server-timeout", "5")  # fmt: skip

Weights = list[tuple[str, str]]
"""The files of a workspace's checkpoints, with their hashes."""


def is_line(text: str) -> bool:
    """Whether an error is one printable line that names the server."""
    return text.isprintable() and len(text) < 1000 and re.search(r"127\.0\.0\.1:\d+", text) is not None


def undisturbed(folder: Path, workspace: Path, *more: str) -> Weights | str:
    """Run the distillation of the model in ``folder``; return its weights, or the fault."""
    prompts = folder / "prompts"
    prompts.mkdir(exist_ok=True)
    for split in ("train", "development", "test"):
        lines = [f'{{"key": "{split}-{n}", "prompt": "Name boat {n} of {split}."}}\n' for n in range(6)]
        (prompts / f"{split}.jsonl").write_text("".join(lines))
    ended = _recover(folder, workspace, *RUN, *more)
    return f"FAULT: the undisturbed run ended: {ended.stderr[-500:]}" if ended.returncode else _weights(workspace)


def disturbed(folder: Path, workspace: Path, whole: Weights, calm: Callable[[], None], what: str, *more: str) -> str:
    """Run it while a server misbehaves; resume it if that ended it, after ``calm``. Return how it went, in a line."""
    ended = _recover(folder, workspace, *RUN, *more)
    calm()
    if ended.returncode == 0:
        same = _weights(workspace) == whole
        return f"went on to the same weights: {what}" if same else f"FAULT: {what}: other weights, and nothing was said"
    errors = [line for line in ended.stderr.splitlines() if line.startswith("recover: error: ")]
    if ended.returncode != 1 or len(errors) != 1 or not is_line(errors[0]) or "Traceback" in ended.stderr:
        return f"FAULT: {what}: status {ended.returncode}: {ended.stderr[-500:]}"
    resumed = _recover(folder, workspace, "resume")
    if resumed.returncode:
        return f"FAULT: {what}: it was not resumed: {resumed.stderr[-500:]}"
    same = _weights(workspace) == whole
    return f"resumed to the same weights after {what}: {errors[0]}" if same else f"FAULT: {what}: other weights"


def _recover(folder: Path, workspace: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recovery", *arguments, "--workspace", str(workspace)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _weights(workspace: Path) -> Weights:
    files = sorted(workspace.glob("checkpoints/**/*.safetensors"))
    return [(str(path.relative_to(workspace)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
