"""Shared parts of the commands that run stages: options, opening a workspace, interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipelines.cli import common
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.runtime.session import Session

INTERRUPTED = 130

Function = TypeVar("Function", bound=Callable[..., Any])


def several(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Combine several options into one decorator, in the order of the help."""

    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


model_options = several(
    common.precision,
    common.device,
    common.template,
    common.token_budget,
    click.option(
        "--rollout-tokens",
        type=click.IntRange(min=16),
        default=None,
        help="Tokens of prompts and completions held at once while sampling.",
    ),
    click.option(
        "--engine",
        default=None,
        metavar="NAME",
        help="Sampling engine: transformers, vllm (in this process), or the address of a server (docs/engines.md).  "
        "[default: transformers]",
    ),
    click.option(
        "--engine-memory",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        help="GiB for vLLM's cache of keys and values.  [default: what --rollout-tokens need, at most 40% of free "
        "memory]",
    ),
    click.option(
        "--engine-sleep/--no-engine-sleep",
        default=None,
        help="Release vLLM's memory while the student trains (GPUs).",
    ),
    click.option(
        "--engine-drift",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        help="Maximum difference of engine's and model's log-probabilities, in nats per token; above it a run stops.",
    ),
    click.option(
        "--engine-folder",
        type=click.Path(file_okay=False, path_type=Path),
        default=None,
        metavar="FOLDER",
        help="Folder from which a server reads updated weights.  [default: a temporary folder]",
    ),
    click.option(
        "--server-wait",
        type=click.FloatRange(min=0),
        default=None,
        help="Seconds that a server may be unreachable before a run stops.  [default: 600]",
    ),
    click.option(
        "--server-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        help="Timeout of one request to a server, in seconds.  [default: 600]",
    ),
)
tuning_options = several(
    common.tuning,
    click.option("--lora-rank", type=click.IntRange(min=1), default=None, help="Rank of a new LoRA adapter."),
    click.option("--lora-alpha", type=click.IntRange(min=1), default=None, help="Scale of a new LoRA adapter."),
    common.gradient_checkpointing,
    click.option(
        "--compile/--no-compile",
        default=None,
        help="Compile the layers with torch: faster steps after a minute or two; on a CPU it needs a C++ compiler.",
    ),
    click.option(
        "--shard",
        type=click.Choice(["none", "full"]),
        default=None,
        help="With several processes, each holds the whole student, or a shard of it (FSDP2).  [default: none]",
    ),
    click.option("--offload/--no-offload", default=None, help="Keep the shards in CPU memory."),
    click.option(
        "--optimizer", type=click.Choice(["adamw", "muon"]), default=None, help="AdamW, or Muon for the matrices."
    ),
    common.checkpoint_every,
)


class PromptSource(click.ParamType):
    """An existing file or folder, or one of the composer's sources, named as in recovery.data.prompts."""

    name = "path"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        """Return the path, or the source's name as a path. Fails like click.Path if the file does not exist."""
        if str(value) == "composer" or str(value).startswith("composer:"):
            return Path(value)
        return Path(click.Path(exists=True, path_type=Path).convert(value, parameter, context))


augmentation = several(
    click.option(
        "--augment",
        type=click.IntRange(min=0),
        default=None,
        help="Paraphrases of each fact of the documents to train on in addition, e.g. 4; 0: none.",
    ),
    click.option(
        "--augment-share",
        type=click.FloatRange(0, 0.95),
        default=None,
        help="Share of this cycle's document tokens that are augmented text.",
    ),
    click.option(
        "--augment-questions",
        type=click.FloatRange(0, 0.95),
        default=None,
        help="Share of the augmented text that is questions with answers: those provided with the documents, and "
        "generated ones about facts that no probe asks for.",
    ),
    click.option(
        "--writer",
        default=None,
        metavar="NAME",
        help="A checkpoint or the address of a chat server that rewrites passages for --augment; sentences that a "
        "passage does not support are dropped, but their tokens are counted.",
    ),
)
prompts = click.option(
    "--prompts",
    type=PromptSource(),
    default=None,
    help="Behaviour prompts of your own: a JSONL file, or a folder of train/development/test.jsonl; or the built-in "
    "'composer', or 'composer:chat', which has no verifiable instructions.",
)
max_new_tokens = click.option(
    "--max-new-tokens", type=click.IntRange(min=1), default=None, help="Maximum tokens of a completion."
)


def _read_tasks(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """``("a,b", "c=./d.jsonl")`` -> ``("a", "b", "c=./d.jsonl")``; a file's name may hold a comma."""
    whole = [[value] if "=" in value or Path(value).exists() else value.split(",") for value in values]
    return tuple(name.strip() for names in whole for name in names if name.strip())


suites = several(
    click.option(
        "--behaviour",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        metavar="FILE",
        help="A suite of your own: prompts with checks, a reference answer or the tag 'refusal'; may be repeated.",
    ),
    click.option(
        "--task",
        "--tasks",
        "tasks",
        multiple=True,
        metavar="NAME[=PATH]",
        callback=_read_tasks,
        help="Also run an lm-eval task: its name or YAML file, =PATH for local data; comma-separated or repeated.",
    ),
)


@contextmanager
def at_work(
    workspace: Workspace, purpose: str, *, model: str | None = None, fallback: str | None = None, alone: bool = True
) -> Iterator[Session]:
    """Open a workspace and yield its session; ``alone`` locks it against other training stages.

    An interrupted stage ends the command with status 130 and one line that says how to resume.
    """
    from pipelines.runtime.session import Session
    from pipelines.runtime.signals import StageInterrupted

    try:
        with Session.open(workspace, model=model, fallback=fallback, purpose=purpose if alone else None) as session:
            yield session
    except StageInterrupted as stop:
        common.note(str(stop))
        raise click.exceptions.Exit(INTERRUPTED) from None


@contextmanager
def resumable() -> Iterator[None]:
    """Run a command that skips its finished parts: an interrupt ends it with status 130 and one line."""
    from pipelines.runtime.signals import StageInterrupted

    try:
        yield
    except StageInterrupted:
        common.note("interrupted: the same command resumes from here")
        raise click.exceptions.Exit(INTERRUPTED) from None


def write_page(path: Path | None, text: str) -> None:
    """Write a page of the documentation to ``path``, if one is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def checkpoint_json(checkpoint: Any) -> dict[str, Any]:
    """Return a checkpoint as the commands print it as JSON."""
    return {
        "name": checkpoint.name,
        "kind": checkpoint.kind,
        "hash": checkpoint.hash,
        "parent": checkpoint.parent,
        "path": str(checkpoint.path),
        "tuning": checkpoint.tuning,
        "origin": checkpoint.origin,
    }
