"""Near-duplicates: found by similarity in linear time, counted by default, left out on request."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from recovery.data.corpus import Document, read_corpus, sampled
from recovery.data.corpus.documents import Corpus, ReadReport
from recovery.data.corpus.holdout import hold_out
from recovery.data.corpus.near_duplicates import LEAST, NearDuplicates
from recovery.data.corpus.text import normalise, share

WORDS = [f"word{n}" for n in range(3000)]


def text(seed: int, count: int = 400) -> list[str]:
    return random.Random(seed).choices(WORDS, k=count)


def similarity(one: list[str], other: list[str]) -> float:
    """Jaccard similarity of the sets of five-word sequences, by definition."""
    a, b = ({tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (one, other))
    return len(a & b) / len(a | b)


def test_texts_are_found_exactly_where_their_similarity_reaches_the_bound():
    found, expected = 0, 0
    for seed in range(120):
        first = text(seed)
        second = list(first)
        rng = random.Random(1000 + seed)
        for at in rng.sample(range(len(second)), seed % 9):  # 0 to 8 changed words: 1.0 to 0.8
            second[at] = "changed"
        near = NearDuplicates()
        assert near.find("first", " ".join(first)) is None
        reached = similarity(first, second) >= LEAST
        assert (near.find("second", " ".join(second)) == "first") == reached
        found, expected = found + reached, expected + 1
    assert 0.3 * expected < found < 0.9 * expected  # both sides of the bound were tried


def test_a_short_text_is_not_compared_and_many_different_ones_stay():
    near = NearDuplicates()
    assert near.find("a", "six words are not enough here") is None
    assert near.find("b", "six words are not enough here") is None
    assert [near.find(str(seed), " ".join(text(seed))) for seed in range(300)] == [None] * 300


def test_a_text_takes_little_memory_beside_itself() -> None:
    texts = [" ".join(text(seed)) for seed in range(1200)]
    near = NearDuplicates()
    tracemalloc.start()
    for number, one in enumerate(texts):
        assert near.find(str(number), one, normalise(one.upper())) is None
    per_text = tracemalloc.get_traced_memory()[0] / len(texts)
    tracemalloc.stop()
    assert per_text < 2500  # bytes; a copy of a text has about 3500
    assert near.find("copy", f"{texts[7].upper()}, AGAIN!") == "7"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(30):
        (tmp_path / f"{number:02}.md").write_text(" ".join(text(number)), encoding="utf-8")
    copy = text(3)
    copy[100] = "revised"
    (tmp_path / "copy.md").write_text(" ".join(copy), encoding="utf-8")
    return tmp_path


def test_near_duplicates_are_counted_by_default_and_left_out_on_request(folder):
    kept = read_corpus(folder, held_out=0.0)
    (remark,) = kept.report.notes
    assert remark.startswith("1 document is nearly the same as an earlier one") and "copy.md and 03.md" in remark
    assert "--near-duplicates skip" in remark and len(kept.documents) == 31
    without = read_corpus(folder, held_out=0.0, skip_near=True)
    (skipped,) = without.report.skipped
    assert (skipped.path, skipped.reason) == ("copy.md", "nearly the same text as 03.md")
    assert not without.report.notes and without.hash != kept.hash


def versions(folder: Path, pages: int, names: tuple[str, ...]) -> Path:
    """Versions of pages that differ in their last word."""
    for name in names:
        (folder / name).mkdir()
        for page in range(pages):
            (folder / name / f"{page}.md").write_text(" ".join([*text(page, 150), name]), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("pages", "part"), [(40, 0.1), (40, 0.5), (10, 0.05)])
def test_no_version_of_a_held_out_text_is_trained_on(tmp_path: Path, pages: int, part: float) -> None:
    folder = versions(tmp_path, pages, ("v1", "v2"))
    for seed in range(3):
        split = read_corpus(folder, held_out=part, seed=seed)
        held = {d.id for d in split.held_out}
        assert 2 <= len(held) <= pages and len(held) + len(split.documents) == 2 * pages
        assert {i.partition("/")[2] for i in held}.isdisjoint(d.id.partition("/")[2] for d in split.documents)


def test_near_duplicates_move_no_other_text(tmp_path: Path) -> None:
    alone = read_corpus(versions(tmp_path, 60, ("v1",)), held_out=0.2)
    copy = [*text(int(Path(alone.held_out[0].id).stem), 150), "copied"]
    (tmp_path / "v1" / "copy.md").write_text(" ".join(copy), encoding="utf-8")
    both = read_corpus(tmp_path, held_out=0.2)
    assert {d.id for d in both.held_out} == {d.id for d in alone.held_out} | {"v1/copy.md"}
    assert read_corpus(tmp_path, held_out=0.2, skip_near=True).hash == alone.hash


def test_more_near_duplicates_than_are_to_be_held_out_are_trained_on(tmp_path: Path) -> None:
    same = versions(tmp_path, 1, tuple(f"v{n}" for n in range(25)))
    nothing = read_corpus(same)
    assert nothing.held_out == ()
    assert nothing.report.notes[-1] == "all 25 documents are nearly the same: nothing was held out"
    for page in range(1, 20):
        (tmp_path / f"{page}.md").write_text(" ".join(text(page, 150)), encoding="utf-8")
    for seed in range(2):
        split = read_corpus(tmp_path, held_out=0.2, seed=seed)
        assert split.held_out and not any(d.id.startswith("v") for d in split.held_out)


def test_without_near_duplicates_the_split_is_that_of_the_shares() -> None:
    for count, fraction in ((20, 0.01), (20, 0.5), (90, 0.05), (90, 0.3)):
        documents = list(corpus(*(f"text {n} of {count}" for n in range(count))).documents)
        for seed in range(20):
            ranked = sorted(documents, key=lambda d: share(d.text, str(seed)))
            below = sum(share(d.text, str(seed)) < fraction for d in documents)
            expected = {d.id for d in ranked[: max(1, min(below, count // 2))]}
            kept, held, remarks = hold_out(documents, fraction, seed)
            assert [d for d in documents if d.id in expected] == held and not remarks
            assert [d for d in documents if d.id not in expected] == kept


def corpus(*texts: str) -> Corpus:
    documents = tuple(Document(str(n), "", one, str(n)) for n, one in enumerate(texts))
    return Corpus(documents, (), ReadReport("x", len(texts), len(texts), 0, sum(map(len, texts))), "hash")


def test_a_sample_is_chosen_by_wording_and_ends_with_a_line():
    texts = [f"{' '.join(text(seed))}\n" * 3 for seed in range(40)]
    whole = corpus(*texts)
    assert sampled(whole, 10**9) is whole
    part = sampled(whole, 40_000)
    assert 30_000 < sum(len(d.text) for d in part.documents) <= 40_000
    assert all(d.text.endswith("\n") or whole.documents[int(d.id)].text.startswith(d.text) for d in part.documents)
    # The same documents in another order are the same sample.
    turned = sampled(corpus(*reversed(texts)), 40_000)
    assert {d.text for d in turned.documents} == {d.text for d in part.documents}
    (cut,) = sampled(corpus("one line\n" * 1000), 105).documents
    assert cut.text == "\n".join(["one line"] * 11)
