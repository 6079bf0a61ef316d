"""Rewriting of passages: filtering of unsupported sentences, and token counts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from evals.rewriting import WAYS, Rewriting, keep_supported, rewrite, shown, supported
from recovery.data.corpus.cloze import passages
from recovery.data.corpus.documents import Document
from recovery.data.corpus.sentences import sentences

TEXT = "The `dryDock` of Norddeich opened in 1987 and holds 14 vessels. A gate of 3.5 metres keeps the water out there."


def _passages():
    return passages(sentences([Document("d", "Docks", f"# Docks\n\n{TEXT}", "d")], alone=False), 10, 0)


@pytest.mark.parametrize(
    ("sentence", "kept"),
    [
        ("Since 1987 there has been a dryDock in Norddeich for 14 vessels.", True),
        ("The dock at Norddeich has room for 15 vessels.", False),
        ("The dock at Büsum has room for 14 vessels.", False),
        ("The wetDock of Norddeich has room for 14 vessels.", False),
        ("Water is kept out by a gate 3 metres high.", False),
        ("How many vessels does the dock at Norddeich hold?", False),
        ("Sure, the dock in Norddeich holds 14 vessels.", False),
        ("It holds 14 vessels in all, which is many.", False),
        ("A gate of 3.5 metres keeps the water out there.", False),
        ("The dock was opened in 1987 and", False),
    ],
)
def test_a_sentence_is_kept_where_the_passage_holds_its_numbers_names_and_terms(sentence: str, kept: bool) -> None:
    assert bool(supported([sentence], shown(_passages()[0]))) == kept


@pytest.mark.parametrize(
    ("sentence", "kept"),
    [
        ("Since `v16.4.0` the docs are served by a CDN.", True),
        ("Since release 16.4.0 the docs are served by a CDN.", True),
        ("Since release 16.4 the docs are served by a CDN.", False),
        ("Since `v16.5.0` the docs are served by a CDN.", False),
        ("The signal SIGUSR2 writes a snapshot of at most 5MB.", True),
        ("The signal SIGUSR1 writes a snapshot of at most 5MB.", False),
        ("The signal writes a snapshot of at most 2MB to disk.", False),
        ("The image `python3.12` or 16.0.0-canary.12 is enough for the docs.", True),
        ("The image `python3.13` or 16.0.0-canary.12 is enough for the docs.", False),
        ("The image `python3.12` or 16.0.0-canary.13 is enough for the docs.", False),
        ("The docs of \u044299 use a CDN for all of the pages.", False),
        ("The action `actions/cache@v4` keeps the docs of a build.", True),
        ("The action `actions/cache@v3` keeps the docs of a build.", False),
    ],
)
def test_numbers_with_letters_are_compared_whole(sentence: str, kept: bool) -> None:
    passage = (
        "The docs use a CDN from v16.4.0 on. SIGUSR2 writes a snapshot (5MB) for actions/cache@v4. Use python3.12, "
    )
    passage += "or 16.0.0-canary.12."
    assert bool(supported([sentence], passage)) == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            "- A folder is cached under `.next/cache/**/*`, or not.",
            "A folder is cached under `.next/cache/**/*`, or not.",
        ),
        ("The pattern '.next/cache/**/*' names a folder.", "The pattern '.next/cache/**/*' names a folder."),
        ("Use `**` for folders of any depth.", "Use `**` for folders of any depth."),
        (
            "A **cached folder** is kept between **`builds`** of one page.",
            "A cached folder is kept between `builds` of one page.",
        ),
        ("**Folders**' depth of a re**build** may be any.", "Folders' depth of a rebuild may be any."),
    ],
)
def test_marks_of_bold_text_go_and_patterns_of_paths_stay(text: str, kept: str) -> None:
    source = "Folders: `.next/cache/**/*`, `**` for any depth. A cached folder is kept from one to the next (`builds`)."
    done = keep_supported([(Rewriting("ci.md", "Caching", text), source, 0)])
    assert [one.text for one in done.kept] == [kept]


def test_what_leans_on_a_dropped_sentence_goes_with_it() -> None:
    good = "The dock in Norddeich was opened in 1987."
    bad = "The dock in Norddeich was opened in 1988."
    leaning = "It holds 14 vessels behind a gate."
    assert supported([good, leaning], shown(_passages()[0])) == [good, leaning]
    assert supported([bad, leaning, good], shown(_passages()[0])) == [good]


def test_every_passage_is_rewritten_in_so_many_ways_and_every_token_counted() -> None:
    prompts_seen: list[str] = []

    def say(prompts: Sequence[str]) -> list[tuple[str, int]]:
        prompts_seen.extend(prompts)
        return [("- **Norddeich** has had a dryDock since 1987.\n- It cost 12 million.\n", 20) for _ in prompts]

    made = rewrite(_passages(), 2, say)
    assert len(prompts_seen) == 2 * len(_passages()) and all(TEXT.split()[-1] in prompt for prompt in prompts_seen)
    assert (made.tokens, made.sentences, made.sentences_kept) == (40, 4, 2)
    assert {kept.text for kept in made.kept} == {"Norddeich has had a dryDock since 1987."}
    assert made.kept[0].place == "Docks" and len(WAYS) >= 2


def test_an_answer_may_be_short_copy_the_passage_and_take_its_subject_from_the_question() -> None:
    passage = "The ferry of Great Marle leaves at 7:15 on each day. Its address is /ferry?town=marle."
    right = ["At 7:15.", "It leaves Great Marle each day.", "The ferry of Great Marle leaves at 7:15 on each day."]
    right.append("The address has ?town= in it.")
    for sentence in right:
        assert supported([sentence], passage, answer=True) == [sentence]
        assert supported([sentence], passage) == []
    for wrong in ("At 8:15.", "It leaves Atlantis each day.", "Does it leave each day?"):
        assert supported([wrong], passage, answer=True) == []


def test_an_answer_is_kept_whole_or_not_at_all() -> None:
    passage = "The book was written by hand in a small town."
    whole = Rewriting("a.md", "A", "Yes. It was written by hand.", "Was it written by hand?")
    part = Rewriting("a.md", "A", "It is 1742 pages long. The book was written by hand.", "How long is it?")
    done = keep_supported([(whole, passage, 9), (part, passage, 9)])
    assert done.kept == (whole,) and (done.sentences, done.sentences_kept, done.tokens) == (4, 2, 18)
