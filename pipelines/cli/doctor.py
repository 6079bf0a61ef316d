"""`recover doctor`: checks of the installation, the machine and the workspace."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from pipelines.cli import common
from recovery.errors import UsageError
from recovery.workspace import Workspace

GIB = 1024**3
# The modules that each extra of pyproject.toml brings.
EXTRAS = {
    "vllm": ("vllm",),
    "docs": ("pypdfium2", "pypdf"),
    "gguf": ("gguf",),
    "llama": ("gguf", "xllamacpp", "cyllama"),
    "quantized": ("bitsandbytes",),
    "postgres": ("psycopg",),
    "inspect": ("inspect_ai",),
    **{name: (name,) for name in ("wandb", "mlflow", "trackio", "swanlab")},
}
REINSTALL = "reinstall: pip install --no-deps -r requirements/lock.txt"
SIGNS = {"ok": "+", "note": "i", "failed": "!"}


@dataclass(frozen=True)
class Finding:
    """The result of one check: a line of text, the values behind it, and advice.

    ``state``: "ok"; "note", worth reading; "failed", a required part is broken.
    """

    name: str
    state: Literal["ok", "note", "failed"]
    line: str
    advice: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@click.command()
@common.workspace
@common.as_json
def command(workspace: Workspace, as_json: bool) -> None:
    """Check what this machine can run.

    Inspects the installation, cores, memory, disk, GPUs, the optional parts, the workspace and its tracker. Trains
    nothing and uses no network, except for a tracker on a server. Exits with status 1 if a required part is broken.
    """
    findings = [
        look_at_versions(),
        look_at_extras(),
        look_at_sentence_data(),
        look_at_machine(workspace.folder),
        look_at_device(),
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


def look_at_versions() -> Finding:
    """Check the versions of Python and of the main packages, and say where our own are imported from."""
    from recovery._package_guard import OWN_PACKAGES, ROOT

    versions: dict[str, str] = {"python": platform.python_version()}
    for name in ("recovery", "torch", "transformers", "peft", "lm-eval", "gradio", "sqlalchemy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "missing"
    broken = "missing" in [version for name, version in versions.items() if name != "recovery"]
    line = f"{', '.join(f'{name} {version}' for name, version in versions.items())}; imported from {ROOT}"
    origins = {name: getattr(importlib.util.find_spec(name), "origin", "") for name in OWN_PACKAGES}
    facts = {**versions, "packages": {name: str(Path(origin).parent) for name, origin in origins.items()}}
    return Finding("versions", "failed" if broken else "ok", line, REINSTALL if broken else "", facts)


def look_at_extras() -> Finding:
    """Say which optional parts are installed."""
    facts = {name: all(map(importlib.util.find_spec, modules)) for name, modules in EXTRAS.items()}
    installed = ", ".join(name for name, here in facts.items() if here) or "none"
    missing = ", ".join(name for name, here in facts.items() if not here) or "none"
    advice = "" if missing == "none" else "to add one: pip install 'recovery[NAME]'"
    return Finding("extras", "ok", f"installed: {installed}; not installed: {missing}", advice, facts)


def look_at_sentence_data() -> Finding:
    """Check nltk's sentence data, which two of IFEval's checkers need."""
    try:
        from recovery.data.checkers import prepare
    except ImportError as error:
        return Finding("nltk data", "failed", f"cannot be inspected: {error}", REINSTALL)
    data = prepare()
    facts = {"path": data.path, "real": data.real}
    if data.real:
        return Finding("nltk data", "ok", data.path, facts=facts)
    advice = "for verdicts identical to other implementations: python -m nltk.downloader punkt_tab"
    return Finding("nltk data", "note", f"a built-in substitute at {data.path}", advice, facts)


def look_at_machine(folder: Path) -> Finding:
    """Measure the cores, memory and disk that this process may use, within a container's limits."""
    from recovery.limits import machine_memory

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load, memory, disk = os.getloadavg()[0], machine_memory(), shutil.disk_usage(common.nearest(folder)).free
    facts = {
        "system": platform.platform(),
        "cores": cores,
        "load": round(load, 2),
        "memory_bytes": memory,
        "disk_free_bytes": disk,
    }
    advice = ["checkpoints need room: choose another --workspace"] if disk < 2 * GIB else []
    if cores > 1 and load > 0.5 * cores and os.environ.get("OMP_NUM_THREADS") != "1":
        advice.append("other work is running: OMP_NUM_THREADS=1 is several times faster now")
    line = f"{cores} cores, load {load:.1f}, {memory / GIB:.0f} GiB of memory, {disk / GIB:.0f} GiB of disk free"
    return Finding("machine", "note" if advice else "ok", line, "; ".join(advice), facts)


def look_at_device() -> Finding:
    """Check torch's device and precision, and whether the losses' kernel runs on a GPU."""
    try:
        import torch

        from recovery.losses import kernels
        from recovery.models.hardware import pick_device, pick_precision
    except (ImportError, OSError) as error:
        return Finding("device", "failed", f"torch cannot be imported: {error}", REINSTALL)
    device = pick_device("auto")
    precision = str(pick_precision("auto", device)).removeprefix("torch.")
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    gpus = [f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB" for gpu in found]
    line = f"{'; '.join(gpus) or 'no GPU'}; auto precision on {device.type} is {precision}"
    facts = {"device": str(device), "precision": precision, "gpus": gpus}
    if device.type != "cuda" or kernels.available(device):
        return Finding("device", "ok", line, facts=facts)
    line += "; the kernel of the KL and JSD losses does not run: they take three times as long"
    return Finding("device", "note", line, "install a C compiler (Debian: gcc), which Triton needs", facts)


def look_at_workspace(folder: Path) -> Finding:
    """Check that the workspace can be written, and whether it exists."""
    facts = {"path": str(folder.resolve()), "exists": folder.exists()}
    if (obstacle := common.unwritable(folder)) is not None:
        line, advice = f"{folder} cannot be written below {obstacle}", "choose another with --workspace"
        return Finding("workspace", "failed", line, advice, facts)
    line = f"{folder} ({'exists' if folder.exists() else 'does not exist yet'})"
    return Finding("workspace", "ok", line, facts=facts)


def look_at_tracker(workspace: Workspace) -> list[Finding]:
    """Check that the workspace's tracker can be read and written: the one given, or its own if it has one by now."""
    from db import DatabaseError, MissingDatabaseError, open_database
    from pipelines.runtime.registry import open_tracker, tracker_address

    if workspace.tracker is None and not (workspace.exists or Path(workspace.database).exists()):
        return []
    try:
        address = tracker_address(workspace)
        open_tracker(workspace).close()
        with closing(open_database(workspace.database)) as database:
            database.require_writable()
    except MissingDatabaseError:  # of a file that the first stage makes
        return [Finding("tracker", "ok", f"{address} (does not exist yet)", facts={"address": address})]
    except (DatabaseError, UsageError) as error:
        advice = "" if workspace.tracker is None else "correct --database or RECOVER_DATABASE, or omit it"
        return [Finding("tracker", "failed", str(error), advice)]
    return [Finding("tracker", "ok", address, facts={"address": address})]
