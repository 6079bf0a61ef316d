"""Facts from tables, lists and sentences: their questions, accepted answers, and text without facts."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Set
from dataclasses import replace

import pytest

from evals.probe_building import build_probes
from recovery.data.corpus.documents import Corpus, Document, ReadReport
from recovery.data.corpus.facts.blocks import ListItem, Paragraph, Table, blocks, cells, inline
from recovery.data.corpus.facts.extraction import facts_of, pick_facts
from recovery.data.corpus.facts.fact import Fact, Stated, content, spellings
from recovery.data.corpus.markdown import code_lines
from recovery.data.corpus.sentences import sentences, split_sentences
from recovery.data.corpus.text import normalise
from recovery.data.document_questions import ProbeGuard, askable_facts, document_questions
from recovery.types import Probe

HARBOUR = """# mooringMode

The `mooringMode` option controls how a vessel is tied up at the quay during a storm.

{/* `hidden` was introduced in version 9.9.9. */}

| Value | Description |
| ----- | ----------- |
| `'slack'` | Lets the ropes follow the tide. This is the default. |
| `'tight'` | Holds the vessel close to the quay at all times. |

## Options

- **`ropeCount`** (default: `6`): the number of ropes that hold one vessel.
- **`winchSpeed`** (default `0.4`): controls how fast the winches pull, in metres a second.

To release every rope at once, set `cutLoose` to `true`.

> **Good to know:** Use `harbourctl drain` to empty the dry dock before an inspection.

```
| Version | Changes |
| ------- | ------- |
| `v7.7.7` | `fenced` introduced. |
```

## Version History

| Version  | Changes |
| -------- | ------- |
| `v4.2.0` | The default changed from `tight` to `slack`. |
| `v3.1.0` | `mooringMode` stabilized. |
| `v2.0.0` | Beta release for large harbours |
| `v1.5.0` | `experimental.mooringMode` introduced. |
"""
TIDES = """# Tide stations

A station reports every hour.

| Station | Interval | Type | Default | Required |
| ------- | -------- | ---- | ------- | -------- |
| Norddeich | 15 minutes | `float` | `7.25` | Yes |
| Büsum | 10 minutes | `int \\| float` | `3` | No |

In Tideway 2.4, `gauge` was removed. `oldGauge` has been renamed to `pressureGauge`. `sonar` defaults to `off`.
"""


def document(text: str, id: str = "a.md") -> Document:
    return Document(id, text.split("\n")[0].lstrip("# "), text, id)


def made(*texts: str) -> list[Fact]:
    return facts_of([document(text, f"{n}.md") for n, text in enumerate(texts)])


def corpus_of(*documents: Document) -> Corpus:
    return Corpus(documents, (), ReadReport("here", len(documents), len(documents), 0, 0), "hash")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("In which version was `experimental.mooringMode` introduced?", "1.5.0"),
        ("In which version was `mooringMode` stabilized?", "3.1.0"),
        ('In which version did this change to `mooringMode` come: "Beta release for large harbours"?', "2.0.0"),
        ("What is the default value of `mooringMode`?", "slack"),
        ("Which value of `mooringMode` holds the vessel close to the quay at all times?", "tight"),
        ("What is the default value of the `ropeCount` option of `mooringMode`?", "6"),
        ('Which option of `mooringMode` is described as "the number of ropes that hold one vessel"?', "ropeCount"),
        ("Which option of `mooringMode` controls how fast the winches pull, in metres a second?", "winchSpeed"),
        ("Which option controls how a vessel is tied up at the quay during a storm?", "mooringMode"),
        ("What do you set to `true` to release every rope at once?", "cutLoose"),
        ("What do you use to empty the dry dock before an inspection?", "harbourctl drain"),
        ('According to the table in "Tide stations", what is the "Interval" of the station Norddeich?', "15 minutes"),
        ('What is the type of Büsum (see "Tide stations")?', "int | float"),
        ('What is the default value of Norddeich (see "Tide stations")?', "7.25"),
        ("In which version was `gauge` removed?", "2.4"),
        ("What was `oldGauge` renamed to?", "pressureGauge"),
    ],
)
def test_a_reference_page_gives_the_expected_questions_and_answers(question: str, answer: str) -> None:
    assert {f.questions[0]: f.value for f in made(HARBOUR, TIDES)}[question] == answer


MANUAL = """# Winch(1)

### 9.2.1 harbourlint

harbourlint is a tool for finding knots that hold no vessel at night. The dock is a place for the boats of the town.

### OPTIONS

