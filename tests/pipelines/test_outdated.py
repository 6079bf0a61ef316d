"""Probes about revised documents: whose answers hold, changed, or are gone."""

from __future__ import annotations

import re

import pytest

from evals.probe_building import fact_probe
from pipelines.data.revisions import Fate, fate
from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.revisions import Revision, revised, statements, whole_texts
from recovery.types import Probe

OLD = """# Harbour

The pilot station is open from 6 to 22. The fee for a night is 40 euros for ships below ten metres.

| option | default | since |
| --- | --- | --- |
| depth | 5 | v1.2 |
| width | 5 | v1.3 |

The harbour master is Ada Lund. Boats are washed at the northern pier on Fridays. Dogs are welcome on the ferry.

Tickets are sold at the kiosk. The kiosk closes at noon.
"""
CHANGES = {
    "40 euros": "45 euros",
    "| depth | 5 |": "| depth | 6 |",
    " Boats are washed at the northern pier on Fridays.": "",
    "The harbour master is Ada Lund.": "Since May the harbour master is again Ada Lund.",
    "Tickets are sold at the kiosk.": "Every visitor buys a ticket on board. Postcards lie at the kiosk.",
}


@pytest.fixture(scope="module")
def revision() -> Revision:
    new = OLD
    for before, after in CHANGES.items():
        assert before in new
        new = new.replace(before, after)
    return Revision(statements(OLD), statements(new))


@pytest.mark.parametrize(
    ("question", "answer", "became"),
    [
        ("What is the fee for a night?", "40 euros", Fate.CHANGED),
        ("What is the default of depth?", "5", Fate.CHANGED),
        ("What is the default of width?", "5", Fate.CURRENT),
        ("Since which version is there depth?", "v1.2", Fate.CURRENT),
        ("When does the pilot station open?", "6", Fate.CURRENT),
        ("Who is the harbour master?", "Ada Lund", Fate.CURRENT),
        ("Where are boats washed on Fridays?", "the northern pier", Fate.GONE),
        ("Where are tickets sold?", "at the kiosk", Fate.GONE),  # it is still named, for something else
        ("Which animals are forbidden on the ferry?", "cats", Fate.GONE),  # it never said so
    ],
)
def test_the_statement_with_the_answer_decides(revision: Revision, question: str, answer: str, became: Fate) -> None:
    assert fate(Probe("a", "question", question, (answer,), source="harbour.md"), revision) is became


def test_any_accepted_answer_counts_and_the_passage_tells_which_statement_is_meant(revision: Revision) -> None:
    asked = Probe("a", "question", "Which value is it?", ("five", "5"), passage="The default of `width` is 5.")
    assert fate(asked, revision) is Fate.CURRENT
    other = Probe("a", "question", "Which value is it?", ("five", "5"), passage="The default of `depth` is 5.")
    assert fate(other, revision) is Fate.CHANGED


def test_a_gap_is_judged_as_a_question_is(revision: Revision) -> None:
    gap = Probe("a", "choice", "The fee for a night is ", ("40 euros",), ("40 euros", "30 euros"))
    assert fate(gap, revision) is Fate.CHANGED


# (old, new, question and answer): the reason is the fault that each was.
IN_OTHER_WORDS = {
    Fate.CURRENT: [
        (  # a link
            "It avoids [Layout Shift](https://web.dev/cls). It is fast.",
            "It avoids [Layout Shift](https://web.dev/cls). It is slow.",
            "What does it avoid? Layout Shift",
        ),
        (  # one word of many is another one
            "This parameter is an instance of Request, which holds the headers.",
            "The first parameter is an instance of Request, which holds the headers.",
            "This parameter is an instance of what, which holds the headers? Request",
        ),
    ],
    Fate.CHANGED: [
        (  # a new row with the same value is about something else
            "| depth | 5 |\n| width | 7 |",
            "| depth | 6 |\n| width | 7 |\n| height | 5 |",
            "What is the default of depth? 5",
        ),
    ],
    Fate.GONE: [
        (  # told apart, in other words
            "The forbidden function throws an error that renders a 403 error page.",
            "The forbidden function throws an error that renders the forbidden view. It returns 403 at the start.",
            "Which error page does the forbidden function throw an error for, that renders it? 403",
        ),
        (  # left out, with nothing in its place
            "The value is an integer starting with Flask 0.8 and later ones.",
            "The value is an integer starting with Flask and later ones.",
            "With which version is the value an integer, starting with Flask and later ones? 0.8",
        ),
        (  # another spelling
            "If the status code is not in the list of the schema, the default behaviour will be applied.",
            "If the status code is not in the list of the schema, the default behavior will be applied.",
            "If the status code is not in the list of the schema, what will be applied by default? behaviour",
        ),
        (  # rewritten, not contradicted
            "The public registry is powered by a CouchDB database, of which there is a public mirror.",
            "The tool is configured to use the public registry of this company by default.",
            "The public registry is powered by a database of which kind, of which there is a public mirror? CouchDB",
        ),
        (  # a long sentence has the few words of a short one by chance
            "This removes duplicates.",
            "The option is set for this user unless another one is given, and also for all of the groups.",
            "What does this remove? removes duplicates",
        ),
        (  # nor has a statement a counterpart that is all but its answer
            "This obviously will eliminate some deduping.",
            "This is for one user only, unless another is set.",
            "How does it end? obviously will eliminate some deduping",
        ),
        (  # the same value of another setting, while this one is gone
            "## retries\n\n- Default: 10\n\nTries.\n\n## depth\n\n- Default: 4",
            "## sockets\n\n- Default: 10\n\nSockets.\n\n## depth\n\n- Default: 4",
            "What is the default of retries? 10",
        ),
    ],
}


@pytest.mark.parametrize(
    ("became", "old", "new", "asked"), [(became, *row) for became, rows in IN_OTHER_WORDS.items() for row in rows]
)
def test_an_answer_that_is_said_in_other_words_has_not_changed(became: Fate, old: str, new: str, asked: str) -> None:
    question, answer = re.split(r"(?<=\?) ", asked)
    probe = Probe("a", "question", question, (answer,))
    assert fate(probe, Revision(statements(old), statements(new))) is became


SETTINGS = """# Settings

#### sockets

* Default: 50
* Type: Number

The most connections at a time.

#### retries

* Default: 3
* Type: Number

How often a request is tried.

#### depth

* Default: 4
* Type: Number
"""


@pytest.mark.parametrize(("setting", "became"), [("sockets", Fate.CHANGED), ("retries", Fate.CURRENT)])
def test_a_default_in_a_line_of_its_own_is_that_of_its_section(setting: str, became: Fate) -> None:
    newer = SETTINGS.replace("* Default: 50", "* Default: 15").replace("* Default: 4", "* Default: 50")
    old, new = (Document("a.md", "Settings", text, "a.md") for text in (SETTINGS, newer))
    (revision,) = revised({1: whole_texts([old]), 2: whole_texts([new])}, [2])[1].values()
    (made,) = (f for f in facts_of([old]) if f.relation == "default" and f.subject.endswith(setting))
    assert {fate(fact_probe(made, wording), revision) for wording in range(3)} == {became}
