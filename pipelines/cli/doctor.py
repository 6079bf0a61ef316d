"""`recover doctor`: checks of the machine, the installation and the workspace."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from pipelines.cli import common
from recovery.workspace import Workspace

GIB = 1024**3
EXTRAS = {"vllm": ("vllm",), "docs": ("pypdfium2",), "gguf": ("gguf",), "postgres": ("psycopg",)}
# Bytes per trained parameter: float32 weight and gradient, and Adam's two moments.
FULL_BYTES = 16
# Bytes per parameter under LoRA: a frozen weight in bfloat16 or float32; the adapter is negligible.
LORA_BYTES = {"bfloat16": 2, "float32": 4}

State = Literal["ok", "note", "missing", "failed"]
SIGNS = {"ok": "+", "note": "i", "missing": "-", "failed": "!"}


@dataclass(frozen=True)
class Finding:
    """The result of one check: a line of text, the values behind it, and advice.

    ``state``: "ok"; "note", worth reading; "missing", an optional part is absent; "failed", a required part is broken.
    """

    name: str
    state: State
    line: str
    advice: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@click.command()
@common.workspace
@common.as_json
def command(workspace: Workspace, as_json: bool) -> None:
    """Check what this machine can run.

    Inspects Python, torch, cores, memory, GPUs, disk, the optional parts, the workspace and its tracker. Trains nothing
    and uses no network, except for a tracker on a server. Exits with status 1 if a required part is broken.
    """
    machine = look_at_machine(workspace.folder)
    findings = [
        look_at_python(),
        look_at_packages(),
        machine,
        *look_at_torch(machine.facts["cores"], machine.facts["memory_bytes"]),
        *look_at_extras(),
        look_at_sentence_data(),
        look_at_miniature(),
        look_at_workspace(workspace.folder),
        *look_at_tracker(workspace),
    ]
    ready = all(finding.state != "failed" for finding in findings)
    common.emit({"ready": ready, "findings": findings}, as_json, lambda: describe(findings, ready))
    if not ready:
        raise click.exceptions.Exit(1)


def describe(findings: list[Finding], ready: bool) -> str:
    """Return the findings as text, each advice under its line."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{SIGNS[finding.state]} {finding.name:<{width}}  {finding.line}")
        if finding.advice:
            lines.append(f"  {'':<{width}}  -> {finding.advice}")
    lines.append("")
    lines.append("Ready: try `recover demo`." if ready else "Not ready: see the lines marked with !.")
    return "\n".join(lines)


def look_at_python() -> Finding:
    """Check the versions of Python and of the main packages."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in ("recovery", "torch", "transformers", "peft", "lm-eval", "gradio", "sqlalchemy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "missing"
    absent = [name for name, version in versions.items() if version == "missing" and name != "recovery"]
    line = ", ".join(f"{name} {version}" for name, version in versions.items())
    advice = "reinstall: pip install --no-deps -r requirements/lock.txt" if absent else ""
    return Finding("versions", "failed" if absent else "ok", line, advice, versions)


def look_at_packages() -> Finding:
    """Check where the project's own packages are imported from; foreign ones are refused earlier."""
    from recovery._package_guard import OWN_PACKAGES

    folders: dict[str, str] = {}
    for name in OWN_PACKAGES:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            return Finding("packages", "failed", f"{name} cannot be imported: {error}", "reinstall Recovery")
        folders[name] = str(Path(str(module.__file__)).parent)
    return Finding("packages", "ok", f"from {Path(folders['db']).parent}", facts=folders)


def look_at_machine(workspace: Path) -> Finding:
    """Measure the cores, memory and disk that this process may use, within a container's limits."""
    from recovery.limits import machine_memory

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = machine_memory()
    disk = shutil.disk_usage(existing_parent(workspace)).free
    facts = {
        "system": platform.platform(),
        "cores": cores,
        "load": round(os.getloadavg()[0], 2),
        "memory_bytes": memory,
        "disk_free_bytes": disk,
    }
    line = f"{cores} cores, {memory / GIB:.0f} GiB of memory, {disk / GIB:.0f} GiB of disk free"
    if disk < 2 * GIB:
        return Finding("machine", "note", line, "checkpoints need room: choose another --workspace", facts)
    return Finding("machine", "ok", line, facts=facts)


