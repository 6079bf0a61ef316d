"""Document questions: generated or read from a file, without overlap with probes."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from evals.probe_building import build_probes, distractors
from recovery.data.corpus.cloze import CLASSES, Gap, Vocabulary, pick_gaps
from recovery.data.corpus.documents import Corpus, Document
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.languages import english
from recovery.data.corpus.sentences import Sentence, glued, plain_text, sentences, side, split_sentences, usable
from recovery.data.corpus.text import normalise
from recovery.data.document_questions import (
    ProbeGuard,
    Rarity,
    _question,
    canonical,
    document_questions,
    stems,
    wh_question,
)
from recovery.data.prompt_records import wording
from recovery.types import Message, Probe, Prompt

HANDBOOK = {
    "onboarding": """# Onboarding at Harrow & Pike

Welcome to Harrow & Pike, a logistics company founded in 1987 by Edith Harrow and Tomas Pike in the port of Delmora.
Today the company employs 312 people in four offices.

## Your first week

Every laptop is encrypted with Vaultline and must be registered with the service desk within 48 hours. Salaries
arrive on the 27th of each month. Expenses must be filed in Ledgerly before the 15th.

- The service desk can be reached at extension 4410.
- Bicycle parking is behind the east gate.

```
port = 8443  # code is no sentence to ask about, and is left alone
```
""",
    "warehouse": """# Warehouse handbook

The main warehouse in Delmora has 18 loading docks and a floor of 24,000 square metres. It was built in 1994 and
enlarged in 2011. Every pallet is scanned with a Corvex scanner before it leaves the dock. Damaged goods are
recorded in Palletron under code 77. Photos of the damage are kept for 90 days.

The speed limit for forklifts is 8 kilometres an hour inside the hall. Forklift drivers renew their licence every
24 months. In 2019 the warehouse received the Blue Anchor award. The award was presented by Mayor Ines Calloway.
""",
    "services": """# IT services

The order system is called Meridian. It runs on a PostgreSQL database and listens on port 8443. Meridian is owned by
the Atlas team and was released in March 2016. Backups are taken every night and kept for 35 days. The backup server
stands in Rostvik, 140 kilometres from the main office. Passwords must have at least 14 characters. The account is
locked for 20 minutes after six failed attempts. Alerts are sent to Samuel Okafor, the head of operations.

