"""How much of a text a model continues from its beginnings."""

from __future__ import annotations

from collections.abc import Sequence

from evals.verbatim import MOST, WINDOW, Beginning, beginnings, verbatim_runs
from recovery.rollouts.engine import Completion, Progress, Sampling

TEXT = list(range(100, 200))


class Reciting:
    """An engine that has learnt one text by heart, but for its token 150."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        assert sampling.temperature == 0
        said = [TEXT[TEXT.index(one[-1]) + 1 :][: sampling.max_new_tokens] for one in prompts]
        said = [[0 if token == 150 else token for token in one] for one in said]
        return [Completion(one, [0.0] * len(one), False) for one in said]


def test_a_window_begins_with_a_quarter_of_it_and_its_longest_run_counts() -> None:
    asked = beginnings([TEXT, TEXT[:10]])
    assert [(len(one.prompt), len(one.rest)) for one in asked] == [(16, 48), (9, 27)], "ten tokens continue themselves"
    assert (*asked[0].prompt, *asked[0].rest) == tuple(TEXT[:WINDOW])
    runs = verbatim_runs(Reciting(), asked, window=1000)
    assert runs == [150 - 116, 27]
    assert [one.continued(run) for one, run in zip(asked, runs, strict=True)] == [True, True]
    assert not Beginning((1,), tuple(range(10))).continued(4)
    assert verbatim_runs(Reciting(), asked, window=16) == [0, 7], "no room to answer, and room for seven tokens"


def test_of_a_long_text_evenly_many_windows_are_asked() -> None:
    asked = beginnings([range(n, n + WINDOW) for n in range(0, 1000 * WINDOW, WINDOW)])
    assert len(asked) == MOST and asked[0].prompt[0] == 0 and asked[-1].prompt[0] > 980 * WINDOW
    assert beginnings([]) == []
