"""Near-duplicates: found by similarity in linear time, counted by default, left out on request."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path

import pytest

from recovery.data.corpus.documents import Corpus, Document, ReadReport, sampled
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.holdout import LEAST, NearDuplicates, contained, hold_out, in_common
from recovery.data.corpus.text import normalise, paragraphs, running_words, share

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


def revised(page: int, count: int = 6, changed: int = 3) -> list[list[str]]:
    """Versions of a text of 300 words, each with some other words than the one before."""
    rng, words = random.Random(page), text(page, 300)
    found = []
    for _ in range(count):
        found.append(list(words))
        for _ in range(changed):
            words[rng.randrange(len(words))] = rng.choice(WORDS)
    return found


@pytest.mark.parametrize("order", range(4))
def test_groups_are_the_texts_that_are_linked_and_near_duplicates_those_like_an_earlier_one(order: int) -> None:
    texts = {f"{page}-{n}": words for page in range(4) for n, words in enumerate(revised(page, 12))}
    names = list(texts)
    random.Random(order).shuffle(names) if order else None
    near, alone, groups = NearDuplicates(), [], {name: {name} for name in names}
    for at, name in enumerate(names):
        found = near.find(name, " ".join(texts[name]))
        like = [first for first in alone if similarity(texts[first], texts[name]) >= LEAST]
        assert (found in like) if like else found is None
        alone += [] if like else [name]
        for other in names[:at]:
            if similarity(texts[other], texts[name]) >= LEAST and groups[other] is not groups[name]:
                merged = groups[other] | groups[name]
                groups |= dict.fromkeys(merged, merged)
    assert len(alone) > 8  # near-duplicates of near-duplicates alone are none
    expected = {name: min(group, key=names.index) for name, group in groups.items() if len(group) > 1}
    assert near.groups() == expected


def test_many_pages_of_one_template_are_compared_with_few() -> None:
    """Each has 82% of its sequences in common with any other."""
    frame, compared = text(0, 300), 0

    class Counting(NearDuplicates):
        def _is_similar(self, number, hashes):  # type: ignore[no-untyped-def]
            nonlocal compared
            compared += 1
            return super()._is_similar(number, hashes)

    near = Counting()
    for page in range(100):
        words = [*frame, *text(page + 1, 28)]
        assert near.find(str(page), " ".join(words)) is None
    assert not near.groups() and compared <= 32 * 100


JAPANESE = "港の管理事務所は毎朝七時に開き、入港したすべての船の名前を帳簿に記録しています。"
CHINESE = "港口管理处每天早上七点开门，把当天进港的每一艘船的名字都登记在册子上。"
THAI = "สำนักงานท่าเรือเปิดทำการทุกเช้าเวลาเจ็ดนาฬิกาและจดชื่อเรือทุกลำที่เข้าเทียบท่า"


def unspaced(seed: int, line: str, mixed: str = "") -> str:
    """A text of 20 lines with characters of ``line`` in another order."""
    rng = random.Random(seed)
    return "\n".join("".join(rng.sample(line, len(line))) + mixed for _ in range(20))


@pytest.mark.parametrize("line", [JAPANESE, CHINESE, THAI])
@pytest.mark.parametrize("mixed", ["", " by the Recovery Toolkit 2.0 ", "（API）"])
def test_near_duplicates_are_found_where_no_spaces_are_written_between_words(line: str, mixed: str) -> None:
    near = NearDuplicates()
    whole = unspaced(0, line, mixed)
    assert near.find("whole", whole) is None
    assert [near.find(str(n), unspaced(n, line, mixed)) for n in range(1, 40)] == [None] * 39
    changed = whole.replace(whole[100:103], "船港年", 1)
    assert near.find("changed", changed) == "whole" and near.find("rewrapped", changed.replace("\n", "")) == "whole"
    assert near.find("other half", whole[: len(whole) // 2] + unspaced(99, line, mixed)) is None
    assert in_common(whole, changed) > 0.95 > 0.2 > in_common(whole, unspaced(1, line, mixed))
    assert contained(whole, whole[:400] + unspaced(5, line)) < 0.98 < contained(whole, whole[:400])


@pytest.mark.parametrize(
    "spaced",
    [
        "The ferry leaves",
        "Паром уходит в полдень",
        "페리는 정오에 출발합니다",
        "تغادر العبارة ظهرا",
        "नौका दोपहर में जाती है",
    ],
)
def test_text_with_spaces_is_compared_by_its_words(spaced: str) -> None:
    assert running_words(spaced) == spaced.split()


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


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("as_rows", [False, True])
def test_no_neighbouring_version_of_a_held_out_text_is_trained_on(tmp_path: Path, skip: bool, as_rows: bool) -> None:
    """Each version is like the next one; the first and the third are not near-duplicates. Files, and records of one."""
    for page in range(10):
        for n, words in enumerate(revised(page)):
            if as_rows:
                with (tmp_path / "pages.jsonl").open("a") as file:
                    file.write(json.dumps({"text": " ".join(words), "title": f"{page}"}) + "\n")
            else:
                (tmp_path / f"{page}-{n}.txt").write_text(" ".join(words))
    for seed in range(3):
        split = read_corpus(tmp_path, held_out=0.1, seed=seed, skip_near=skip)
        held, kept = ([d.text for d in side] for side in (split.held_out, split.documents))
        assert held and max(in_common(one, other) for one in held for other in kept) < 0.5
        assert skip or len(held) + len(kept) == 60


def test_of_few_documents_no_paragraph_is_held_out_that_another_version_words_otherwise(tmp_path: Path) -> None:
    rng = random.Random(0)
    pages = {
        page: [" ".join(["Para", *rng.choices(WORDS, k=rng.choice((12, 60)))]) for _ in range(40)] for page in "abc"
    }
    for page, parts in pages.items():
        for version in ("v1", "v2", "v3"):
            (tmp_path / f"{page}-{version}.md").write_text("\n\n".join(parts))
            parts[rng.randrange(1, 40)] += f" in {version}"
            parts.insert(rng.randrange(1, 40), " ".join(["Only", version, *rng.choices(WORDS, k=15)]))
    for seed in range(2):
        split = read_corpus(tmp_path, held_out=0.3, seed=seed)
        held = {part for d in split.held_out for part in paragraphs(d.text)}
        kept = {part for d in split.documents for part in paragraphs(d.text)}
        assert len(held) > 10 and not held & kept and not any(part.startswith("Only") for part in held)
        assert not any(in_common(one, other) >= LEAST for one in held for other in kept)
        assert not any(
            f"{part} in v{n}" in kept or part.rpartition(" in v")[0] in kept for part in held for n in (1, 2)
        )


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