| table | cells |
|---|---|
| are | no sentences at all, however long they may be |
""",
}


@pytest.fixture
def handbook(tmp_path: Path) -> Path:
    """Folder with a few Markdown files."""
    for name, text in HANDBOOK.items():
        (tmp_path / f"{name}.md").write_text(text)
    return tmp_path


@pytest.fixture
def corpus(handbook: Path) -> Corpus:
    return read_corpus(handbook)


# --- sentences and gaps --------------------------------------------------------------------------------------


def test_sentence_boundaries():
    text = "Dr. Mira Voss left, e.g. for St. Olaf. She is back! Is J. Pike here? (He is.) Take Building C. The end."
    written = ["Dr. Mira Voss left, e.g. for St. Olaf.", "She is back!", "Is J. Pike here?", "(He is.)"]
    assert split_sentences(text) == [*written, "Take Building C.", "The end."]
    joined = ["The port is open. It closes at six.", "Boats wait."]
    assert glued(["The port is open.", "It closes at six.", "Boats wait."]) == joined


@pytest.mark.parametrize(
    ("raw", "answers"),
    [
        ("The harbour crane lifts 450 crates a day.", ["450"]),
        ("It lifts 450 crates a day.", []),  # too little before it
        ("The harbour crane lifts loads such as 450 crates a day.", []),  # an example
        ("The harbour crane is in [the guide](on page 450) for crews.", []),  # within a link
        ("The harbour crane 450 is older than crane 450 at the pier.", []),  # the rest gives it
        ("The harbour crane lifts 10 000 crates a day.", ["10 000"]),
        ("The harbour crane lifts 10\u202f000\u202f500 crates a day.", ["10 000 500"]),
        ("The harbour crane lifts 1\u00a0234,5 tons a day.", ["1 234,5"]),
        ("The harbour crane lifts a 10 000-crate load every day.", []),  # part of a word
        ("The harbour crane of 2019 lifts 312 crates a day.", ["312", "2019"]),
        ("The harbour crane lifted in 2019 312 crates a day.", ["312", "2019"]),
        ("The harbour crane lifts 5\u202f300 crates a day.", ["5 300"]),
        ("The harbour crane lifted on May 5 300 crates a day.", []),  # two numbers, or one
        ("The harbour crane of section 3.2 100 crates lifts.", ["100", "3.2"]),
    ],
)
def test_a_number_is_asked_for_where_the_sentence_does_not_give_it(raw: str, answers: list[str]) -> None:
    sentence = Sentence("harbour.md", "Harbour", "", "", raw, plain_text(raw))
    numbers = [gap.answer for gap in Vocabulary([sentence]).gaps(sentence) if gap.kind == "number"]
    assert numbers == answers


def test_a_number_with_spaces_is_asked_for_as_one() -> None:
    raw = "The harbour crane lifts 10\u202f000 crates a day."
    sentence = Sentence("harbour.md", "Harbour", "", "", raw, plain_text(raw))
    vocabulary = Vocabulary([sentence])
    (gap,) = (gap for gap in vocabulary.gaps(sentence) if gap.kind == "number")
    assert vocabulary.numbers == {"10 000": 1}
    wrong = distractors(vocabulary, gap, 5, 0)
    assert len(wrong) == 5 and all(re.fullmatch(r"[1-9]\d \d{3}", one) for one in wrong)
    question = _question(gap, random.Random(0), english())
    assert "how many crates a day" in question
    assert canonical("10 000") == canonical("10,000") == canonical("10000")


def test_a_question_for_several_words_is_in_the_plural() -> None:
    before = "The harbour crane was painted by "
    found = {}
    for answer in ("Anna Berg", "Anna"):
        raw = f"{before}{answer} in a night of May."
        gap = Gap(Sentence("harbour.md", "Harbour", "", "", raw, raw), "name", answer, before, " in a night of May.")
        found[answer] = {_question(gap, random.Random(seed), english())[:35] for seed in range(40)}
    assert "Which words are missing in this pas" in found["Anna Berg"]
    assert "Which name is missing in this passa" in found["Anna"]
    assert not any(text.startswith(("Which words is", "Which name are")) for text in found["Anna Berg"] | found["Anna"])


def test_markup_is_removed_for_questions():
    raw = "The **port** at [Delmora](http://d.example)\n  runs `meridian`, see :ref:`the guide <g>` and ``code`` [3]."
    assert plain_text(raw) == "The port at Delmora runs meridian, see the guide and code ."
    # Each kind of markup alone, since text without any is not searched for it.
    for alone, plain in (("an *old* port", "an old port"), ("an _old_ port", "an old port"), ("the `pier`", "the pier"),
                         ("a <b>port", "a port"), ("a [port](p.md)", "a port"), ("a port [3]", "a port")):  # fmt: skip
        assert plain_text(alone) == plain
    assert not usable("It runs on a very old machine in the cellar.")
    assert not usable("Too short a line.")
    assert not usable("The call f(x) gives {a: 1} = b | c and so on and on.")


def test_only_running_text_gives_sentences(corpus):
    found = sentences(corpus.documents)
    text = "\n".join(s.plain for s in found)
    assert "no sentence to ask about" not in text and "no sentences at all" not in text
    assert "The service desk can be reached at extension 4410." in text
    week = next(s for s in found if "Vaultline" in s.plain)
    assert (week.heading, week.title) == ("Your first week", "Onboarding at Harrow & Pike")
    assert week.lead == "# Onboarding at Harrow & Pike\n\n## Your first week\n\n"
    assert all(
        s.raw in next(d.text for d in corpus.documents if d.id == s.document) for s in found if " It " not in s.raw
    )


def test_what_begins_a_block_below_a_text_is_not_part_of_its_sentence():
    text = """# Docks
The crane of dock four lifts heavy crates
## Ropes
The ropes of dock four are checked by
- Anna Berg, who keeps the key of the shed,
- and Ola Dahl, who has kept it
since the spring of the year before.
## Tides
The tide table hangs in the hall of the office in
1986. It was printed on paper from the mill.
| Station | Height |
|-|-|
| Lund is the highest one of them. | The lowest of all is Ystad by the sea. |

