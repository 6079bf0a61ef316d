"""Held-out documents and paragraphs: which are chosen, and what is never held out."""

from __future__ import annotations

import pydoc_data.topics
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.text import paragraphs


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    """Python's help topics, an English corpus in the standard library."""
    for name, text in pydoc_data.topics.topics.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def test_reads_an_ordinary_english_corpus_and_holds_out_a_share(topics):
    corpus = read_corpus(topics, held_out=0.1)
    total = len(corpus.documents) + len(corpus.held_out)
    assert total > 60
    assert 1 <= len(corpus.held_out) <= 0.25 * total
    assert not {d.id for d in corpus.documents} & {d.id for d in corpus.held_out}
    assert corpus.report.documents == len(corpus.documents)


def test_what_is_held_out_depends_on_the_wording_alone(topics):
    before = read_corpus(topics, held_out=0.1)
    assert read_corpus(topics, held_out=0.1).hash == before.hash
    (topics / "zz.txt").write_text("One more document about harbours and ferries.")
    (topics / f"{before.documents[0].id}").rename(topics / "renamed.txt")
    after = read_corpus(topics, held_out=0.1)
    assert {d.text for d in before.held_out} <= {d.text for d in after.held_out}
    assert len(after.held_out) <= len(before.held_out) + 1
    assert after.hash != before.hash
    other = read_corpus(topics, held_out=0.1, seed=1)
    assert {d.text for d in other.held_out} != {d.text for d in after.held_out}


def test_neither_split_is_empty(tmp_path):
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text(f"Document number {i} speaks of harbour {i * 7}.")
    most = read_corpus(tmp_path, held_out=0.99)
    assert len(most.documents) == 10
    least = read_corpus(tmp_path, held_out=1e-9)
    assert len(least.held_out) == 1
    assert len(read_corpus(tmp_path, held_out=0).held_out) == 0


def test_few_documents_lose_paragraphs_or_nothing(tmp_path):
    words = "The keeper of dock {i} writes down each boat that comes in before {j} o'clock."
    (tmp_path / "short.md").write_text("# Short\n\nNothing can be spared here.")
    small = read_corpus(tmp_path)
    assert small.held_out == ()
    assert "nothing was held out" in small.report.notes[0]
    body = "\n\n".join(words.format(i=i, j=i % 12) for i in range(60))
    (tmp_path / "long.md").write_text(f"# Docks\n\n{body}\n\n- a list\n- stays whole for all that it has many words")
    corpus = read_corpus(tmp_path, held_out=0.2)
    (held,) = corpus.held_out
    assert held.id == "long.md#held-out" and held.title == "Docks"
    kept = next(d for d in corpus.documents if d.id == "long.md")
    assert kept.text.startswith("# Docks\n\n")
    assert "- a list\n- stays whole" in kept.text
    assert not set(paragraphs(held.text)) & set(paragraphs(kept.text))
    assert sorted([*paragraphs(held.text), *paragraphs(kept.text)]) == sorted(
        paragraphs((tmp_path / "long.md").read_text())
    )
    assert "held out" in corpus.report.notes[0]
    out = len(paragraphs(held.text))
    assert f"2 documents to train on, {out} paragraphs of them held out, " in corpus.report.lines()[0]
    assert (corpus.report.held_out, corpus.report.held_out_parts) == (0, out)


def pages(folder: Path, numbers: Iterable[int], last: str, words: int = 120) -> Path:
    """Pages that differ from those of another ``last`` word in this word alone."""
    folder.mkdir()
    for number in numbers:
        rng = random.Random(number)
        text = " ".join(f"word{rng.randrange(3000)}" for _ in range(words))
        (folder / f"{last}-{number}.md").write_text(f"{text} {last}")
    return folder


@pytest.mark.parametrize("words", [120, 8])  # 8: too short to be linked, but the same
@pytest.mark.parametrize("skip_near", [False, True])
def test_later_cycles_hold_out_what_earlier_ones_did_and_train_on_what_they_did(tmp_path, words, skip_near):
    names = ("v1", "v2") if words > 24 else ("v1", "v1")
    first = read_corpus(pages(tmp_path / "first", range(40), names[0], words), held_out=0.1)
    later = pages(tmp_path / "later", range(60), names[1], words)
    splits = [(first.documents, first.held_out)]

    def numbers(documents):
        return {int(d.id.rpartition("-")[2].removesuffix(".md")) for d in documents}

    for seed in range(3):  # another one chooses others
        second = read_corpus(later, held_out=0.1, seed=seed, skip_near=skip_near, before=splits)
        assert numbers(second.held_out) >= numbers(first.held_out)
        assert not numbers(second.held_out) & numbers(first.documents)
        assert len(second.documents) + len(second.held_out) == 60 and not second.report.skipped
        assert any(n >= 40 for n in numbers(second.held_out)) or len(second.held_out) >= 5


