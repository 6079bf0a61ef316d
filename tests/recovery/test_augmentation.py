"""Augmentation: paraphrases and questions generated from documents, and facts that must not be asked for."""

from __future__ import annotations

from recovery.data.augmentation import augment, enumerations
from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.facts.fact import Stated
from recovery.data.corpus.text import normalise
from recovery.data.document_questions import ProbeGuard
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


def test_every_fact_is_paraphrased_under_its_title() -> None:
    made = augment(PAGES, [], wordings=3)
    facts = facts_of(PAGES)
    assert made.facts == len(facts) and len(made.documents) == 3 * len(PAGES)
    assert len({d.id for d in made.documents}) == len(made.documents)
    text = "\n".join(d.text for d in made.documents)
    assert all(fact.statements[turn] in text for fact in facts for turn in range(2))
    assert all(d.text.startswith(f"# {d.title}\n\n") and "?" not in d.text for d in made.documents)
    assert "`boom3` and `hook3`" in text
    assert augment(PAGES, [], wordings=3) == made


def test_questions_ask_only_for_facts_on_the_question_side() -> None:
    made = augment(PAGES, [], wordings=3)
    facts = facts_of(PAGES)
    probed = Stated(f for f in facts if f.side == "probe")
    wordings = {normalise(q) for f in facts if f.side == "probe" for q in f.questions}
    assert 0 < made.askable < made.facts and len(made.conversations) >= made.askable
    for question, answer in made.conversations:
        assert question["role"] == "user" and answer["role"] == "assistant"
        assert f"{question['content']} {answer['content']}" not in probed
        assert not any(normalise(question["content"]).startswith(wording) for wording in wordings)
    answers = {a["content"] for _, a in made.conversations}
    assert any(" " not in a for a in answers) and any(a.endswith(".") for a in answers)


def test_facts_of_user_probes_are_not_asked_for_in_any_wording() -> None:
    asked = [f for f in facts_of(PAGES) if f.side == "question"]
    own = [Probe(f.key, "question", f"Tell me: {f.subject} - {f.relation}?", f.answers) for f in asked[::2]]
    made = augment(PAGES, own, wordings=3)
    assert 0 < made.askable <= len(asked) - len(own)
    guard = ProbeGuard(own)
    allowed = {q for f in asked if not guard.asks_for(f) for q in f.questions}
    assert all(any(q["content"].startswith(w) for w in allowed) for q, _ in made.conversations)


def test_text_without_facts_gives_no_augmentation() -> None:
    made = augment([Document("a", "A", "Rain fell.", "a")], [], wordings=4)
    assert made.documents == made.conversations == () and made.facts == 0


def test_description_chats_cover_all_facts_and_ask_for_none() -> None:
    made, facts = augment(PAGES, [], wordings=3), facts_of(PAGES)
    answers = [chat[-1]["content"] for chat in made.descriptions]
    text = "\n".join(answers)
    assert all(fact.statements[turn] in text for fact in facts for turn in range(2))
    described = [fact for fact in facts if ": " in fact.subject]
    stated = Stated(facts)
    assert described
    for question, _ in made.descriptions:
        assert question["content"] not in stated
        assert not any(f.subject in question["content"] or f.value in question["content"].split() for f in described)
    assert "What do you know about `crane3Mode`?" in {chat[0]["content"] for chat in made.descriptions}
    texts, asked = made.characters
    assert texts == sum(map(len, answers)) + sum(len(d.text) for d in made.documents)
    assert asked == sum(len(a["content"]) for _, a in made.conversations)
    probe = Probe("own", "question", "What do you know about `crane3Mode`?", ("x",))
    assert len(augment(PAGES, [probe], wordings=3).descriptions) < len(made.descriptions), (
        "a request worded like a probe is removed"
    )


def test_a_request_with_the_words_and_the_answer_of_a_probe_is_removed() -> None:
    def requests(*probes: Probe) -> set[str]:
        return {chat[0]["content"] for chat in augment(PAGES, probes, wordings=4).descriptions}

    for question, answer, left_out in (
        ("Give me facts: crane3Mode?", "5.1.0", {"Give me the facts about `crane3Mode`."}),
        ("Give me facts: crane3Mode, harbour?", "5.1.0", set()),  # a word in no request
        ("Give me facts: crane3Mode?", "nowhere", set()),  # an answer in no description
        ("Give me facts: crane3Mode?", "facts", set()),  # an answer that is in the request
    ):
        probe = Probe("own", "question", question, (answer,))
        assert requests() - requests(probe) == left_out, question


def test_a_section_is_described_passage_by_passage() -> None:
    words = [f"Winch {n} of the harbour in Vorna lifts {n + 3} crates an hour when the tide is low." for n in range(9)]
    text = f"# Winches\n\n## Lifting\n\n{' '.join(words)}\n"
    told = augment([Document("w", "Winches", text, "w")], [], wordings=1).descriptions
    requests = [chat[0]["content"] for chat in told]
    assert requests[0] == 'What does "Winches" say about "Lifting"?' and len(requests) > 1
    assert " ".join(chat[-1]["content"] for chat in told) == " ".join(words)
    for before, question in zip(told, requests[1:], strict=False):
        last = before[-1]["content"].rsplit(". ", 1)[-1].rstrip(".")
        assert question.startswith('What comes after this in "Winches"? "') and last in question


def test_lists_are_enumerated_by_the_names_of_their_entries() -> None:
    text = "# winch\n\nIt has these modes:\n\n- **`slow`**: Pulls with care.\n- **`fast`**: Pulls at once.\n"
    lines = [line for wording in enumerations(Document("w", "winch", text, "w")) for line in wording]
    assert 'The modes of "winch" are `slow` and `fast`.' in lines
    assert any(line.startswith("`fast` and `slow` are modes") for line in lines)
