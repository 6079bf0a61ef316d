"""Synthetic content for a large tracker database: responses, verdicts, evidence, of realistic length."""

from __future__ import annotations

import math
import random
from typing import Any

KINDS = (
    *("change_case:capital_word_frequency", "change_case:english_capital", "change_case:english_lowercase"),
    *("combination:repeat_prompt", "combination:two_responses", "detectable_content:number_placeholders"),
    *("detectable_content:postscript", "detectable_format:constrained_response", "detectable_format:json_format"),
    *("detectable_format:multiple_sections", "detectable_format:number_bullet_lists", "detectable_format:title"),
    *("detectable_format:number_highlighted_sections", "keywords:existence", "keywords:forbidden_words"),
    *("keywords:frequency", "keywords:letter_frequency", "language:response_language"),
    *("length_constraints:nth_paragraph_first_word", "length_constraints:number_paragraphs"),
    *("length_constraints:number_sentences", "length_constraints:number_words", "punctuation:no_comma"),
    *("startend:end_checker", "startend:quotation"),
)
STUDIES = ("recovery", "continual", "small-batches", "fast-and-slow", "off-policy", "capacity")
PROMPTS = 541  # the number of IFEval's prompts
ALTERNATIVES = 5
_WORDS = (
    "the a of and to in is was for on with as by at from that it its river house machine letter answer question table "
    "city winter engine music field paper water number colour reason teacher student model document behaviour "
    "knowledge recovers forgets answers writes measures keeps shows follows learns compares quickly often seldom never"
).split()


class Texts:
    """Prompts for every checkpoint, and responses to them. The same seed gives the same texts."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sentences = [self._sentence() for _ in range(2000)]
        self.asked = [self._asked(number) for number in range(PROMPTS)]
        self.rollouts = [self._rollout(200) for _ in range(24)]
        self.long_rollouts = [self._rollout(500) for _ in range(6)]

    def sample(self, number: int, share: float, rng: random.Random) -> dict[str, Any]:
        """Return a sample in which each instruction is followed with probability ``share``."""
        prompt, kinds = self.asked[number % PROMPTS]
        verdicts = {kind: rng.random() < share for kind in kinds}
        return {
            "item": f"item-{number}",
            "group": kinds[0],
            "prompt": prompt,
            "response": self.answer(rng),
            "score": float(all(verdicts.values())),
            "verdicts": verdicts,
            "extra": {},
        }

    def answer(self, rng: random.Random) -> str:
        """Return a response of 4 to 12 sentences."""
        return " ".join(rng.choices(self.sentences, k=rng.randint(4, 12)))

    def rollout(self, rng: random.Random, *, long: bool) -> dict[str, Any]:
        """Return a response token by token, without stage, step and item."""
        return rng.choice(self.long_rollouts if long else self.rollouts)

    def _sentence(self) -> str:
        chosen = " ".join(self.rng.choices(_WORDS, k=self.rng.randint(7, 13)))
        return f"{chosen[0].upper()}{chosen[1:]}."

    def _asked(self, number: int) -> tuple[str, list[str]]:
        kinds = self.rng.sample(KINDS, k=self.rng.randint(1, 3))
        instructions = " ".join(f"Mind this: {kind.replace(':', ', ').replace('_', ' ')}." for kind in kinds)
        return f"Prompt {number}. {' '.join(self.rng.choices(self.sentences, k=2))} {instructions}", kinds

    def _rollout(self, length: int) -> dict[str, Any]:
        rng = self.rng
        tokens = [f" {word}" for word in rng.choices(_WORDS, k=length)]
        names = ("reverse_kl", "entropy", "teacher_entropy", "logprob", "teacher_logprob", "advantage")
        values: dict[str, Any] = {name: [round(rng.random() ** 4, 4) for _ in tokens] for name in names}
        for name in ("top", "teacher_top"):
            values[name] = [
                [[word, round(0.6 / 2**at, 4)] for at, word in enumerate(rng.sample(_WORDS, ALTERNATIVES))]
                for _ in tokens
            ]
        return {"prompt": f"<|im_start|>user {self.sentences[0]}<|im_end|>", "tokens": tokens, "values": values}


def score(value: float, n: int) -> dict[str, Any]:
    """Return a share with its standard error."""
    value = min(1.0, max(0.0, value))
    return {"value": value, "stderr": math.sqrt(value * (1 - value) / n), "n": n}


def by_kind(value: float, rng: random.Random) -> dict[str, Any]:
    """Return scores of every instruction type around a value."""
    return {f"id/{kind}": score(value + rng.uniform(-0.1, 0.05), 40) for kind in KINDS}


def evidence(number: int, end: str, rng: random.Random) -> dict[str, Any]:
    """Return a cycle's stored paired tests: every suite and instruction type, against three checkpoints."""
    suites = ["instruction_following", "general"]
    suites += [
        f"{suite}/{k}" for suite in ("domain_knowledge", "domain_knowledge_stored") for k in range(1, number + 1)
    ]
    found = {
        name: {
            "suites": [_tested(suite, rng) for suite in suites],
            "types of instruction_following": [_tested(kind, rng) for kind in KINDS],
        }
        for name in ("base", "midtrained", "before")
    }
    knowledge = {"rows": [[rng.random() for _ in range(number)] for _ in range(number)]}
    covered = 10**9  # all evaluations, which are added later
    return {"checkpoint": end, "newest_evaluation": covered, "compared_with": found, "knowledge": knowledge}


def gate(number: int, rng: random.Random) -> dict[str, Any]:
    """Return the gate's result for a cycle."""
    rules = ("ifeval >= 0.95 base", "knowledge >= 0.9 midtrained", "general >= 0.95 base")
    verdicts = [
        {"rule": rule, "verdict": "pass", "student": 0.93, "bound": 0.9, "estimate": 0.03, "n": 541}
        | {"low": 0.01 - 0.02 * rng.random(), "high": 0.05}
        for rule in rules
    ]
    return {
        "decision": "accept",
        "reason": f"all rules hold for cycle {number}",
        "method": "exact",
        "verdicts": verdicts,
    }


def settings(kind: str, cycle: int, rng: random.Random) -> dict[str, Any]:
    """Return a stage's resolved configuration, with a realistic number of settings."""
    own = {"teacher": "base", "method": "opd", "knowledge_teacher": "midtrained"} if kind == "distill" else {}
    common = {"docs": f"./corpora/q{cycle}", "lr": rng.choice([1e-4, 3e-4, 1e-3]), "batch": rng.choice([16, 32])}
    return own | common | {f"setting_{k}": rng.choice([k, k, k, k + 0.5]) for k in range(30)}


def _tested(name: str, rng: random.Random) -> dict[str, Any]:
    first, second, half = rng.random(), rng.random(), 0.02
    difference = second - first
    return {
        **{"name": name, "first": first, "second": second, "difference": difference},
        **{"low": difference - half, "high": difference + half, "lost": rng.randrange(30), "won": rng.randrange(30)},
        **{"p": rng.random(), "p_adjusted": min(1.0, 2 * rng.random()), "n": 541},
    }