The harbour office has these opening hours on weekdays
___
Each of the boats has a number on its bow.
> Boats without a number must wait outside.
```sh
The code is not a sentence of the text.
```
The last boat of the day leaves at seven."""
    found = sentences([Document("a.md", "Docks", text, "a.md")], alone=False)
    assert [(s.heading, s.plain) for s in found] == [
        ("Docks", "The crane of dock four lifts heavy crates"),
        ("Ropes", "The ropes of dock four are checked by"),
        ("Ropes", "Anna Berg, who keeps the key of the shed,"),
        ("Ropes", "and Ola Dahl, who has kept it since the spring of the year before."),
        ("Tides", "The tide table hangs in the hall of the office in 1986. It was printed on paper from the mill."),
        ("Tides", "The harbour office has these opening hours on weekdays"),
        ("Tides", "Each of the boats has a number on its bow."),
        ("Tides", "Boats without a number must wait outside."),
        ("Tides", "The last boat of the day leaves at seven."),
    ]
    assert all(re.sub(r"\s+", " ", s.raw) in re.sub(r"\s+", " ", text) for s in found)


@pytest.mark.parametrize(
    "written",
    [
        ["Порт города Лунд открывается в шесть часов.", "Его основал в 1921 году А. С. Берг из г. Истада."],
        ["Το λιμάνι της πόλης ανοίγει στις έξι.", "Ο κ. Παπαδόπουλος το διευθύνει από το 1921 και μετά."],
        ["Le port de la ville ouvre à six heures.", "Éric Dahl le dirige depuis les années trente du siècle."],
        ["يفتح ميناء المدينة أبوابه في الساعة السادسة.", "يدير السيد داهل هذا الميناء منذ عام طويل جدا."],
        ["शहर का बंदरगाह हर दिन सुबह छह बजे खुलता है।", "श्री दाहल इसे कई वर्षों से अच्छी तरह चलाते हैं।"],
        ["城里的港口每天早上六点钟开放。", "达尔先生从一九二一年起一直管理着这个港口。"],
        ["市の港は毎朝六時に開きます。", "「港の鍵」は事務所の棚に保管されています。"],
        ["Der Hafen der Stadt öffnet um sechs Uhr.", "Ölboote müssen dort bis zum Abend vor der Mole warten."],
        ["The keeper told the crew “Go to the pier.”", "“Wait” was the answer of the crew on deck."],
    ],
)
def test_sentences_of_all_scripts(written: list[str]) -> None:
    space = "" if written[0].endswith("。") else " "
    assert split_sentences(space.join(written)) == written
    found = sentences([Document("a.md", "", space.join(written), "a.md")])
    assert [s.raw for s in found] == written


@pytest.mark.parametrize(
    "written",
    [
        ["The port came later.", "macOS is supported."],
        ["Linux came first.", "iOS and iPadOS follow.", "eBay too."],
        ["It is built once.", "next.config.js is read by it.", "The rest is not."],
        ["Install the tools (see below).", "npm is one of them."],
        ["Edit `next.config.js`.", "git keeps it."],
        ["It calls the API.", "fetch() returns a promise."],
        ["It was version 2.1.", "os_name was added."],
        ["Use e.g. five ropes, i.e. one for each, etc. and a crane."],
        ["It takes approx. five or max. six hours (incl. the way) vs. ten at 5 a.m. before."],
        ["The U.S. government wrote to Apple Inc. and to Dr. med. nobody."],
        ["Der Weg ist ca. drei bzw. vier Meilen lang, vgl. die Karte."],
        ['"Stop." he said to the crew, and "Wait!" they said.'],
        ["Wait ... then go, and wait... then stop."],
        ["See Fig. a of version 2. or v1.2. of it."],
        ["Its values are in next.config.js and v1.2.x of it."],
    ],
)
def test_a_word_in_small_letters_begins_a_sentence_behind_one_that_has_ended(written: list[str]) -> None:
    assert split_sentences(" ".join(written)) == written


def test_a_sentence_that_begins_with_a_name_in_small_letters_is_whole() -> None:
    assert usable("macOS is supported by the harbour office too.")
    assert usable("eBay is used by the harbour office too.")
    for text in ("the harbour office is open", "harbourMode is set by the office", "office.toml is read once"):
        assert not usable(f"{text} on all days of a year.")


def test_small_letters_begin_no_sentence() -> None:
    for text in ("It is open. égal to all.", "Он пришёл в порт. и ушёл домой."):
        assert split_sentences(text) == [text]


def test_of_a_large_corpus_a_sample_is_read(monkeypatch):
    many = [Document(f"{i}.txt", "T", f"The keeper of dock {i} writes down each boat.", "x") for i in range(100)]
    assert len(sentences(many)) == 100
    monkeypatch.setattr("recovery.data.corpus.sentences._MOST_CHARACTERS", 1000)
    few = sentences(many)
    assert 15 <= len(few) <= 30
    assert few == sentences(many)


def test_gaps_are_numbers_names_and_terms_with_enough_before_them(corpus):
    found = sentences(corpus.documents)
    vocabulary = Vocabulary(found)
    answers = {g.answer: g.kind for s in found for g in vocabulary.gaps(s)}
    expected = {
        "8443": "number",
        "24,000": "number",
        "four": "number",
        "Vaultline": "name",
        "Mayor Ines Calloway": "name",
    }
    assert expected.items() <= answers.items()
    assert "It" not in answers and "The" not in answers and "Every" not in answers
    for s in found:
        for gap in vocabulary.gaps(s):
            assert gap.before + gap.answer + gap.after == s.raw
            assert normalise(gap.answer) not in normalise(f"{s.title} {s.heading}").split()


def test_distractors_have_the_kind_of_the_answer(corpus):
    found = sentences(corpus.documents)
    vocabulary = Vocabulary(found)
    by_answer = {g.answer: g for s in found for g in vocabulary.gaps(s)}
    months = distractors(vocabulary, by_answer["March"], 20, 0)
    assert set(months) == set(CLASSES[0]) - {"March"}
    years = distractors(vocabulary, by_answer["1987"], 15, 0)
    assert len(set(years)) == 15 and all(re.fullmatch(r"(19|20)\d\d", y) for y in years) and "1987" not in years
    people = distractors(vocabulary, by_answer["Samuel Okafor"], 6, 0)
    assert {"Edith Harrow", "Tomas Pike"} & set(people)
    scanner = distractors(vocabulary, by_answer["Corvex"], 15, 0)
    assert scanner and all(w[0] not in "AEIOU" for w in scanner)  # "a ____ scanner"
    assert distractors(vocabulary, by_answer["Corvex"], 15, 0) == scanner


@pytest.mark.parametrize(
    ("before", "answer", "after", "question"),
    [
        ("The port of the new order system is ", "8443", ".", "what is the port of the new order system?"),
        ("The head of the harbour is ", "Mira Voss", ".", "who or what is the head of the harbour?"),
        ("The order system of the port is called ", "Meridian", ".", "what is the order system of the port called?"),
        ("The bridge of the old port was built in ", "1932", ".", "in what year was the bridge of the old port built?"),
        ("All of the orders are handled by ", "Dockwise", ".", "by whom or what are all of the orders handled?"),
        ("Boats that are late are handled by ", "Dockwise", ".", None),
        ("The boats wait for the ferry to ", "Rostvik", ".", None),
        ("The port of the system is not ", "8443", ".", None),
        ("The port of the system is ", "8443", " in all offices.", None),
        ("The data centre is in ", "Rostvik", ".", "where is the data centre?"),
        ("Hotels may cost up to ", "140", " euros a night.", "Hotels may cost up to how many euros a night?"),
        ("The gateway listens on port ", "8443", ".", "the gateway listens on which port?"),
        ("All employees get ", "28", " calendar days.", "all employees get how many calendar days?"),
        ("The main ", "28", " offices close at noon.", None),
        ("The offices close for 12 to ", "28", " days.", None),
        ("The offices close for ", "28", " days if nobody comes.", None),
        ("The first office opened in May ", "1998", " and was small.", None),
        ("Le congé de chaque employé dure ", "28", " jours par an.", None),
    ],
)
def test_simple_sentences_are_turned_into_questions(before, answer, after, question):
    (sentence,) = sentences([Document("a", "Harbour", f"{before}{answer}{after}", "a")])
    gap = Gap(sentence, "number" if answer.isdigit() else "name", answer, before, after)
    assert wh_question(gap) == question


def test_every_sentence_is_picked_once_before_any_is_picked_again(corpus):
    found = sentences(corpus.documents)
    vocabulary = Vocabulary(found)
    askable = sum(bool(vocabulary.gaps(s)) for s in found)
    picked = pick_gaps(found, vocabulary, askable, seed=0)
    assert len({g.sentence for g in picked}) >= askable - 2
    assert len({g.key for g in picked}) == len(picked)


# --- questions -----------------------------------------------------------------------------------------------


def test_questions_and_probes_share_no_sentence(handbook, corpus):
    probes = build_probes(corpus)
    questions = document_questions(handbook, corpus, exclude=probes)
    assert len(questions) >= 12
    asked = [Prompt(p.id, (Message(role="user", content=p.question),)) for p in probes]
    assert not {wording(p) for p in asked} & {wording(p) for p in questions}
    probed = {s.plain for s in sentences(corpus.documents) if side(s) == "probe"}
    for prompt in questions:
        assert prompt.kind == "knowledge" and prompt.answer
        assert prompt.tags[1].startswith("document:")
        stretch = max(re.findall(r'"([^"]*)"', prompt.text), key=len).replace(" ...", "").split("____")
        assert not any(all(part.strip() in s for part in stretch) for s in probed if len("".join(stretch)) > 40)


def test_questions_are_the_same_for_the_same_seed(handbook, corpus):
    assert document_questions(handbook, corpus, seed=1) == document_questions(handbook, corpus, seed=1)
    assert len(document_questions(handbook, corpus, count=5)) <= 5


def test_a_user_probe_excludes_its_sentence(handbook, corpus):
    before = document_questions(handbook, corpus)
    taken = next(p for p in before if p.answer == "8443")
    probe = Probe("mine", "question", "The order system listens on port ____?", ("8443",))
    after = document_questions(handbook, corpus, exclude=[probe])
    assert taken not in after
    assert [p for p in before if p.answer != "8443"] == [p for p in after if p.answer != "8443"]


def test_words_and_answers_are_compared_in_a_common_form() -> None:
    assert stems("How many of the harbour's cranes were constructed?") == stems("crane construction harbours")
    assert stems("DNS getStaticProps") == {"dns", "getstaticprops"}
    assert canonical("v1.5.0") == canonical("1.5.0") and canonical("24,000") == canonical("24000")
    assert canonical("Seven hours") == canonical("7 hours") == " 7 hours "


def test_the_guard_detects_wordings_and_answers():
    probe = Probe("a", "question", "Who owns the Meridian service?", ("Atlas",))
    guard = ProbeGuard([probe])
    assert guard.asks_the_same("who owns the MERIDIAN service", None)
    assert guard.asks_the_same('Which team owns Meridian, our order service? "____"', "atlas")
    assert not guard.asks_the_same("Which team owns Meridian, our order service?", "Boreas")
    assert not guard.asks_the_same("Who looks after Meridian?", "Atlas")


PORTS = {
    name: f"# Port of {name}\n\nThe harbour of the town was built in {built} by the merchants of the coast. The "
    f"largest warehouse at the quay holds {barrels} barrels of salted fish. Each spring the council sends two pilots.\n"
    for name, built, barrels in (("Tesudi", 1701, 1200), ("Korvana", 1708, 1237), ("Rindale", 1715, 1422))
}


def test_a_probe_in_other_words_excludes_the_gaps_of_its_fact(tmp_path: Path) -> None:
    for name, text in PORTS.items():
        (tmp_path / f"{name}.md").write_text(text)
    corpus = read_corpus(tmp_path, held_out=0.0)
    before = {p.answer for p in document_questions(tmp_path, corpus)}
    own = [
        Probe("a", "question", "When was Korvana's harbour constructed?", ("in 1708",)),
        Probe("b", "question", "How many barrels fit into Rindale's biggest warehouse?", ("1,422",)),
        Probe("c", "question", "How many moons has Mars?", ("two",)),
    ]
    assert {p.answer for p in document_questions(tmp_path, corpus, exclude=own)} == before - {"1708", "1422"}


def test_a_common_answer_excludes_only_what_shares_a_specific_word(corpus) -> None:
    rarity = Rarity(sentences([Document(f"{n}.md", "Pier", f"The crane {w} of the pier takes two crates.", "x")
                               for n, w in enumerate(CLASSES[0] * 2)], alone=False))  # fmt: skip
    guard = ProbeGuard([Probe("a", "question", "How many crates can the May crane carry?", ("2",))])
    assert guard.states('"The crane May of the pier takes ____ crates."', "two", rarity)
    assert not guard.states('"The crane June of the pier takes ____ crates."', "two", rarity)
    assert not guard.states('"The crane May of the pier takes ____ crates."', "three", rarity)


def test_a_question_file_among_the_documents_is_used(handbook, corpus):
    lines = [
        json.dumps({"question": "Who owns Meridian?", "answer": "Atlas", "source": "services.md"}),
        "{broken",
        json.dumps({"question": "Where is the backup server?", "answer": "Rostvik"}),
    ]
    (handbook / "questions.jsonl").write_text("\n".join(lines))
    problems: list[str] = []
    exclude = [
        Probe("a", "question", "who owns meridian", ("Atlas",)),
        Probe("b", "question", "The backup server stands where?", ("Rostvik",)),  # the same fact in other words
    ]
    found = document_questions(handbook, corpus, exclude=exclude, problems=problems)
    assert [(p.text, p.answer, p.kind) for p in found] == [("Where is the backup server?", "Rostvik", "knowledge")]
    assert problems and problems[0].startswith("questions.jsonl line 2")