def look_at_torch(cores: int, memory: int) -> list[Finding]:
    """Check torch's devices, precision and threads, and how large a model fits."""
    try:
        import torch

        from recovery.losses import kernels
        from recovery.models.hardware import pick_device, pick_precision
    except (ImportError, OSError) as error:
        return [Finding("torch", "failed", f"cannot be imported: {error}", "pip install torch==2.13.0")]
    device = pick_device("auto")
    precision = str(pick_precision("auto", device)).removeprefix("torch.")
    gpus: list[dict[str, Any]] = [
        {"name": properties.name, "memory_bytes": properties.total_memory}
        for properties in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
    room = gpus[0]["memory_bytes"] if gpus else memory
    named = "; ".join(f"{gpu['name']}, {gpu['memory_bytes'] / GIB:.0f} GiB" for gpu in gpus) or "no GPU"
    facts: dict[str, Any] = {"device": str(device), "precision": precision, "gpus": gpus}
    line = f"{named}; auto precision on {device.type} is {precision}"
    if device.type == "cpu":
        facts["bfloat16_speed"] = bfloat16_speed(torch)
        line += f"; bfloat16 products run at {facts['bfloat16_speed']:.1f}x the speed of float32"
    return [
        Finding("device", "ok", line, facts=facts),
        *([look_at_kernel(kernels.available(device))] if device.type == "cuda" else []),
        look_at_threads(torch.get_num_threads(), cores),
        look_at_sizes(room, precision),
    ]


def look_at_kernel(runs: bool) -> Finding:
    """Check whether the KL and JSD losses run as one kernel on the GPU."""
    facts = {"runs": runs}
    if runs:
        return Finding("kernel", "ok", "the KL and JSD losses run as one kernel (Triton)", facts=facts)
    line = "the kernel of the KL and JSD losses does not run: they take three times as long"
    return Finding("kernel", "note", line, "install a C compiler (Debian: gcc), which Triton needs", facts)


def bfloat16_speed(torch: Any) -> float:
    """Return the speed of a bfloat16 matrix product relative to float32; below 1 it is slower."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(384, 384, dtype=dtype)
        matrix @ matrix
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            matrix @ matrix
            best = min(best, time.perf_counter() - start)
        seconds[dtype] = best
    return round(seconds[torch.float32] / seconds[torch.bfloat16], 2)


def look_at_threads(threads: int, cores: int) -> Finding:
    """Check whether torch's threads fit the free cores."""
    load = os.getloadavg()[0]
    facts = {"threads": threads, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")}
    line = f"torch uses {threads} of {cores} cores; load {load:.1f}"
    if threads > 1 and load > 0.5 * cores:
        advice = "other work is running: OMP_NUM_THREADS=1 is several times faster now"
        return Finding("threads", "note", line, advice, facts)
    return Finding("threads", "ok", line, facts=facts)


def look_at_sizes(room: int, precision: str) -> Finding:
    """Estimate how many parameters fit ``room`` bytes, with a quarter reserved for activations and other programs."""
    usable = 0.75 * room
    full, lora = usable / FULL_BYTES, usable / LORA_BYTES[precision]
    facts = {"full_parameters": int(full), "lora_parameters": int(lora)}
    line = f"about {billions(full)} parameters with full fine-tuning, {billions(lora)} with LoRA"
    return Finding("model size", "ok", line, facts=facts)


def billions(parameters: float) -> str:
    """``1.2e9`` -> ``1.2B``; below a billion in millions."""
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"


def look_at_extras() -> list[Finding]:
    """Check which optional parts are installed."""
    findings = []
    for extra, modules in EXTRAS.items():
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        state: State = "missing" if absent else "ok"
        line = f"not installed ({', '.join(absent)})" if absent else "installed"
        advice = f"pip install 'recovery[{extra}]'" if absent else ""
        findings.append(Finding(f"extra {extra}", state, line, advice, {"installed": not absent}))
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    line = browser or "not found; only the browser tests need it"
    return [*findings, Finding("chromium", "ok" if browser else "missing", line, facts={"path": browser})]


def look_at_sentence_data() -> Finding:
    """Check nltk's sentence data, which two of IFEval's checkers need."""
    try:
        from recovery.data.checkers import prepare
    except ImportError as error:
        return Finding("nltk data", "failed", f"cannot be inspected: {error}", "reinstall Recovery")
    data = prepare()
    facts = {"path": data.path, "real": data.real}
    if data.real:
        return Finding("nltk data", "ok", data.path, facts=facts)
    advice = "for verdicts identical to other implementations: python -m nltk.downloader punkt_tab"
    return Finding("nltk data", "note", f"a built-in substitute at {data.path}", advice, facts)


def look_at_miniature() -> Finding:
    """Check that the built-in model's weights are installed."""
    import recovery

    weights = Path(recovery.__file__).parent / "miniature" / "weights" / "model.safetensors"
    facts = {"path": str(weights.parent)}
    if weights.is_file():
        return Finding("miniature", "ok", f"{weights.stat().st_size / 1e6:.1f} MB of weights", facts=facts)
    return Finding("miniature", "failed", f"no weights at {weights}", "build them: recover miniature build", facts)


def look_at_workspace(workspace: Path) -> Finding:
    """Check that the workspace is writable, and whether it exists."""
    facts, parent = {"path": str(workspace.resolve()), "exists": workspace.exists()}, existing_parent(workspace)
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        line, advice = f"{workspace} cannot be written", "choose another with --workspace"
        return Finding("workspace", "failed", line, advice, facts)
    line = f"{workspace} ({'exists' if workspace.exists() else 'does not exist yet'})"
    return Finding("workspace", "ok", line, facts=facts)


def look_at_tracker(workspace: Workspace) -> list[Finding]:
    """Check that the tracker of the workspace can be read: the one given, or its own if it has one by now."""
    from db import DatabaseError, MissingDatabaseError
    from pipelines.runtime.registry import open_tracker, tracker_address
    from recovery.errors import UsageError

    if workspace.tracker is None and not (workspace.exists or Path(workspace.database).exists()):
        return []
    try:
        address = tracker_address(workspace)
        open_tracker(workspace).close()
    except MissingDatabaseError:  # of a file that the first stage makes
        return [Finding("tracker", "ok", f"{address} (does not exist yet)", facts={"address": address})]
    except (DatabaseError, UsageError) as error:
        advice = "" if workspace.tracker is None else "correct --database or RECOVER_DATABASE, or omit it"
        return [Finding("tracker", "failed", str(error), advice)]
    return [Finding("tracker", "ok", address, facts={"address": address})]


def existing_parent(path: Path) -> Path:
    """Return ``path`` or its nearest parent that exists."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path
