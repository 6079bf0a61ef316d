"""Scoring of given responses with IFEval's checkers, without a model or workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.beyond_constant import DETAIL, ECHO
from evals.instruction_following import judge_responses, read_ifeval
from evals.statistics import score_of
from recovery.data.corpus.json_lines import read_records
from recovery.data.nltk_data import prepare
from recovery.errors import UsageError
from recovery.types import Item, Score, SuiteResult

_SHOWN = 10  # keys of unanswered prompts in the text report


@dataclass(frozen=True)
class JudgedFile:
    """Result of a file of responses, with the prompts and lines that could not be matched.

    ``unanswered`` are the keys of prompts without a response, which are not scored; ``problems`` are unused lines by
    number.
    """

    result: SuiteResult
    unanswered: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def scores(self) -> dict[str, Score]:
        """Accuracy over prompts and over instructions, strict and loose, and beside them those that
        :func:`evals.instruction_following.judge_responses` adds.
        """
        names = ("prompt_loose", "instruction_strict", "instruction_loose", "prompt_repaired", "instruction_repaired")
        details = {name: score for name, score in self.result.details.items() if name in (*names, DETAIL, ECHO)}
        return {"prompt_strict": self.result.score} | details

    @property
    def by_instruction(self) -> dict[str, dict[str, Score]]:
        """Strict and loose accuracy by instruction."""
        return _by_instruction(self.result.items)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "scores": {name: vars(score) for name, score in self.scores.items()},
            "by_instruction": {
                name: {how: vars(score) for how, score in both.items()} for name, both in self.by_instruction.items()
            },
            "sentence_data": "nltk" if prepare().real else "stand-in",
            "unanswered": list(self.unanswered),
            "problems": list(self.problems),
        }

    def text(self) -> str:
        """Return the report as text."""
        lines = [
            f"{name:24} {(f'{score.value:.3f} ± {score.stderr:.3f}')}  (n = {score.n:,})"
            for name, score in self.scores.items()
        ]
        lines += ["", f"{'instruction':46} {'strict':>7} {'loose':>7}     n"]
        for name, both in self.by_instruction.items():
            strict, loose = both["strict"], both["loose"]
            lines.append(f"{name:46} {strict.value:7.3f} {loose.value:7.3f} {strict.n:5,}")
        if not prepare().real:
            lines += ["", "nltk's data is missing: a substitute splits sentences, and a few verdicts may differ"]
        if self.unanswered:
            more = ", ..." if len(self.unanswered) > _SHOWN else ""
            keys = ", ".join(self.unanswered[:_SHOWN])
            lines += ["", f"{len(self.unanswered)} prompts have no response and are not counted: {keys}{more}"]
        return "\n".join(lines)


def judge_file(prompts: str | Path, responses: str | Path) -> JudgedFile:
    """Score a file of {"prompt", "response"} lines, the format in which responses to IFEval are published.

    A response is matched to the prompt with the same text. Raises UsageError if none matches.
    """
    expected = read_ifeval(prompts)
    known = {prompt.text.strip() for prompt in expected}
    given, problems = _read(Path(responses), known)
    answered = [prompt for prompt in expected if prompt.text.strip() in given]
    if not answered:
        first = f" ({problems[0]})" if problems else ""
        raise UsageError(f'{responses} answers no prompt of {prompts}{first}: give lines of {{"prompt", "response"}}')
    result = judge_responses(answered, [given[prompt.text.strip()] for prompt in answered], suite="ifeval")
    unanswered = tuple(prompt.id for prompt in expected if prompt.text.strip() not in given)
    return JudgedFile(result, unanswered, tuple(problems))


def _read(path: Path, known: set[str]) -> tuple[dict[str, str], list[str]]:
    """Return the responses by prompt text, and the unusable lines."""
    records, problems = read_records(path)
    given: dict[str, str] = {}
    for number, record in records:
        prompt, response = _pair(record)
        if prompt is None or response is None:
            problems.append(f"line {number}: it needs a prompt and a response")
        elif prompt not in known:
            problems.append(f"line {number}: its prompt is not in the file of prompts")
        elif prompt in given:
            problems.append(f"line {number}: a second response to the same prompt")
        else:
            given[prompt] = response
    return given, [f"{path.name} {problem}" for problem in problems]


def _pair(record: Any) -> tuple[str | None, str | None]:
    if not isinstance(record, Mapping):
        return None, None
    prompt, response = record.get("prompt"), record.get("response")
    return prompt.strip() if isinstance(prompt, str) else None, response if isinstance(response, str) else None


def _by_instruction(items: Sequence[Item]) -> dict[str, dict[str, Score]]:
    rows: dict[str, list[tuple[float, float, str]]] = {}
    for item in items:
        loose = item.extra["loose_verdicts"].values()
        for name, one, other in zip(item.extra["instructions"], item.verdicts.values(), loose, strict=True):
            rows.setdefault(name, []).append((float(one), float(other), item.id))
    return {
        name: {
            "strict": score_of([strict for strict, _, _ in found], [key for _, _, key in found]),
            "loose": score_of([loose for _, loose, _ in found], [key for _, _, key in found]),
        }
        for name, found in sorted(rows.items())
    }
