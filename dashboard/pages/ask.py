"""Ask page: responses of several checkpoints to one prompt, side by side; only with `recover dashboard --ask`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from dashboard import formatting, markup
from dashboard.ask_process import Asker, Reply
from dashboard.markup import esc
from dashboard.pages import common
from dashboard.tracker_source import Source
from db import DatabaseError, queries
from db.records import Checkpoint
from db.sample_comparison import asked_first

NAME = "Ask"
AT_MOST = 4
LONGEST = 8000
TOKENS, MOST_TOKENS = 256, 4096
LOOK_SECONDS = 0.5
_HEADING = markup.hero(
    "Models are loaded one after the other, in a separate process. Nothing is recorded.",
    "One prompt to several checkpoints",
)


def build(page: gr.Blocks, source: Source, asker: Asker) -> None:
    """Build the page."""
    header, _ = common.top(NAME, source)
    summary = gr.HTML(elem_id="content", elem_classes="summary")
    with gr.Column(elem_classes="card decide asking", visible=False) as form:
        prompt = gr.Textbox(label="Prompt (Enter sends it, Shift+Enter starts a new line)", max_length=LONGEST)
        names = gr.CheckboxGroup(label=f"Checkpoints, at most {AT_MOST}")
        with gr.Row(elem_classes="buttons"):
            tokens = gr.Number(label="Maximum tokens per answer", value=TOKENS, precision=0, min_width=180)
            button = gr.Button("Ask", variant="primary", min_width=110)
    result = gr.HTML(elem_classes="evidence")

    def show() -> list[Any]:
        return _show(source)

    def ask(text: str, chosen: list[str], count: int | None) -> Iterator[str]:
        yield from _ask(source, asker, text, chosen, count)

    page.load(show, outputs=[header, summary, form, names], **common.QUIET)
    # One request at a time per page; concurrent users are refused with a message, not queued.
    gr.on([button.click, prompt.submit], ask, [prompt, names, tokens], result, concurrency_limit=8, **common.QUIET)


def _show(source: Source) -> list[Any]:
    checkpoints, missing = _offered(source)
    if missing:
        return [gr.skip(), missing, gr.update(visible=False), gr.skip()]
    chosen = [one.name for one in asked_first(checkpoints)]
    return [
        markup.header(NAME, source.own, asking=True),
        _HEADING,
        gr.update(visible=True),
        gr.update(choices=[one.name for one in checkpoints], value=chosen),
    ]


def _offered(source: Source) -> tuple[list[Checkpoint], str]:
    """Return the checkpoints of the workspace's own experiment that have weights, oldest first, and a notice if there
    is none to ask.
    """
    try:
        experiment = queries.experiment(source.database(), source.own)
        known = queries.checkpoints(source.database(), experiment.id) if experiment is not None else []
    except DatabaseError as error:
        return [], common.trouble(source, error)
    checkpoints = [one for one in known if one.has_weights]
    missing = ""
    if source.workspace() is None:
        text = f"Models are stored in a workspace; {source.shown} does not belong to one. In a workspace, use:"
        missing = markup.notice("No workspace for this database", text, ["recover ask 'Write two words.'"])
    elif not checkpoints:
        text = "The workspace has none, or all were pruned. Create one with:"
        missing = markup.notice("No checkpoint with weights", text, ["recover midtrain --docs ./my-documents"])
    return checkpoints, missing


def _ask(source: Source, asker: Asker, prompt: str, chosen: Sequence[str], tokens: int | None) -> Iterator[str]:
    """Yield progress while a prompt is running, then the answers or an error."""
    checkpoints, missing = _offered(source)
    workspace = source.workspace()
    if missing or workspace is None:
        yield missing
        return
    names = [one.name for one in checkpoints if one.name in chosen]  # columns are in the order of creation
    problem = _invalid(prompt, names, tokens)
    if problem:
        yield markup.notice("Not sent", problem, tone="warn")
        return
    asking = asker.begin(workspace, names, prompt.strip(), int(tokens or TOKENS), source.environment())
    if asking is None:
        text = "Another prompt is being answered. Ask again when it is done."
        yield markup.notice("One prompt at a time", text, tone="warn")
        return
    try:
        while not asking.wait(LOOK_SECONDS):
            yield markup.progress(0, None, f"{asking.last_line}, {asking.elapsed:.0f} s")
    finally:
        asking.stop()  # the browser may have left the page
    if asking.problem:
        yield markup.notice("No answer", asking.problem, tone="bad")
    else:
        yield _answers(prompt, asking.replies)


def _invalid(prompt: str, names: Sequence[str], tokens: int | None) -> str:
    """Return what is wrong with the input, or an empty text."""
    if not prompt.strip():
        return "Give a prompt."
    if len(prompt) > LONGEST:
        return f"The prompt has {len(prompt):,} characters; at most {LONGEST:,} are allowed."
    if not 1 <= len(names) <= AT_MOST:
        return f"Choose one to {AT_MOST} checkpoints."
    if tokens is None or not 1 <= tokens <= MOST_TOKENS:
        return f"Give a maximum of 1 to {MOST_TOKENS:,} tokens."
    return ""


def _answers(prompt: str, replies: Sequence[Reply]) -> str:
    """Return the prompt, and a column for each answer with its differences from the first."""
    columns = []
    for reply in replies:
        shown = formatting.answer(reply.answer, None if reply is replies[0] else replies[0].answer)
        cut = "" if reply.finished else " " + markup.chip("cut off", "warn")
        shown += f'<p class="eyebrow">{reply.tokens:,} tokens in {reply.seconds:.1f} s{cut}</p>'
        columns.append((reply.checkpoint, shown))
    return (
        '<article class="card sample" tabindex="0" aria-label="Answers">'
        f'<pre class="prompt">{esc(prompt)}</pre>{formatting.beside(columns)}</article>'
    )
