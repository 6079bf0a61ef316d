"""The page of an experiment, written from the records of its runs."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.data.question_splits import Question
from pipelines.experiments.page_cells import COUNTS, arm_names
from pipelines.experiments.page_kinds import kinds_table
from pipelines.experiments.page_releases import facts_by_release, stale_by_corpus
from pipelines.experiments.page_summary import in_short
from pipelines.experiments.page_tables import (
    about_beyond,
    arms_by_bounds,
    arms_table,
    beyond_table,
    bounds_table,
    clean_model,
    questions_by_corpus,
    questions_by_form,
    recognised_by_corpus,
    runs_table,
)
from pipelines.experiments.paired import against_base, rivals
from pipelines.experiments.records import CleanScores, Record
from recovery.arms import arms

# Runs on two releases of the same documents, and their questions.
Releases = tuple[Sequence[Record], Sequence[Question]]
_SHORT = (
    "**One cycle on a part of the documents, with few items in each suite.** It shows that the whole pipeline runs on "
    "a real model; its figures are too coarse for the bounds, which are shown for reference."
)
_CUT = (
    "**The pages of each corpus are dealt out to several pieces, with a cycle each**: the first piece of every corpus, "
    "then the second. A *corpus* is such a piece here."
)
_OWN_BASE = (
    "What is gained is gained over the same run's own base, and shares are of it. Base answers some prompts otherwise "
    "on another processor or with another release, whose products round differently, so runs differ by that as well. "
    "In bold: missed. An arm that ends with mid-training keeps all that it learnt by definition, and has no values in "
    "the last two columns."
)
_FEW = (
    "How many questions about held-out facts of each corpus are answered, all seeds together, and how many different "
    "*facts* they are about: some are asked in several forms. With fewer than ten answered, a share of them decides "
    "nothing: one question more or less moves it by a tenth and more."
)
_BEYOND = (
    "Relative to base, of single instructions that none of four constant replies follows "
    "([list](../evals/beyond_constant.py)): {of}. In brackets: the paired 95% interval about the prompts, given the "
    "seeds. The other tables count every instruction, also those that a reply which follows nothing keeps."
)
_PIECES = (
    "No other section uses these runs. The measures are those of the [table above](#every-arm-by-the-same-bounds), "
    "missed in bold; the counts those of the [next section](#{counts}). A cycle trains on less text and asks fewer "
    "questions than one of a whole corpus: these figures do not repeat those, and one question moves them further."
)
IN_PIECES = "corpora-in-pieces-more-cycles"  # its anchor
_TERMS = (
    "*Arm*: a complete configuration of a cycle ([list](methods.md#arms-recovery-and-its-baselines)).",
    "*Two teachers*: the clean model scores ordinary prompts, the mid-trained one questions about the documents.",
    "*Must, goal*: bounds that were written down before the first run.",
    "*Relative to base*: divided by the clean model's score.",
    "*Own prompts*: test prompts of the generator that also writes the recovery's training prompts: no prompt of them "
    "is trained on; their topics and nearly all their combinations of instructions are.",
    "*Instructions, prompts*: single instructions that are followed; prompts with all of theirs followed, which is "
    "what the gate's rule `ifeval` counts.",
    "*Ended*: the response ends by itself within the limit.",
    "*Asked*: the response contains an accepted answer. A *held-out fact* is asked in no training question, a "
    "*held-out form* is a trained fact asked in another form (figures of both count questions, of which several may "
    "ask one fact), a *control question* asks for a fact that is on no page.",
    "*Stored*: the right word is the most probable one in a gap of the text.",
)
_RECOGNISED = (
    "The right answer is preferred among up to eight, right ones to other questions about the corpus, by its "
    "likelihood as the response: what is known and may not be said. Arms that are not listed did not measure it."
)
_STALE = (
    "Of the questions about an older release of a document whose answer is another one in the newer release, the share "
    "answered as the older one had it: less is better. Before a checkpoint has read the newer release, these are "
    "questions of `domain_knowledge`, and not counted here."
)
_RELEASES = (
    "The second cycle brings a newer release of the first one's pages ({about}; "
    "[questions](../examples/npm/README.md)), and contradicts them in places. No other section uses these runs."
)
_FATES = (
    "Test questions about facts that both releases have: trained facts in another form, and held-out ones. After the "
    "newer release a changed fact is asked as before, and what the older release had is no right answer."
)
_OWN_CORPUS = "Knowledge in this table is about the cycle's own corpus: the newer release after the second cycle."
_KINDS = (
    "Two arms whose recovery prompts leave out half of the families of instructions each, from the same mid-trained "
    "model: what one leaves out, the other asks for. Single instructions, strict, by their own kind; prompts that ask "
    "for kinds of both halves count in both. In brackets: relative to base."
)
_COSTS = (
    "Hours are those of the stage alone, without evaluations, on different machines and sometimes beside other work: "
    "compare tokens."
)


def page(
    records: Sequence[Record],
    main: str,
    command: str,
    questions: Sequence[Question] = (),
    clean: Sequence[CleanScores] = (),
    notes: Sequence[str] = (),
    pieces: Sequence[Record] = (),
    releases: Releases | None = None,
) -> str:
    """Return the page; ``main`` is the arm that is compared with the bounds.

    With the ``questions`` of the records, those about held-out facts are counted by form as well; ``clean`` are other
    measurements of the clean model, and ``notes`` say what the records do not. Records of short runs, of whole ones,
    and of those cut into pieces are never mixed; beside whole ones, ``pieces`` have a section of their own, and so have
    ``releases``, runs on two releases of other documents.
    """
    short = any(record.short for record in records)
    mine = [record for record in records if record.arm == main]
    parts = [
        "# A real instruct model and real documents",
        "",
        _written(command, records, pieces),
        "",
        *([_SHORT, ""] if short else []),
        *([_CUT, ""] if any(record.cut > 1 for record in records) else []),
        *in_short(records, main, notes),
        "## Terms",
        "",
        *(f"- {term}" for term in _TERMS),
        "",
        "## Runs",
        "",
        *runs_table(records),
        *_not_run(records),
    ]
    if mine:
        parts += [
            "",
            "## Against the bounds",
            "",
            f"Arm `{main}`.",
            "",
            *bounds_table(mine),
            *clean_model(mine[0], clean),
        ]
    parts += ["", "## Every arm, by the same bounds", "", _OWN_BASE, "", *arms_by_bounds(records)]
    if beyond := beyond_table(records):
        parts += [
            "",
            "## Instructions beyond constant replies",
            "",
            _BEYOND.format(of=about_beyond(records)),
            "",
            *beyond,
        ]
    parts += _in_pieces(pieces, questions)
    if counted := questions_by_corpus(records, questions):
        parts += ["", "## Questions about held-out facts, corpus by corpus", "", _FEW, "", *counted]
    if recognised := recognised_by_corpus(records):
        parts += ["", "## Recognised, of the same questions", "", _RECOGNISED, "", *recognised]
    if stale := stale_by_corpus(records):
        parts += ["", "## Answers of an older release", "", _STALE, "", *stale]
    parts += [] if releases is None else _of_releases(*releases)
    if kinds := kinds_table(records):
        parts += ["", "## Kinds of instruction that no prompt of the recovery asked for", "", _KINDS, "", *kinds]
    parts += ["", "## Every arm", "", _COSTS, "", *arms_table(records)]
    if forms := questions_by_form(records, questions):
        parts += ["", "## Questions about held-out facts after mid-training, by form of question", "", *forms]
    if others := rivals(mine, [record for record in records if record.arm != main]):
        parts += ["", "## Against the other arms, item by item", "", f"Of `{main}`.", "", *others]
    for record in mine[:1]:
        parts += ["", "## Paired tests", "", f"Of seed {record.seed}.", "", *against_base(record)]
        parts += ["", "## Ten prompts, answered", "", f"Of seed {record.seed}.", "", *_shown(record)]
    return "\n".join([*parts, ""])


def _written(command: str, records: Sequence[Record], pieces: Sequence[Record]) -> str:
    every = [*records, *pieces]
    runs = f"{len(every)} recorded run{'s' * (len(every) > 1)}"
    apart = f", {len(pieces)} of them on [corpora in pieces](#{IN_PIECES})" if pieces else ""
    return f"Written by `{command}` from {runs}{apart}, the newest of {max(record.date for record in every)}."


def _not_run(records: Sequence[Record]) -> list[str]:
    missing = [name for name in arms() if name not in arm_names(records)]
    return ["", f"Not run: {', '.join(missing)}."] if missing else []


def _in_pieces(records: Sequence[Record], questions: Sequence[Question]) -> list[str]:
    """Return the section about corpora in pieces: of each arm and cut the cycles that were run, bounds and counts."""
    if not records:
        return []
    parts = ["", "## Corpora in pieces: more cycles", "", _CUT, "", _PIECES.format(counts=COUNTS)]
    for arm, cut in dict.fromkeys((record.arm, record.cut) for record in records):
        mine = [record for record in records if (record.arm, record.cut) == (arm, cut)]
        parts += ["", f"### `{arm}`, each corpus in {cut} pieces", "", " ".join(map(_how_far, mine))]
        parts += ["", *arms_by_bounds(mine)]
        if counted := questions_by_corpus(mine, questions):
            parts += ["", *counted]
    return parts


def _of_releases(records: Sequence[Record], questions: Sequence[Question]) -> list[str]:
    """Return the section about two releases of the same pages."""
    if not records:
        return []
    about = records[0].documents
    parts = ["", "## Two releases of the same pages", "", _RELEASES.format(about=about), "", *runs_table(records)]
    parts += ["", _FATES, "", *facts_by_release(records, questions), "", _STALE, "", *stale_by_corpus(records)]
    return [*parts, "", _OWN_CORPUS, "", *arms_table(records)]


def _how_far(record: Record) -> str:
    """Return how many of its cycles a run has, when and where; said in words if it is not all of them."""
    text = f"Seed {record.seed}: {record.cycles} of {record.wanted} cycles were run"
    where = f"({record.date}; {record.machine.removeprefix('Machine: ').rstrip('.')})."
    if record.cycles >= record.wanted:
        return f"{text} {where}"
    return f"{text}, **fewer than planned** {where} Of the others nothing is known."


def _shown(record: Record) -> list[str]:
    """Show the checkpoints' responses as quoted text, so that nothing in them is read as markup."""
    lines = [
        "Every k-th of our own test prompts in the order of their ids, k such that there are ten; not hand-picked."
    ]
    for responses in record.answers:
        lines += ["", *_quoted("prompt", responses["prompt"])]
        for name in (key for key in responses if key != "prompt"):
            lines += ["", *_quoted(name, responses[name])]
        lines += ["", "---"]
    return lines


def _quoted(name: str, text: str) -> list[str]:
    shown = text.strip() or "(nothing)"
    return [f"**{name}**", "", *(f"    {line}" for line in shown.splitlines())]
