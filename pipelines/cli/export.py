"""`recover export`: a checkpoint as a plain Hugging Face folder, or as a GGUF file."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from recovery.errors import UsageError
from recovery.workspace import Workspace


@click.command()
# One argument for both: click gives a single one to the first of two.
@click.argument("names", nargs=-1, required=True, metavar="[CHECKPOINT] FOLDER|FILE.gguf")
@common.workspace
@click.option("--merge", is_flag=True, help="Merge a LoRA adapter into the weights, so that the base is not needed.")
@click.option(
    "--type",
    "kind",
    type=click.Choice(("f16", "q8_0", "bf16", "f32", "q4_k_m", "q5_k_m", "q6_k")),
    default=None,
    help="Type of the matrices in a GGUF file: 16 bits, 8 bits in blocks, 32 bits, or llama.cpp's mixes of 4 to 6 bits "
    "(extra llama).  [default: f16]",
)
@common.as_json
def command(names: tuple[str, ...], workspace: Workspace, merge: bool, kind: str | None, as_json: bool) -> None:
    """Write a checkpoint as an ordinary model folder, or as a GGUF file.

    CHECKPOINT is a name such as latest, the default, or cycle-2/recovered. FOLDER must be new or empty. FILE.gguf must
    be new; it is for llama.cpp and Ollama, with FILE.Modelfile beside it, and an adapter is always merged into it.
    """
    from pipelines.runtime.checkpoint_names import find
    from pipelines.runtime.registry import existing
    from recovery.models.gguf_files.header import SUFFIX

    if len(names) > 2 or not names[-1]:
        raise click.UsageError("name one checkpoint, or none for the latest, and the new folder or file to write it to")
    checkpoint, target = names[0] if len(names) == 2 else "latest", Path(names[-1]).expanduser()
    existing(workspace)
    file = target.suffix.lower() == SUFFIX
    if kind and not file:
        raise UsageError(f"--type is for GGUF files: name {target.name}{SUFFIX}, or omit --type")
    if target.is_file() or (target.is_dir() and (file or any(target.iterdir()))):
        what = "exists" if file or target.is_file() else "is not empty"
        raise UsageError(f"{target} {what}: name a new {'file' if file else 'folder'}")
    with stage_options.at_work(workspace, "recover export", alone=False, reads=True) as session:
        if len(names) == 1 and find(names[0], session.registry) is not None:
            raise UsageError(f"{names[0]} is a checkpoint: name also the new folder or file to write it to")
        session.check_names(checkpoint)  # a wrong name is reported before torch is imported
        from pipelines.export import export, export_gguf

        try:
            if file:
                written = export_gguf(session, checkpoint, target, kind or "f16")
            else:
                written = export(session, checkpoint, target, merge=merge)
        except OSError as error:
            raise UsageError(f"{target} cannot be written: {error}") from error
    common.emit(written, as_json, f"wrote {written['name']} ({written['kind']}) to {written['path']}")
