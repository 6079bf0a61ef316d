"""Tokens saved by `--complete-loops`, and how often its responses equal those of full decoding.

Run: python -m benchmarks.loops --model FILE.gguf [--write]

The model responds to the built-in test prompts greedily, up to the token limit. Each response is then cut where the
engine would have stopped decoding (checked every few tokens, as the engine does), completed with the repetition, and
compared with the decoded response. Only tokens are counted; nothing is timed.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import _report
from recovery.data.prompts import behaviour_prompts
from recovery.models.loading import load_model
from recovery.rollouts.active_rows import LEAST, TIMES, period_of
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import REPORT_EVERY, TransformersEngine


@dataclass(frozen=True)
class Cut:
    """A response completed by repetition from position ``at``; ``same`` of its tokens equal the decoded ones."""

    at: int
    same: int
    length: int
    ended: bool

    @property
    def equal(self) -> bool:
        """Whether it equals the decoded response, token by token."""
        return self.same == self.length and not self.ended


def main() -> None:
    """Measure and print; write with --write."""
    parser = _report.parser(__doc__, "loops")
    parser.add_argument("--model", required=True, help="a folder, a GGUF file or a hub id")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=640, help="maximum tokens of a response")
    options = parser.parse_args()
    facts = _report.machine(("torch", "transformers"))
    loaded = load_model(options.model)
    prompts = [loaded.chat.prompt_ids(p.messages) for p in behaviour_prompts().test[: options.prompts]]
    engine = TransformersEngine(loaded, token_budget=65536)
    answers = engine.generate(prompts, Sampling(options.tokens, temperature=0.0))
    cuts = [cut for answer in answers if (cut := cut_of(answer.ids, answer.finished, options.tokens))]
    tokens = sum(len(answer.ids) for answer in answers)
    saved = sum(cut.length - cut.at for cut in cuts if not cut.ended)
    figures = {
        "answers": len(answers),
        "tokens decoded": tokens,
        "answers that never end": sum(not answer.finished for answer in answers),
        "answers filled up": len(cuts),
        "of them equal to the decoded ones": sum(cut.equal for cut in cuts),
        "of them that would have ended": sum(cut.ended for cut in cuts),
        "tokens not decoded": saved,
        "share of all tokens": round(saved / tokens, 3),
    }
    table = _report.table(("", "measured"), [(name, f"{value:,}") for name, value in figures.items()])
    print(table)
    if options.write:
        precision = str(loaded.precision).removeprefix("torch.")
        body = (
            f"{len(answers)} built-in test prompts (seed 0), at most {options.tokens} tokens each, greedy, "
            f"{precision}; a repetition counts after {TIMES} times over {LEAST} tokens.\n\n{table}"
        )
        print(_report.write("loops", "Repetitive responses", body, facts, {"figures": figures}))


def cut_of(ids: Sequence[int], finished: bool, limit: int) -> Cut | None:
    """Return where the engine would have cut and completed a response; None if it would have decoded all of it."""
    for at in range(REPORT_EVERY, len(ids), REPORT_EVERY):
        if period := period_of(ids[:at]):
            filled = list(ids[:at]) + [ids[at - period + n % period] for n in range(limit - at)]
            return Cut(at, sum(map(operator.eq, filled, ids)), limit, finished)
    return None


if __name__ == "__main__":
    main()
