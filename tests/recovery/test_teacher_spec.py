"""The value of --teacher: every meaning it can have, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.errors import UsageError
from recovery.teacher_spec import RESERVED, TeacherSpec


def test_a_name_is_one_checkpoint_with_the_whole_weight() -> None:
    spec = TeacherSpec.parse("cycle-1/midtrained")
    assert (spec.kind, spec.weights) == ("checkpoints", {"cycle-1/midtrained": 1.0})
    assert spec.frozen and not (spec.remote or spec.is_student or spec.is_copy)


def test_several_checkpoints_carry_weights() -> None:
    assert TeacherSpec.parse("base=0.25, run=1/x=0.75").weights == {"base": 0.25, "run=1/x": 0.75}


def test_an_address_is_a_server_even_with_an_equals_sign() -> None:
    spec = TeacherSpec.parse("http://localhost:8000/v1?a=1")
    assert (spec.remote, spec.address, dict(spec.weights)) == (True, "http://localhost:8000/v1?a=1", {})


def test_a_folder_is_one_checkpoint_even_with_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lr=1e-5").mkdir()
    monkeypatch.chdir(tmp_path)
    for text in ("lr=1e-5", str(tmp_path / "lr=1e-5")):
        assert TeacherSpec.parse(text).weights == {text: 1.0}
    assert TeacherSpec.parse("lr=1e-5=0.5,base=0.5").weights == {"lr=1e-5": 0.5, "base": 0.5}
    assert len(TeacherSpec.parse(",".join(f"model-{n}=0.02" for n in range(50))).weights) == 50


@pytest.mark.parametrize("word", RESERVED)
def test_reserved_words_are_no_checkpoints(word: str) -> None:
    spec = TeacherSpec.parse(word)
    assert spec.kind == word and not spec.weights and not spec.frozen
    assert spec.is_student == (word in ("self", "start", "ema")) and spec.is_copy == (word in ("start", "ema"))


@pytest.mark.parametrize(
    "text", ["a=0.5,b=0.6", "a=1.5,b=-0.5", "a=half,b=0.5", "a=0.5,b", "a=nan", "a=0.5,b=nan", "a=inf"]
)
def test_weights_that_do_not_sum_to_one_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--teacher"):
        TeacherSpec.parse(text)
