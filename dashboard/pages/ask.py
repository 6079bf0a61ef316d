"""Ask: one prompt, the answers of several checkpoints side by side. There only with `recover dashboard --ask`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from dashboard import answers, markup
from dashboard.asking import Asker, Reply
from dashboard.markup import esc
from dashboard.pages import common
from dashboard.source import Source
from db import DatabaseError, queries
from db.answers import asked_first
from db.records import Checkpoint

NAME = "Ask"
AT_MOST = 4
LONGEST = 8000
TOKENS, MOST_TOKENS = 256, 4096
LOOK_SECONDS = 0.5
_HERO = (
    '<div class="hero"><p class="eyebrow">Models are loaded one after the other, in a process of their own. '
    "Nothing is recorded.</p><h1>One prompt to several checkpoints</h1></div>"
)


def build(page: gr.Blocks, source: Source, asker: Asker) -> None:
    """Lay the page out."""
    header, _ = common.top(NAME, source)
    summary = gr.HTML(elem_id="content", elem_classes="summary")
    with gr.Column(elem_classes="card decide asking", visible=False) as form:
        prompt = gr.Textbox(label="Prompt (Enter asks, Shift+Enter begins a new line)", max_length=LONGEST)
        names = gr.CheckboxGroup(label=f"Checkpoints, at most {AT_MOST}")
        with gr.Row(elem_classes="buttons"):
            tokens = gr.Number(label="Tokens an answer may take", value=TOKENS, precision=0, min_width=180)
            button = gr.Button("Ask", variant="primary", min_width=110)
    said = gr.HTML(elem_classes="evidence")
    settings: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

    def show() -> list[Any]:
        return _show(source)

    def ask(text: str, chosen: list[str], count: int | None) -> Iterator[str]:
        yield from _ask(source, asker, text, chosen, count)

    page.load(show, outputs=[header, summary, form, names], **settings)
    # One press at a time here; who asks elsewhere meanwhile has to be told, not queued.
    gr.on([button.click, prompt.submit], ask, [prompt, names, tokens], said, concurrency_limit=8, **settings)


def _show(source: Source) -> list[Any]:
    try:
        there = _there(source)
        missing = _missing(source, there)
    except DatabaseError as error:
        return [gr.skip(), common.trouble(source, error), gr.update(visible=False), gr.skip()]
    if missing:
        return [gr.skip(), missing, gr.update(visible=False), gr.skip()]
    chosen = [one.name for one in asked_first(there)]
    return [
        markup.header(NAME, source.own, asking=True),
        _HERO,
        gr.update(visible=True),
        gr.update(choices=[one.name for one in there], value=chosen),
    ]


def _there(source: Source) -> list[Checkpoint]:
    """The checkpoints of the workspace's own line of cycles that can be asked, oldest first."""
    experiment = queries.experiment(source.database(), source.own)
    if experiment is None:
        return []
    return [one for one in queries.checkpoints(source.database(), experiment.id) if one.has_weights]


def _missing(source: Source, there: Sequence[Checkpoint]) -> str:
    """Why nobody can be asked, if so."""
    if source.workspace() is None:
        text = f"A workspace keeps the models; {source.shown} is not the tracker of one. With one, a prompt is put by:"
        return markup.notice("No workspace beside the database", text, ["recover ask 'Write two words.'"])
    if not there:
        text = "The workspace has none, or all were pruned. A first one is there after:"
        return markup.notice("No checkpoint with weights", text, ["recover midtrain --docs ./my-documents"])
    return ""


def _ask(source: Source, asker: Asker, prompt: str, chosen: Sequence[str], tokens: int | None) -> Iterator[str]:
    """What to show while a prompt is answered, and what came of it."""
    try:
        there = _there(source)
        missing = _missing(source, there)
    except DatabaseError as error:
        yield common.trouble(source, error)
        return
    workspace = source.workspace()
    if missing or workspace is None:
        yield missing
        return
    names = [one.name for one in there if one.name in chosen]  # the columns' order is that in which they were made
    wrong = _wrong(prompt, names, tokens)
    if wrong:
        yield markup.notice("Not asked", wrong, tone="warn")
        return
    asking = asker.begin(workspace, names, prompt.strip(), int(tokens or TOKENS), source.environment())
    if asking is None:
        text = "Another prompt is being answered. Ask again when it is done."
        yield markup.notice("One prompt at a time", text, tone="warn")
        return
    try:
        while not asking.wait(LOOK_SECONDS):
            yield markup.progress(0, None, f"{asking.heard}, {asking.elapsed:.0f} s")
    finally:
        asking.stop()  # whoever asked may have gone
    yield (
        _answers(prompt, asking.replies)
        if not asking.problem
        else markup.notice("No answer", asking.problem, tone="bad")
    )


def _wrong(prompt: str, names: Sequence[str], tokens: int | None) -> str:
    """What is to be put right first."""
    if not prompt.strip():
        return "Give a prompt."
    if len(prompt) > LONGEST:
        return f"The prompt has {len(prompt):,} characters; at most {LONGEST:,} are taken here."
    if not 1 <= len(names) <= AT_MOST:
        return f"Choose one to {AT_MOST} checkpoints."
    if tokens is None or not 1 <= tokens <= MOST_TOKENS:
        return f"An answer may take 1 to {MOST_TOKENS:,} tokens."
    return ""


def _answers(prompt: str, replies: Sequence[Reply]) -> str:
    """The prompt, and a column for each answer with its differences from the first."""
    columns = (
        (reply.checkpoint, answers.answer(reply.answer, replies[0].answer if at else None) + _measure(reply))
        for at, reply in enumerate(replies)
    )
    return (
        '<article class="card sample" tabindex="0" aria-label="Answers">'
        f'<pre class="prompt">{esc(prompt)}</pre>{answers.beside(columns)}</article>'
    )


def _measure(reply: Reply) -> str:
    cut = "" if reply.finished else " " + markup.chip("cut off", "warn")
    return f'<p class="eyebrow">{reply.tokens:,} tokens in {reply.seconds:.1f} s{cut}</p>'
