"""Other wordings and questions: what is made of a page, and what is never asked."""

from __future__ import annotations

from recovery.augmentation import augment
from recovery.corpus import Document
from recovery.corpus.facts import Stated, enumerations, facts_of
from recovery.corpus.text import normalise
from recovery.questions import ProbeGuard
from recovery.types import Probe

PAGES = [
    Document(
        f"crane{n}.md",
        f"crane{n}Mode",
        f"# crane{n}Mode\n\nThe `crane{n}Mode` option controls how far crane {n} may turn at night.\n\n## Options\n\n"
        f"| Option | Type | Default | Description |\n|---|---|---|---|\n"
        f"| `boom{n}` | `number` | `{n + 40}` | Sets how far the boom of crane {n} reaches |\n"
        f"| `hook{n}` | `string` | `iron{n}` | Names the hook that crane {n} takes first |\n\n"
        f"| Version | Changes |\n|---|---|\n| `v{n + 2}.1.0` | `crane{n}Mode` introduced. |\n",
        f"crane{n}.md",
    )
    for n in range(10)
]


def test_every_fact_is_said_in_other_words_under_its_title() -> None:
    made = augment(PAGES, [], wordings=3)
    facts = facts_of(PAGES)
    assert made.facts == len(facts) and len(made.documents) == 3 * len(PAGES)
    assert len({d.id for d in made.documents}) == len(made.documents)
    text = "\n".join(d.text for d in made.documents)
    assert all(fact.statements[turn] in text for fact in facts for turn in range(2))
    assert all(d.text.startswith(f"# {d.title}\n\n") and "?" not in d.text for d in made.documents)
    assert "`boom3` and `hook3`" in text
    assert augment(PAGES, [], wordings=3) == made


def test_questions_are_asked_about_facts_on_the_side_of_training_alone() -> None:
    made = augment(PAGES, [], wordings=3)
    facts = facts_of(PAGES)
    measured = Stated(f for f in facts if f.side == "probe")
    wordings = {normalise(q) for f in facts if f.side == "probe" for q in f.questions}
    assert 0 < made.asked < made.facts and len(made.conversations) >= made.asked
    for question, answer in made.conversations:
        assert question["role"] == "user" and answer["role"] == "assistant"
        assert f"{question['content']} {answer['content']}" not in measured
        assert not any(normalise(question["content"]).startswith(wording) for wording in wordings)
    answers = {a["content"] for _, a in made.conversations}
    assert any(" " not in a for a in answers) and any(a.endswith(".") for a in answers)


def test_what_probes_of_ones_own_ask_is_not_asked_in_any_words() -> None:
    asked = [f for f in facts_of(PAGES) if f.side == "question"]
    own = [Probe(f.key, "question", f"Tell me: {f.subject} - {f.relation}?", f.answers) for f in asked[::2]]
    made = augment(PAGES, own, wordings=3)
    assert 0 < made.asked <= len(asked) - len(own)
    guard = ProbeGuard(own)
    allowed = {q for f in asked if not guard.asks_for(f) for q in f.questions}
    assert all(any(q["content"].startswith(w) for w in allowed) for q, _ in made.conversations)


def test_nothing_is_made_of_text_without_facts() -> None:
    made = augment([Document("a", "A", "Rain fell.", "a")], [], wordings=4)
    assert made.documents == made.conversations == () and made.facts == 0


def test_lists_are_said_by_the_names_of_their_entries() -> None:
    text = "# winch\n\nIt has these modes:\n\n- **`slow`**: Pulls with care.\n- **`fast`**: Pulls at once.\n"
    said = [line for wording in enumerations(Document("w", "winch", text, "w")) for line in wording]
    assert 'The modes of "winch" are `slow` and `fast`.' in said
    assert any(line.startswith("`fast` and `slow` are modes") for line in said)
