"""Questions about what no document holds: what is exchanged, and that no text has it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.near_misses import COMPANY, DOCUMENT, NAME, VERSION, NearMiss, near_misses, present

NAMES = "ropeCount winchSpeed mooringMode tideGauge pierLimit anchorDepth buoyColour shedHeight quayLength".split()
PAGE = """# Harbour settings

| Option | Default |
| ------ | ------- |
{options}

{sentences}

## Version History

| Version  | Changes |
| -------- | ------- |
{versions}
"""


def documents(names: Sequence[str] = NAMES) -> list[Document]:
    """Return pages with a default, a purpose and a version for each name."""
    made = []
    for page in range(4):
        own = [f"{name}{'' if page == 0 else 'Of' + 'ABCD'[page] + 'llen'}" for name in names]
        text = PAGE.format(
            options="\n".join(f"| `{name}` | `{n + 3 * page + 2}` |" for n, name in enumerate(own)),
            sentences="\n\n".join(
                f"The `{n}Switch` option controls how the lamps of pier {page}{k} are lit at night."
                for k, n in enumerate(own)
            ),
            versions="\n".join(f"| `v{4 + page}.{n}.0` | `{name}` introduced. |" for n, name in enumerate(own)),
        )
        title = "harbour.config" if page % 2 else f"Harbour settings {page}"
        made.append(Document(f"{page}.md", title, text, f"{page}.md"))
    return made


def made(side: str = "probe", most: int = 100, extra: Sequence[str] = ()) -> list[NearMiss]:
    pages = documents()
    return near_misses(facts_of(pages), pages, [*(page.text for page in pages), *extra], most, side, 0)


def test_every_kind_is_asked_in_the_form_of_a_known_question_and_names_are_half() -> None:
    found = made(most=12)
    kinds = [one.kind for one in found]
    assert len(found) == 12 and {NAME, VERSION, DOCUMENT, COMPANY} == set(kinds) and kinds.count(NAME) == 6
    for one in found:
        assert one.absent in one.question and one.fact.brief in one.question
        assert one.fact.side == "probe"
    known = {one.fact.brief_question(0).split("`")[0] for one in found}
    assert all(one.question.split("`")[0] in known for one in found if one.kind == NAME)


def test_what_a_text_holds_in_any_spelling_is_not_asked_about() -> None:
    found = made()
    missing = {one.absent for one in found}
    assert not present(missing, [page.text for page in documents()])
    name = next(one.absent for one in found if one.kind == NAME)
    spelt = f"# Later\n\nSet `{name.upper()}` here."
    again = {one.absent for one in made(extra=[spelt])}
    assert name not in again and again
    company = next(one.absent for one in found if one.kind == COMPANY)
    assert company not in {one.absent for one in made(extra=[f"Written by {company}."])}


def test_what_is_trained_on_is_never_what_is_measured() -> None:
    measured = made("probe")
    trained = made("question", extra=[one.absent for one in measured])
    assert measured and trained
    assert not {one.question for one in measured} & {one.question for one in trained}
    apart = [{one.absent for one in of if one.kind in (COMPANY, DOCUMENT)} for of in (measured, trained)]
    assert all(apart) and not apart[0] & apart[1]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("since 17.2 it is on", {"17.2.0"}), ("v17.2.4", {"17.2.0"}), ("117.2.0", set()), ("3.17.2", set()),
        ("17.20", set()), ("call use-stale_times()", {"useStaleTimes"}), ("stale times use", set()),
    ],
)  # fmt: skip
def test_a_version_is_its_first_two_numbers_and_a_name_its_letters(text: str, held: set[str]) -> None:
    assert present({"17.2.0", "useStaleTimes"}, [text]) == held


def test_other_languages_and_pages_without_facts_give_none() -> None:
    rows = "\n".join(
        f"| `{name}` | `{n}` | Die Zahl der Seile, die an einem Schiff sind |" for n, name in enumerate(NAMES)
    )
    head = "| Option | Standardwert | Beschreibung |\n| --- | --- | --- |"
    text = f"# Hafen\n\nDie Schiffe sind im Hafen, und das Wasser ist nicht tief.\n\n{head}\n{rows}\n"
    german = Document("d.md", "Der Hafen und die Schiffe", text, "d.md")
    assert facts_of([german])
    plain = Document("p.md", "Prose", "The sea was calm, and nobody said a word about it.", "p.md")
    assert near_misses(facts_of([german, plain]), [german, plain], [german.text, plain.text], 10, "probe", 0) == []
