"""`recover demo --example`: incompatible options are refused with one line, before anything is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.cli.main import run as recover

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "nextjs")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--short"], "--short needs an --example, such as examples/nextjs: name one"),
        (["--arms", "documents"], "--arms needs an --example"),
        (["--records", "here"], "--records needs an --example"),
        (["--example", EXAMPLE, "--cycles", "2"], "--cycles limits the corpora of the --arms: name arms"),
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