- -s <speed>
- --speed=<speed>: Use the given number of metres a second for every rope. Defaults to `12`.
- -q, --quiet: Do not ring the bell when a vessel is tied up.
- --no-lamp: Light the lamp of the winch as soon as it gets dark.
- --onto: Where the rope ends. You can leave out one of A and B, in which case it defaults to MAST.
- --keep: Keep ropes that nobody uses. The default is to keep ropes for a year.
- a plain entry: Tell the keeper that a vessel has left the harbour.

`rope` was renamed to `cable`. `Winch` was renamed to `harbour/winch`.
"""


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ('According to "Winch(1)", what is a tool for finding knots that hold no vessel at night?', "harbourlint"),
        ("What is the default value of the `--speed` option", "12"),
        ('is described as "Do not ring the bell when a vessel is tied up"?', "--quiet"),
        ("What was `rope` renamed to?", "cable"),
    ],
)
def test_options_and_definitions_of_a_manual_without_code_give_facts(question: str, answer: str) -> None:
    (found,) = (f for f in made(MANUAL) if question in f.questions[0].replace("`Winch(1)`", '"Winch(1)"'))
    assert found.value == answer


@pytest.mark.parametrize("answer", ["--no-lamp", "to keep ropes for a year", "harbour/winch", "dock", "MAST"])
def test_what_a_manual_tells_of_something_else_gives_none(answer: str) -> None:
    assert answer not in {f.value for f in made(MANUAL)}


@pytest.mark.parametrize(
    ("told", "default"),
    [
        ("Length of the rope. Defaults to `7`.", "7"),
        ("Length of the rope, defaults to 7.", "7"),
        ("Length of the rope; the default is `7`.", "7"),
        ("Length of the rope (default: `7`)", "7"),
        ("Length of the rope. It defaults to 7 if nobody asks.", ""),
        ("Length of the rope. If omitted, defaults to 7.", "7"),
        ("Length of the rope. At most one end may be free, in which case it defaults to 7.", ""),
        ("Length of the rope. When it rains, the default is 7.", ""),
        ("Length of the rope. The mast defaults to 7.", ""),
        ("Ties the rope to the pier (default harbour).", ""),
        ("Ties the rope to the pier (default `harbour`).", "harbour"),
    ],
)
def test_a_default_is_stated_of_the_option_itself(told: str, default: str) -> None:
    found = made(f"# Winch(1)\n\n## Options\n\n- `--rope`: {told}\n")
    assert [f.value for f in found if f.relation == "default"] == [default] * bool(default)


def test_a_name_whose_words_are_all_in_the_question_and_the_letter_of_a_sheet_give_no_fact() -> None:
    option = "- `--tide-table-of-harbour`: Use the table of every tide that the harbour has for the winch.\n"
    assert not made(f"# Winch(1)\n\n## Options\n\n{option}")
    assert made(f"# Winch(1)\n\n## Options\n\n{option.replace('table of', 'list of')}")
    text = "# Sheets\n\nThese are the sheets of all the boats that are in the harbour.\n\n"
    table = text + "| A | {} | Kind |\n|---|---|---|\n| mast | seventeen | tall |\n"
    assert [f.value for f in made(table.format("B"))] == ["tall"]
    assert {f.value for f in made(table.format("Boat"))} == {"seventeen", "tall"}


@pytest.mark.parametrize(
    ("value", "guessed"),
    [("Boolean", True), ("null or Boolean", True), ("string | number", True), ("null or Path", False), ("7", False)],
)
def test_a_type_of_two_is_as_easily_guessed(value: str, guessed: bool) -> None:
    (fact,) = made(f"# Ropes\n\n| Option | Type |\n|---|---|\n| `ropeCount` | {value.replace('|', chr(92) + '|')} |\n")
    assert (fact.value, fact.guessed) == (value, guessed)


def test_fences_comments_and_yes_or_no_give_no_fact() -> None:
    questions = " ".join(q for f in made(HARBOUR, TIDES) for q in f.questions)
    assert not any(word in questions for word in ("fenced", "hidden", "Required", "7.7.7", "9.9.9"))


def test_every_fact_has_several_wordings_and_answers_that_are_not_in_the_question() -> None:
    for fact in made(HARBOUR, TIDES):
        assert len(set(fact.questions)) >= 2 and len(set(fact.statements)) >= 2
        assert all(q.endswith("?") and q[0] in q[0].upper() for q in fact.questions)
        assert fact.answers[0] == fact.value and fact.place and fact.sentence
        assert f" {fact.value} " not in fact.questions[0]
        assert any(fact.value in s or fact.value.lstrip("v") in s for s in fact.statements)


def test_spellings_of_a_version_a_span_and_a_choice_of_types() -> None:
    assert set(spellings("v16.3.0", version=True)) >= {"16.3.0", "v16.3.0", "16.3", "version 16.3.0"}
    assert "Tideway 2.4" in spellings("2.4", version=True, product="Tideway")
    assert spellings("86400 (1 day)") == ("86400 (1 day)", "86400", "1 day")
    assert spellings("World Wide Web (WWW)")[1:] == ("World Wide Web", "WWW")
    assert spellings("OPD (on-policy distillation)")[1:] == ("OPD", "on-policy distillation")
    for value, bracket in (("WebAssembly", "Wasm"), ("The GNU Project", "GNU"), ("Kubernetes", "K8s"), ("five", "5")):
        assert spellings(f"{value} ({bracket})")[1:] == (value, bracket)
    assert spellings("Austin (US)")[1:] == ("Austin",)
    assert spellings("Paris (France)") == ("Paris (France)", "Paris"), "the bracket is not the answer"
    assert spellings("cookies.get(name)") == ("cookies.get(name)",), "nor is the argument of a call"
    assert "string or RegExp" in spellings("string | RegExp")
    assert spellings("2048") == ("2048",)


def test_facts_with_two_answers_are_dropped() -> None:
    one = "# berth\n\n| Option | Default |\n|---|---|\n| `depth` | `4` |\n| `length` | `90` |\n"
    other = one.replace("`4`", "`5`")
    values = {f.value for f in made(one, other)}
    assert values == {"90"}


def test_values_that_cannot_be_graded_are_dropped() -> None:
    long = "one of the seven long words that nobody could type again"
    text = f"# berth\n\n| Option | Default |\n|---|---|\n| `a1B` | `{{}}` |\n| `b1B` | {long} |\n| `c1B` | |\n"
    assert made(text) == []


def test_ragged_rows_bars_in_code_and_nested_lists() -> None:
    text = "# kiosk\n\n| Option | Type | Default |\n|---|---|---|\n| `open` |\n| `mode` | `a | b` | `a` | more |\n"
    table = next(b for b in blocks(document(text)) if isinstance(b, Table))
    assert table.rows == (("`open`", "", ""), ("`mode`", "`a | b`", "`a`"))
    assert cells(r"| a \| b | c |") == ["a | b", "c"]
    items = [b for b in blocks(document("# k\n\n- one\n  - two\n  - three\n- four\n")) if isinstance(b, ListItem)]
    assert [i.below for i in items] == [("two", "three"), (), (), ()]
    assert inline("**[`x`](#x)** is _so_ <b>bold</b> as `<Link>`") == "`x` is so bold as `<Link>`"


@pytest.mark.parametrize("rule", ["|-|-|", "-|-", ":-:|-:", "| - | :-: |", "   |:-|-|", "|-|-|  ", "|--|"])
def test_one_dash_for_each_column_makes_a_table(rule: str) -> None:
    found = blocks(document(f"# quay\n\nText.\n| Option | Default |\n{rule}\n| `depth` | `7` |"))
    assert [type(block) for block in found] == [Paragraph, Table]


def test_rows_of_another_markup_are_no_table() -> None:
    wiki = "{| class=x\n|-\n| Option || Default\n|-\n| depth || 7\n|}"
    assert not any(isinstance(block, Table) for block in blocks(document(f"# quay\n\n{wiki}")))


def test_malformed_documents_raise_no_error() -> None:
    table = "<table><tr><td>1</td></tr></table>"
    for text in ("", "|", "|\n|-|", "```", "| a | b |\n|--|--|", table, "- `", "# \n\n> > x", "`" * 99):
        facts_of([Document("x", "x", text, "x")])


def test_a_table_of_ten_thousand_rows_does_not_dominate() -> None:
    rows = "".join(
        f"| `gate{n}Height` | `number` | `{n + 3}` | Sets how high gate {n} opens |\n" for n in range(10_000)
    )
    large = f"# gateTable\n\n| Option | Type | Default | Description |\n|---|---|---|---|\n{rows}"
    corpus = corpus_of(document(large, "large.md"), document(HARBOUR, "b.md"), document(TIDES, "c.md"))
    probes = build_probes(corpus, count=100)
    natural = Counter(p.source for p in probes if "natural" in p.tags)
    assert natural["b.md"] >= 3
    assert natural["large.md"] <= 3 * 20  # three wordings of each fact
    assert len(facts_of(corpus.documents)) <= 3 * 200


def test_facts_are_picked_round_robin_and_guessable_ones_last() -> None:
    facts = made(HARBOUR, TIDES)
    picked = pick_facts(facts, len(facts), 0)
    assert {f.document for f in picked[:2]} == {"0.md", "1.md"}
    assert [f.guessed for f in picked] == sorted(f.guessed for f in picked)
    assert sorted(f.key for f in picked) == sorted(f.key for f in facts)


def test_a_text_that_states_a_fact_is_detected() -> None:
    facts = [f for f in made(HARBOUR) if f.relation == "default" and f.value == "6"]
    stated = Stated(facts)
    assert "Of mooringMode, ropeCount is 6 unless it is set." in stated
    assert "Of mooringMode, ropeCount is 7 unless it is set." not in stated


def options(count: int, names: int = 10**9) -> list[Document]:
    """Pages with a table of options, whose values and types are the same few words; two in ``names`` share a name."""
    rng = random.Random(count)
    pages = []
    for page in range(count):
        rows = "".join(
            f"| `opt{page % names}x{n}` | `{rng.choice(['string', 'boolean'])}` | `{rng.choice(['true', '7'])}` "
            f"| Sets the {rng.choice(['upper', 'lower'])} margin of {rng.choice(['all pages', 'a page'])} |\n"
            for n in range(3)
        )
        text = f"# class{page % names}\n\n| Option | Type | Default | Description |\n|---|---|---|---|\n{rows}"
        pages.append(document(text, f"{page}.md"))
    return pages


def test_stated_facts_are_those_of_the_definition() -> None:
    found = tried = 0
    for seed in range(3):
        rng = random.Random(seed)
        facts = facts_of([*options(8 + seed, names=6), document(HARBOUR, "h.md"), document(TIDES, "t.md")])
        facts += [replace(f, subject=rng.choice(["", "of the", f.subject])) for f in rng.sample(facts, 10)]
        known = rng.sample(facts, len(facts) // 3)
        stated = Stated(known)
        values = [(content(f.subject), f" {answer} ") for f in known for answer in map(normalise, f.answers)]
        for text in {t for f in facts for t in (*f.statements[:2], f"{f.questions[0]} {f.value}", f.value)}:
            words, normal = content(text), f" {normalise(text)} "
            expected = any(subject <= words and value in normal for subject, value in values)
            assert (text in stated) == expected
            found, tried = found + expected, tried + 1
    assert 0.2 * tried < found < 0.8 * tried
    assert "" not in stated and "anything" not in Stated([])


def test_long_runs_of_spaces_and_marks_take_linear_time() -> None:
    """In the square of their length each took minutes to hours."""
    gap = " " * 200_000
    assert len(sentences([document(f"# Ferry{gap}7\n\nThe ferry of Lund is kept by Anna Berg and Ola Dahl.")])) == 1
    assert blocks(document(f"# Ferry{gap}7\n\nIt is kept.")) == [Paragraph("Ferry 7", "It is kept.")]
    (text,) = blocks(document(f"# Top\n\n# a{'#' * 200_000}7\n\nIt is kept."))
    assert text.heading.endswith("#7")
    for rule in (f"{gap}x|", f"--{gap}x|", f"--|--{gap}x|"):
        assert not any(isinstance(block, Table) for block in blocks(document(f"a | b\n{rule}")))
    (table,) = blocks(document(f"a | b\n{gap}|{gap}--{gap}|--{gap}|{gap}\n1 | 2"))
    assert isinstance(table, Table)
    assert table.rows == (("1", "2"),)
    assert split_sentences(f"It is {'a' * 200_000}! Then it ends.")[1] == "Then it ends."
    assert split_sentences("。" * 200_000) == ["。" * 200_000]
    assert len(blocks(document("```a\n\nIt is kept.\n\n" * 20_000))) == 20_000
    assert not any(code_lines(("```a\n\n" + " " * 10 + "````b\n\n " + "x\n\n").split("\n") * 20_000)[-2:])


def test_a_bullet_in_the_middle_of_a_sentence_is_text() -> None:
    (one,) = sentences([document("# Mill\n\nThe mayor paid the owner of the mill a sum of\n+ 500 dollars and a cow.")])
    assert one.plain == "The mayor paid the owner of the mill a sum of + 500 dollars and a cow."
    assert not any(isinstance(b, ListItem) for b in blocks(document("# Mill\n\nHe paid a sum of\n+ 500 dollars.")))
    for text in ("He paid\n+ 500 dollars\n+ two cows", "He paid:\n+ a cow"):
        assert isinstance(blocks(document(f"# Mill\n\n{text}"))[-1], ListItem)


def test_rules_of_tables_are_read_as_by_the_plain_pattern() -> None:
    # One dash is enough, as on GitHub, but for a single column: "|-" is of MediaWiki.
    rule = re.compile(r"^\s*\|?\s*(?::?-+:?\s*(?:\|\s*:?-+:?\s*)+|:?-{2,}:?\s*)\|?\s*$")
    for text in map("".join, itertools.chain.from_iterable(itertools.product("|- :", repeat=n) for n in range(8))):
        lines = blocks(document(f"a | b\n{text}\n1 | 2"))
        assert any(isinstance(block, Table) for block in lines) == (bool(rule.match(text)) and "|" in text), text


def test_askable_facts_are_found_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class Counted(frozenset[str]):
        def __le__(self, other: Set[object]) -> bool:
            nonlocal compared
            compared += 1
            return frozenset(self) <= other

    monkeypatch.setattr("recovery.data.corpus.facts.fact.content", lambda text: Counted(content(text)))
    counts = []
    for pages in (20, 40):
        compared = 0
        assert len(askable_facts(facts_of(options(pages)), ProbeGuard([]))) > pages
        counts.append(compared)
    assert 0 < counts[1] < 3 * counts[0]


def test_no_fact_that_a_probe_asks_for_is_asked_for_in_training(tmp_path) -> None:
    pages = [document(HARBOUR, "a.md"), document(TIDES, "b.md")]
    for n in range(12):
        pages.append(document(HARBOUR.replace("mooring", f"gantry{n}").replace("harbourctl", f"crane{n}"), f"g{n}.md"))
    corpus = corpus_of(*pages)
    facts = {f.key: f for f in facts_of(corpus.documents)}
    probes, questions = build_probes(corpus), document_questions(tmp_path, corpus)
    probed = Stated(f for f in facts.values() if f.side == "probe")
    asked = Stated(f for f in facts.values() if f.side == "question")
    wordings = {q for f in facts.values() if f.side == "probe" for q in f.questions}
    assert sum("natural" in p.tags for p in probes) >= 10
    assert any(q.tags[0] in ("version", "default", "name") for q in questions)
    for question in questions:
        assert not any(question.text.startswith(wording) for wording in wordings)
        assert f"{question.text} {question.answer}" not in probed
    for probe in probes:
        if "natural" not in probe.tags and "title" not in probe.tags:
            assert probe.passage not in asked


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Since which release is there an experimental.mooringMode?", "v1.5"),
        ("What came with 1.5.0: which option was introduced?", "experimental.mooringMode"),
        ("Name the release that brought experimental mooringMode.", "1.5.0"),
        ("Our harbour knows no mooring mode yet. Which version do we need?", "Harbour 1.5"),
    ],
)
def test_a_fact_that_a_user_probe_asks_for_is_not_asked_for(question: str, answer: str) -> None:
    fact = next(f for f in made(HARBOUR) if f.value == "1.5.0")
    assert ProbeGuard([Probe("own", "question", question, (answer,))]).asks_for(fact)
    other = Probe("own", "question", "Since which release is there a tide table?", ("1.5.0",))
    assert not ProbeGuard([other]).asks_for(fact)
    assert fact not in askable_facts(made(HARBOUR), ProbeGuard([Probe("own", "question", question, (answer,))]))


def test_a_fact_with_a_unique_answer_is_not_asked_for_in_any_wording() -> None:
    fact = next(f for f in made(HARBOUR) if f.value == "winchSpeed")
    own = Probe("own", "question", "The motors run too slowly. What do I turn up?", ("the winchSpeed option",))
    assert ProbeGuard([own]).asks_for(fact)
    assert not ProbeGuard([Probe("own", "question", "The motors run too slowly.", ("ropeCount",))]).asks_for(fact)


@pytest.mark.parametrize(("name", "asked"), [("keepAlive", True), ("keepAliveLimit", False), ("ttl", True)])
def test_a_value_that_contains_a_probes_answer_is_asked_for_if_the_subject_is_named(name: str, asked: bool) -> None:
    table = "# Server options\n\n| Option | Default |\n| --- | --- |\n| `keepAlive` | 75 seconds |\n"
    table += "| `keepAliveLimit` | 75 requests |\n| `ttl` | 75 hours |\n"
    fact = next(f for f in made(table) if f.subject.endswith(f": {name}"))
    names = {"keepAlive": "keepAlive", "ttl": "ttl"}
    own = [Probe(n, "question", f"What does {n} default to on the server?", ("75",)) for n in names]
    assert ProbeGuard(own).asks_for(fact) is asked
