"""`recover demo --example`: what does not go together is refused in a line, before anything is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.cli.main import run as recover

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "nextjs")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--short"], "--short is for an --example, such as examples/nextjs: name one"),
        (["--arms", "documents"], "--arms is for an --example"),
        (["--records", "here"], "--records is for an --example"),
        (["--example", EXAMPLE, "--cycles", "2"], "--cycles says how many corpora the --arms live through: name arms"),
        (["--example", EXAMPLE, "--arms", "documents,recover"], "there is no arm 'recover': did you mean recovery?"),
        (["--example", EXAMPLE, "--arms", "none"], "no run is kept in"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    assert recover(["demo", "--workspace", str(tmp_path / "w"), *given]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "w").exists(), "nothing is fetched or begun"
