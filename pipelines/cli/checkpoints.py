"""Commands on checkpoints: `recover checkpoints` lists them, `prune` deletes their weights, `export` copies one,
`interpolate` mixes two."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import options_of
from recovery.config import InterpolateConfig, Recipe, build
from recovery.errors import UsageError
from recovery.workspace import Workspace


@click.command()
@common.workspace
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("all",),
    metavar="NAME",
    help="What to prune: rejected, midtrained (of accepted cycles), replaced, states, interrupted; all; repeatable.  "
    "[default: all]",
)
@click.option("--yes", is_flag=True, help="Delete; without this flag the command only lists what it would delete.")
@common.as_json
def prune(workspace: Workspace, policies: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete weights that are no longer needed.

    Without --yes it only lists what it would delete.

    Keeps the clean model, the latest checkpoint, the end of an accepted cycle, all checkpoints of a cycle without a
    decision, and what unfinished work refers to. Scores, responses and decisions stay.
    """
    from pipelines.prune import plan_prune, prune
    from pipelines.runtime.registry import existing

    existing(workspace)
    with stage_options.at_work(workspace, "recover prune", exclusive=yes) as session:
        removals = plan_prune(session, policies)
        total = sum(removal.bytes for removal in removals)
        freed = prune(session, removals) if yes else 0
    rows = [{"name": r.name, "bytes": r.bytes, "policy": r.policy, "path": str(r.path)} for r in removals]
    lines = [f"{_size(r.bytes):>10}  {r.name}: {r.why}" for r in removals]
    would = f"{_size(total)} would be freed" + ("; add --yes" if total else "")
    lines.append(f"{_size(freed)} freed" if yes else would)
    common.emit({"removals": rows, "bytes": total, "freed": freed}, as_json, "\n".join(lines))


def _size(count: int) -> str:
    """Format a number of bytes."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"
        size /= 1024
    return f"{size:.1f} GiB"


# `recover checkpoints`: the list of checkpoints and their origins.


@click.command()
@common.workspace
@common.as_json
def checkpoints(workspace: Workspace, as_json: bool) -> None:
    """List the checkpoints and where they came from."""
    from pipelines.runtime.registry import reading

    with reading(workspace) as registry:
        registered, latest = registry.all(), registry.latest()
    rows = [
        stage_options.checkpoint_json(c) | {"latest": latest is not None and c.name == latest.name} for c in registered
    ]

    def text() -> str:
        lines = [
            f"{'*' if row['latest'] else ' '} {row['name']:24} {row['kind']:11} {row['tuning']:5} {row['hash'][:12]}  "
            f"from {row['parent'] or row['origin'] or '-':24} {row['path']}"
            for row in rows
        ]
        return "\n".join([*lines, "* latest"])

    common.emit(rows, as_json, text)


# `recover export`: a checkpoint as a plain Hugging Face folder, or as a GGUF file.


@click.command()
# One argument for both: click gives a single one to the first of two.
@click.argument("names", nargs=-1, required=True, metavar="[CHECKPOINT] FOLDER|FILE.gguf")
@common.workspace
@click.option("--merge", is_flag=True, help="Merge a LoRA adapter into the weights, so that the base is not needed.")
@click.option(
    "--type",
    "kind",
    type=click.Choice(("f16", "q8_0", "bf16", "f32", "q4_k_m", "q5_k_m", "q6_k"), case_sensitive=False),
    help="Type of the matrices in a GGUF file: 16 bits, 8 bits in blocks, 32 bits, or llama.cpp's mixes of 4 to 6 bits "
    "(extra llama).  [default: f16]",
)
@common.as_json
def export(names: tuple[str, ...], workspace: Workspace, merge: bool, kind: str | None, as_json: bool) -> None:
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
    with stage_options.at_work(workspace, "recover export", exclusive=False, reads=True) as session:
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


@click.command(cls=common.ShortHelp, common="student origin alphas model workspace recipe prompts engine as_json")
@options_of(InterpolateConfig, "student", "origin", "alphas", "keep", "development", "questions")
@common.own_model
@common.workspace
@common.report_to()
@common.recipe
@stage_options.prompts
@stage_options.max_new_tokens
@stage_options.model_options
@stage_options.seed
@common.as_json
@click.pass_context
def interpolate(
    context: click.Context,
    /,
    workspace: Workspace,
    model: str | None,
    recipe: Recipe,
    as_json: bool,
    **_: object,
) -> None:
    """Mix the weights of two checkpoints, in place of a recovery.

    The cheapest trade-off between new knowledge and lost behaviour: nothing is trained, one number is chosen on
    development prompts. The result is this cycle's `recovered` checkpoint, like that of `recover distill`.
    """
    from pipelines.cycle_plan import check_no_plan

    flags = common.given(context)
    wanted = build(InterpolateConfig, flags, recipe)  # wrong flags are reported before anything is opened
    stage_options.check_clean_model(workspace, model, wanted.student, wanted.origin)
    with (
        stage_options.at_work(workspace, "recover interpolate", model=model) as session,
        stage_options.configured(session, InterpolateConfig, flags, recipe) as config,
    ):
        # a wrong name is reported before torch is imported
        session.check_names(config.student, None if config.origin == "start" else config.origin)
        check_no_plan(session)
        from pipelines.interpolate import interpolate

        made = interpolate(session, config)
    common.emit({"checkpoint": stage_options.checkpoint_json(made)}, as_json, f"made {made.name}: {made.path}")
