"""What the commands that run stages share: their options, how they open a workspace, how they stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recovery.cli import options
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.session import Session

INTERRUPTED = 130

Function = TypeVar("Function", bound=Callable[..., Any])


def several(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Several options as one decorator, in the order of the help."""

    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


model_options = several(
    options.precision,
    options.device,
    options.template,
    options.token_budget,
    click.option(
        "--rollout-tokens",
        type=click.IntRange(min=16),
        default=None,
        help="Tokens of prompts and answers held at once while sampling.",
    ),
    click.option(
        "--engine",
        default=None,
        metavar="NAME",
        help="What samples answers: transformers, vllm (in this process), or the address of a vLLM server.  "
        "[default: transformers]",
    ),
    click.option(
        "--engine-memory",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        help="GiB for vLLM's cache of keys and values.  [default: what --rollout-tokens take, at most 40% of what is "
        "free]",
    ),
    click.option(
        "--engine-sleep/--no-engine-sleep",
        default=None,
        help="Have vLLM give its memory back while the student trains (GPUs).",
    ),
    click.option(
        "--engine-drift",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        help="By how much log-probabilities of engine and model may differ, in nats a token: beyond it a run stops.",
    ),
    click.option(
        "--engine-folder",
        type=click.Path(file_okay=False, path_type=Path),
        default=None,
        metavar="FOLDER",
        help="Where weights are put for a server to read.  [default: a temporary folder]",
    ),
    click.option(
        "--server-wait",
        type=click.FloatRange(min=0),
        default=None,
        help="Seconds that a server may be gone before a run stops.  [default: 600]",
    ),
    click.option(
        "--server-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        help="Seconds that one request to a server may take.  [default: 600]",
    ),
)
tuning_options = several(
    options.tuning,
    click.option("--lora-rank", type=click.IntRange(min=1), default=None, help="Rank of a new LoRA adapter."),
    click.option("--lora-alpha", type=click.IntRange(min=1), default=None, help="Scale of a new LoRA adapter."),
    options.gradient_checkpointing,
    click.option(
        "--compile/--no-compile",
        default=None,
        help="Have torch compile the layers: faster steps after a minute or two; on a CPU it needs a C++ compiler.",
    ),
    click.option(
        "--shard",
        type=click.Choice(["none", "full"]),
        default=None,
        help="Of several processes, each holds the whole student, or its piece of it (FSDP2).  [default: none]",
    ),
    click.option("--offload/--no-offload", default=None, help="Keep these pieces in the CPU's memory."),
    click.option(
        "--optimizer", type=click.Choice(["adamw", "muon"]), default=None, help="AdamW, or Muon for the matrices."
    ),
    options.checkpoint_every,
)


class PromptSource(click.ParamType):
    """A file or a folder that exists, or one of the composer's own sources, named as in recovery.prompts."""

    name = "path"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        """The path, or the name as one. Fails like click's own where there is no such file."""
        if str(value) == "composer" or str(value).startswith("composer:"):
            return Path(value)
        return Path(click.Path(exists=True, path_type=Path).convert(value, parameter, context))


augmentation = several(
    click.option(
        "--augment",
        type=click.IntRange(min=0),
        default=None,
        help="Other wordings of each fact of the documents to train on beside them, e.g. 4; 0: none.",
    ),
    click.option(
        "--augment-share",
        type=click.FloatRange(0, 0.95),
        default=None,
        help="Share of this cycle's document tokens that such text takes.",
    ),
    click.option(
        "--augment-questions",
        type=click.FloatRange(0, 0.95),
        default=None,
        help="Share of that text that is questions with answers: those that came with the documents, and some about "
        "facts that no probe asks for.",
    ),
    click.option(
        "--writer",
        default=None,
        metavar="NAME",
        help="A checkpoint or the address of a chat server that rewrites passages for --augment; what they do not "
        "support is dropped, its tokens count.",
    ),
)
prompts = click.option(
    "--prompts",
    type=PromptSource(),
    default=None,
    help="Behaviour prompts of your own: a JSONL file, or a folder of train/development/test.jsonl; or the built-in "
    "'composer', or 'composer:chat', which holds no verifiable instruction.",
)
max_new_tokens = click.option(
    "--max-new-tokens", type=click.IntRange(min=1), default=None, help="Tokens an answer may take."
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
        help="An lm-eval task too: its name or yaml, =PATH to run it on local data; several by commas, or repeated.",
    ),
)


@contextmanager
def at_work(
    workspace: Workspace, purpose: str, *, model: str | None = None, fallback: str | None = None, alone: bool = True
) -> Iterator[Session]:
    """An open workspace, held against other training stages where ``alone``.

    A stage that was asked to stop ends the command with status 130 and one line that says how to go on.
    """
    from pipelines.interrupts import StageInterrupted
    from pipelines.session import Session

    try:
        with Session.open(workspace, model=model, fallback=fallback, purpose=purpose if alone else None) as session:
            yield session
    except StageInterrupted as stop:
        options.note(str(stop))
        raise click.exceptions.Exit(INTERRUPTED) from None


@contextmanager
def resumable() -> Iterator[None]:
    """Work of many runs, done ones skipped: asked to stop, it ends with status 130 and one line."""
    from pipelines.interrupts import StageInterrupted

    try:
        yield
    except StageInterrupted:
        options.note("interrupted: the same command goes on from here")
        raise click.exceptions.Exit(INTERRUPTED) from None


def write_page(path: Path | None, text: str) -> None:
    """Write a page of the documentation where one was asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def checkpoint_json(checkpoint: Any) -> dict[str, Any]:
    """A checkpoint as the commands print it."""
    return {
        "name": checkpoint.name,
        "kind": checkpoint.kind,
        "hash": checkpoint.hash,
        "parent": checkpoint.parent,
        "path": str(checkpoint.path),
        "tuning": checkpoint.tuning,
        "origin": checkpoint.origin,
    }
