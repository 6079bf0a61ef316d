"""Kinds of answers and the candidates that questions share: from the questions alone."""

from __future__ import annotations

import pytest

from evals.answer_matching import FEWEST_ANSWERS, MOST_CANDIDATES, OTHER, candidates_of, contains, kind_of
from recovery.types import Probe

FORMS = {
    "version": ("v16.3.0", "16.3.0", "v22", "Version 3.1", "2.0.0-rc.1", ">=18.17.1", "^5.1.0"),
    "number": ("42", "1,500", "0.1", "-3", "200 ms", "10MiB", "95%", "$40", "10:30", "four", "Ten seconds", "1 500"),
    "path": "next/cache /etc/hosts package.json C:\\Temp https://a.example/b .next/dev/ loading.tsx".split(),
    "flag": ("--no-lint", "-v", "--omit=dev", "--yes false"),
    "identifier": ("useRouter", "NEXT_SALT", "after()", "expire", "bottom-left", "<style>", "x-powered-by", "true"),
    "name": ("Oslo", "Bodø", "Flat Config", "University of Bergen", "React 19", "NASA", "東京", "Ludwig van Beethoven"),
    "sentence": ("the client router", "It is removed.", "when the server starts", "起動したときに削除される。"),
}


@pytest.mark.parametrize(("kind", "answer"), [(kind, answer) for kind, of in FORMS.items() for answer in of])
def test_the_kind_follows_from_the_form(kind: str, answer: str) -> None:
    assert kind_of(answer) == kind
    assert kind_of(f" `{answer}`") == kind


def probe(id: str, *answers: str, control: bool = False) -> Probe:
    return Probe(id, "question", f"Question {id}?", answers, source=f"page {id}", control=control)


def test_candidates_are_the_different_answers_of_a_kind() -> None:
    probes = [probe(f"v{n}", f"v{n}.0.0", f"{n}.0.0") for n in range(9)] + [probe("again", "v3.0.0")]
    probes += [probe("names", "Oslo"), probe("control", "v99.0.0", control=True)]
    found = candidates_of(probes)
    assert found.keys() == {f"v{n}" for n in range(9)} | {"again"}, "one name is too few for a kind or the others"
    assert len({one.texts for one in found.values()}) == 1
    assert set(found["v1"].texts) == {f"v{n}.0.0" for n in range(9)}
    assert all(found[f"v{n}"].texts[found[f"v{n}"].right[0]] == f"v{n}.0.0" for n in range(9))
    assert found["again"].right == found["v3"].right


def test_what_is_right_for_a_question_is_known() -> None:
    towns = ("Oslo", "Bergen", "Moss", "Alta", "Hamar", "Molde", "Bodø")
    probes = [probe(f"t{n}", town) for n, town in enumerate(towns)]
    probes += [probe("two", "Port of Oslo", "Alta"), probe("same", "OSLO")]
    found = candidates_of(probes)
    assert [found["two"].texts[at] for at in found["two"].right] == ["Port of Oslo", "Alta"]
    assert found["same"].right[0] == found["t0"].right[0]
    assert [found["same"].texts[at] for at in found["same"].right][1:] == ["Port of Oslo"], "it holds the answer"


def test_few_of_a_kind_are_pooled() -> None:
    mixed = ["v1.0.0", "v2.0.0", "--all", "--fix", "Oslo", "Bergen", "12", "13", "the harbour master"]
    found = candidates_of([probe(f"q{n}", answer) for n, answer in enumerate(mixed)])
    assert {one.kind for one in found.values()} == {OTHER}
    assert len(found) == len(mixed)
    assert not candidates_of([probe(f"q{n}", answer) for n, answer in enumerate(mixed[: FEWEST_ANSWERS - 1])])
    assert not candidates_of([probe(f"q{n}", "...") for n in range(9)]), "punctuation alone is no answer"


@pytest.mark.parametrize("count", [32, 33, 64, 100])
def test_large_kinds_are_dealt_so_that_every_question_has_its_own_answer(count: int) -> None:
    probes = [probe(f"q{n}", f"option{n:03}") for n in range(count)]
    found = candidates_of(probes)
    assert len(found) == count
    parts = {one.kind: one.texts for one in found.values()}
    sizes = [len(texts) for texts in parts.values()]
    assert len(parts) == -(-count // MOST_CANDIDATES) and max(sizes) <= MOST_CANDIDATES and max(sizes) - min(sizes) <= 1
    assert all(contains(found[p.id].texts[found[p.id].right[0]], p.answers) for p in probes)
    assert candidates_of(reversed(probes)) == found, "the order of the questions is of no account"
