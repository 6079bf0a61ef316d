"""Progress bars: counts of completions and tokens, and plain lines without a terminal."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.progress import TaskID

from pipelines.runtime import progress
from pipelines.runtime.progress import Display, SuccessiveBars


@pytest.fixture(autouse=True)
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_TO_FIRST_LINE", -1.0)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", -1.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that progress reads."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def test_answers_and_tokens_add_up(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Display().bar("evaluate base", 40) as bar:
        bar.add_completions(0, 1200)  # no completion is done yet, but tokens are counted
        clock[0] = 10.0
        bar.add_completions(3, 800)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "evaluate base: 0/40 1,200 tokens", "no time has passed that makes a rate"
    assert second == "evaluate base: 3/40 2,000 tokens, 200/s (about 2 min left)"
    assert (bar.done, bar.tokens) == (3, 2000)


def test_the_rate_of_a_part_is_that_since_its_bar_began(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with SuccessiveBars(Display(), "evaluate base") as bars:
        bars.show("bits_per_byte/1", 1, 9, 6450)
        clock[0] = 0.5
        bars.show("bits_per_byte/1", 2, 9, 6500)
        clock[0] = 2.0
        bars.show("bits_per_byte/1", 3, 9, 8450)
    assert capsys.readouterr().err.splitlines() == [
        "evaluate base: bits_per_byte/1: 1/9 6,450 tokens",
        "evaluate base: bits_per_byte/1: 2/9 6,500 tokens",
        "evaluate base: bits_per_byte/1: 3/9 8,450 tokens, 1,000/s",
    ]


def test_the_time_left_counts_down_while_a_group_runs_and_waits_for_a_rate(clock: list[float]) -> None:
    with Display().bar("evaluate base", 100) as bar:
        clock[0] = 4.0
        bar.update(2)
        assert bar.line() == "evaluate base: 2/100", "the first units may be short ones"
        clock[0] = 20.0
        bar.update(50)
        assert bar.line().endswith("(about 20 s left)")
        clock[0] = 35.0
        assert bar.line().endswith("(about 5 s left)")
        clock[0] = 41.0
        assert bar.line() == "evaluate base: 50/100", "it takes longer than was estimated"


def test_time_that_has_passed_is_not_said_to_be_left() -> None:
    console, seconds = Console(width=200, record=True, force_terminal=True), [0.0]
    bars = progress._bars(console)
    bars.get_time = lambda: seconds[0]
    bars.add_task("sizing the trial", total=None, note="", first=0)
    bars.add_task("converting, MB", total=98, note="", first=0)
    bars.add_task("midtrain", total=110, completed=50, note="", first=50)
    for total in (10000, 9999):
        bars.add_task("evaluate", total=total, note="", first=0)
    seconds[0] = 179.0
    for task, completed in enumerate((60, 9999, 9999), start=2):
        bars.update(TaskID(task), completed=completed, moved=179.0)
    console.print(bars.get_renderable())
    sizing, converting, training, nearly, all_done = (line.split() for line in console.export_text().splitlines())
    assert sizing[-3:] == ["0:02:59", "so", "far"]
    assert converting[-4:] == ["0/98", "0:02:59", "so", "far"]
    assert training[-6:] == ["60/110", "0:02:59", "so", "far,", "0:14:55", "left"]
    assert nearly[-1] == "far" and all_done[-2:] == ["far,", "finishing"], "no seconds are left by the rate"


def test_what_comes_within_a_step_is_counted_from_its_start(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    with Display().bar("distill", 10) as bar:
        bar.add_sampled(2, 90)
        bar.add_sampled(1, 40)
        clock[0] = 12.0
        bar.update(1, "reverse_kl 0.100")
        bar.add_sampled(1, 30)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "distill: 0/10 sampling: 3 completions, 130 tokens"
    assert lines[2].startswith("distill: 1/10 reverse_kl 0.100 (about ")
    assert lines[3].startswith("distill: 1/10 sampling: 1 completions, 30 tokens (about ")


def test_a_quiet_one_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(quiet=True).bar("distill", 10) as bar:
        bar.add_completions(1, 1)
    assert capsys.readouterr().err == ""


def test_the_time_left_counts_only_what_was_done_here(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Display().bar("midtrain", 110, done=50) as bar:
        bar.started = 0.0
        bar.update(50, "loss 1.000")
        clock[0] = 600.0
        for done in (60, 109, 110):
            bar.update(done, "loss 0.900")
        clock[0] = 645.0
        assert bar.line() == "midtrain: 110/110 loss 0.900 (finishing)"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "midtrain: 50/110 loss 1.000",
        "midtrain: 60/110 loss 0.900 (about 50 min left)",
        "midtrain: 109/110 loss 0.900 (about 10 s left)",
        "midtrain: 110/110 loss 0.900 (finishing)",
    ]


def test_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Display().say("prompts/:train:text [bold]")
    assert capsys.readouterr().err == "prompts/:train:text [bold]\n"
    with Console(width=200, record=True, force_terminal=True) as console:
        bars = progress._bars(console)
        bars.add_task("evaluate [base] :train:text", total=2, note="[x] :train:", first=0)
        console.print(bars.get_renderable())
    shown = console.export_text()
    assert "evaluate [base] :train:text" in shown and "[x] :train:" in shown


def test_a_silent_phase_says_that_it_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    display = Display()
    display.beat()
    with display.phase("recovery"):
        display.beat()
        assert capsys.readouterr().err == "", "something was said just now"
        monkeypatch.setattr(progress, "_SECONDS_OF_SILENCE", -1.0)
        display.beat()
        with display.bar("distill", 200, done=3) as bar, display.phase("loading base"):
            display.beat()
            bar.add_sampled(2, 90)
        display.beat()
    display.beat()
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("tokens")]
    assert lines[0].startswith("recovery: ") and lines[0].endswith(" s")
    assert lines[1].startswith("loading base: ") and lines[-1].startswith("recovery: ")


def test_a_bar_that_is_silent_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 1000.0)
    monkeypatch.setattr(progress, "_SECONDS_OF_SILENCE", 1000.0)
    display = Display()
    with display.bar("distill", 200, done=3) as bar:
        bar.add_sampled(2, 90)
        bar.add_sampled(1, 10)  # said nothing
        monkeypatch.setattr(progress, "_SECONDS_OF_SILENCE", -1.0)
        display.beat()
    lines = capsys.readouterr().err.splitlines()
    assert "distill: 3/200 sampling: 2 completions, 90 tokens" in lines
    assert "distill: 3/200 sampling: 3 completions, 100 tokens" in lines


def test_a_terminal_shows_a_phase_without_a_count() -> None:
    display = Display()
    display.console = Console(force_terminal=True, width=100, record=True)
    with display.phase("loading base"):
        display.console.print(display.progress.get_renderable())
    assert "loading base" in display.console.export_text()
