"""`recover demo --example`: incompatible options are refused with one line, before anything is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.cli.demo import Asked
from pipelines.cli.main import run as recover
from recovery.arms import ARMS
from recovery.config import WRITER_FILE
from recovery.errors import UsageError

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "nextjs")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--short"], "--short needs an --example, such as examples/nextjs: name one"),
        (["--arms", "documents"], "--arms needs an --example"),
        (["--records", "here"], "--records needs an --example"),
        (["--cycles", "2"], "--cycles needs an --example"),
        (["--example", EXAMPLE, "--arms", "documents,recover"], "there is no arm 'recover': did you mean recovery?"),
        (["--example", EXAMPLE, "--arms", "none"], "there is no record in"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    assert recover(["demo", "--workspace", str(tmp_path / "w"), *given]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "w").exists(), "nothing is fetched or begun"


def test_arms_that_need_texts_are_run_where_an_example_has_them(tmp_path: Path) -> None:
    needing = {name for name, arm in ARMS.items() if arm.needs_texts}
    assert needing
    assert not needing & set(Asked(tmp_path, arms="all").names)
    with pytest.raises(UsageError, match=r"--arms writer trains on texts .* has no rewritten.jsonl"):
        Asked(tmp_path, arms="documents,writer").check()
    (tmp_path / WRITER_FILE).write_text("")
    asking = {name for name, arm in ARMS.items() if arm.needs_questions}
    assert asking and set(ARMS) - set(Asked(tmp_path, arms="all").names) == asking
    with pytest.raises(UsageError, match=r"--arms writer-questions-recovery trains on a writer's questions"):
        Asked(tmp_path, arms="writer-questions-recovery").check()
    (tmp_path / WRITER_FILE).write_text('{"document": "a.md", "text": "Of it.", "question": "Of what?"}\n')
    assert Asked(tmp_path, arms="all").names == list(ARMS)
    Asked(tmp_path, arms="documents,writer").check()