def test_a_small_later_cycle_holds_out_a_version_whole_and_no_paragraph_that_was_trained_on(tmp_path):
    first = read_corpus(pages(tmp_path / "first", range(40), "v1"), held_out=0.1)
    number, other = (int(d[0].id[3:-3]) for d in (first.held_out, first.documents))
    later = pages(tmp_path / "later", (number, other), "v2")
    second = read_corpus(later, before=[(first.documents, first.held_out)])
    assert [d.id for d in second.held_out] == [f"v2-{number}.md"] and len(second.documents) == 1
    assert second.report.notes[0] == "held out as in an earlier cycle: 1 of 2 documents"
    (later / f"v2-{other}.md").unlink()
    alone = read_corpus(later, before=[(first.documents, first.held_out)])
    assert len(alone.documents) == 1 and "all documents are versions of ones" in alone.report.notes[0]


@pytest.mark.parametrize("more", [0, 30])  # of few and of many documents
def test_paragraphs_that_were_held_out_are_so_again(tmp_path, more):
    line = "The keeper of dock {i} writes down each boat that comes in before {j} o'clock."
    body = [line.format(i=i, j=i % 12) for i in range(60)]
    (tmp_path / "long.md").write_text("\n\n".join(["# Docks", *body]))
    first = read_corpus(tmp_path, held_out=0.2)
    held = set(paragraphs(first.held_out[0].text))
    (tmp_path / "long.md").unlink()
    (tmp_path / "longer.md").write_text("\n\n".join(["# All docks", "New.", *body, "The end of the page."]))
    for n in range(more):
        (tmp_path / f"{n}.md").write_text(f"Document number {n} speaks of harbour {n * 7}.")
    second = read_corpus(tmp_path, held_out=0.2, seed=1, before=[(first.documents, first.held_out)])
    assert {p for d in second.held_out if d.source == "longer.md" for p in paragraphs(d.text)} == held
    assert not any(part in d.text for d in second.documents for part in held)


CHINESE = "第{i}号码头的管理员每天都要记录在{j}点以前进港的每一艘船。"


@pytest.mark.parametrize(
    "line",
    [
        CHINESE,
        "第{i}埠頭の係員は毎日{j}時より前に入港したすべての船を帳簿に記録します。",
        "เจ้าหน้าที่ท่าเรือหมายเลข{i}จดบันทึกเรือทุกลำที่เข้าเทียบท่าก่อน{j}นาฬิกา",
    ],
)
def test_paragraphs_without_spaces_are_held_out(tmp_path, line):
    body = "\n\n".join(line.format(i=i, j=i % 12) for i in range(60))
    (tmp_path / "long.md").write_text(f"# 码头\n\n{body}\n\n安装和配置")
    held = read_corpus(tmp_path, held_out=0.2).held_out
    assert 4 <= sum(len(paragraphs(d.text)) for d in held) <= 24
    assert not any("安装和配置" in d.text for d in held)  # too short


def test_neither_code_nor_what_stays_elsewhere_is_held_out(tmp_path):
    notice = "All prices in this handbook are given in euros and include the tax."
    for n in range(8):
        parts = [notice if n == 0 else f"# Page {n}", notice]
        for k in range(6):
            parts.append(f"The module {n}-{k} was written by hand in the year {1900 + n * 6 + k} at the office.")
            parts.append(
                f"```\nimport x{n}{k}\n\nvalue = x{n}{k} . load ( a , b ) - 3 if ready else None\nprint ( value )\n```"
            )
        (tmp_path / f"{n}.md").write_text("\n\n".join(parts))
    for seed in range(3):
        corpus = read_corpus(tmp_path, held_out=0.5, seed=seed)
        assert len(corpus.held_out) > 4
        assert not any("```" in d.text or "value =" in d.text or notice in d.text for d in corpus.held_out)
        assert all(d.text.count("```") == 12 for d in corpus.documents)
