"""Everything that is measured at a checkpoint, in one call, and its summary as the SCORES object."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from evals import ifeval, knowledge
from evals.behaviour import SUITES, Behaviour
from recovery.loading import Loaded
from recovery.nltk_data import prepare
from recovery.rollouts import CachedEngine, Engine, Progress
from recovery.types import Probe, Prompt, Score, SuiteResult

# progress(suite, items done, items in all, tokens sampled or read so far)
SuiteProgress = Callable[[str, int, int, int], None]
Asked = TypeVar("Asked", Prompt, Probe)

QUESTION_TOKENS = 64
CONTROL_SHARE = 5
FILLED, FEWEST = 100, 20
BY_CORPUS = {
    "domain_knowledge": "domain_knowledge_by_corpus",
    "domain_knowledge_stored": "domain_knowledge_stored_by_corpus",
    "bits_per_byte": "bits_per_byte",
}


def evaluate(
    loaded: Loaded,
    engine: Engine,
    *,
    instruction: Sequence[Prompt] = (),
    offered: Sequence[Prompt] = (),
    behaviour: Mapping[str, Sequence[Prompt]] | None = None,
    probes_by_corpus: Mapping[int, Sequence[Probe]] | None = None,
    held_out: Mapping[int, Sequence[str]] | None = None,
    general: Sequence[Probe] = (),
    max_new_tokens: int = 256,
    question_tokens: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    progress: SuiteProgress | None = None,
) -> list[SuiteResult]:
    """Measure the model in memory; ``engine`` must sample from the same weights as ``loaded`` holds.

    Suites: "instruction_following"; "behaviour/NAME" for each of :data:`evals.behaviour.SUITES` that its prompts,
    filled up from ``offered`` (:func:`behaviours`), have enough for, and for each of the caller's own in ``behaviour``;
    for every corpus k that has them "domain_knowledge/k" (questions), "domain_knowledge_stored/k" (choices) and
    "bits_per_byte/k" (held-out texts); "general". The highest corpus is the current one, and its two knowledge scores
    are given once more without the number (and without items, which would only be stored twice). A suite with nothing
    to ask is left out. ``limit`` keeps as many items of each suite, the same ones for every checkpoint.
    ``question_tokens`` bounds answers to questions (default: 64 at most).
    """
    probes, texts = probes_by_corpus or {}, held_out or {}
    tokens = question_tokens or min(max_new_tokens, QUESTION_TOKENS)
    results: list[SuiteResult] = []
    ask = partial(_ask, loaded, engine, max_new_tokens=max_new_tokens, seed=seed, progress=progress)
    if instruction:
        prompts = sample(instruction, limit)
        results.append(ask(prompts, "instruction_following"))
        results += _behaviours(ask, results[0], behaviours(prompts, offered, limit))
    for name, own in (behaviour or {}).items():
        kind = Behaviour(name)
        results.append(kind.result(ask(sample(own, limit), kind.suite).items))
    for corpus, asked in sorted(probes.items()):
        results += _corpus(loaded, engine, corpus, asked, tokens, seed, limit, progress)
    for corpus, documents in sorted(texts.items()):
        if kept := [text for text in documents if text.strip()][:limit]:
            suite = f"bits_per_byte/{corpus}"
            told = counted(progress, suite, len(kept))
            results.append(knowledge.bits_per_byte(loaded, kept, suite=suite, progress=told))
    if any(not probe.control for probe in general):
        asked = sample_probes(general, limit)
        told = counted(progress, "general", len(asked))
        results.append(knowledge.general(loaded, engine, asked, max_new_tokens=tokens, seed=seed, progress=told))
    return results + _current(results, max(probes, default=0))


def sample(items: Sequence[Asked], limit: int | None) -> list[Asked]:
    """At most ``limit`` items, in their order: the same ones every time, spread over the whole list.

    Chosen by a hash of the id, so that a larger limit only adds to a smaller one's.
    """
    if limit is None or len(items) <= limit:
        return list(items)
    ranked = sorted(range(len(items)), key=lambda i: hashlib.sha256(items[i].id.encode()).digest())
    return [items[index] for index in sorted(ranked[:limit])]


def sample_probes(probes: Sequence[Probe], limit: int | None) -> list[Probe]:
    """At most ``limit`` probes that count, and beside them at most a fifth as many controls; see :func:`sample`."""
    if limit is None:
        return list(probes)
    chosen = sample([probe for probe in probes if not probe.control], limit)
    control = sample([probe for probe in probes if probe.control], -(-limit // CONTROL_SHARE))
    ids = {id(probe) for probe in (*chosen, *control)}
    return [probe for probe in probes if id(probe) in ids]


def behaviours(asked: Sequence[Prompt], offered: Sequence[Prompt], limit: int | None) -> dict[str, list[Prompt]]:
    """The prompts of each behaviour suite by name: those that are ``asked`` anyway, and further ones where few are.

    A suite is filled up from ``offered`` to a tenth of ``limit``, 100 prompts at most, and left out with fewer than 20.
    """
    most = FILLED if limit is None else min(FILLED, -(-limit // 10))
    known = {prompt.id for prompt in asked}
    found = {}
    for suite in SUITES:
        own = [prompt for prompt in asked if suite.holds(prompt)]
        more = {prompt.id: prompt for prompt in offered if prompt.id not in known and suite.holds(prompt)}
        prompts = own + sample(list(more.values()), max(0, most - len(own)))
        if len(prompts) >= min(FEWEST, most):
            found[suite.name] = prompts
    return found


def recorded(
    engine: Engine, *, max_new_tokens: int, question_tokens: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """What has to be kept beside the scores, since it can change them: limits, batch budget, versions."""
    asked = engine.engine if isinstance(engine, CachedEngine) else engine
    return {
        "decoding": "greedy",
        "max_new_tokens": max_new_tokens,
        "question_tokens": question_tokens or min(max_new_tokens, QUESTION_TOKENS),
        "seed": seed,
        "engine": getattr(asked, "name", type(asked).__name__),
        "token_budget": getattr(asked, "token_budget", None),
        "complete_loops": getattr(asked, "complete_loops", False),
        "sentence_data": "nltk" if prepare().real else "stand-in",
        "lm_eval": version("lm_eval"),
        "nltk": version("nltk"),
    }


def score_json(score: Score) -> dict[str, float | int]:
    """A score as {"value", "stderr", "n"}."""
    return {"value": score.value, "stderr": score.stderr, "n": score.n}


def scores_json(results: Iterable[SuiteResult]) -> dict[str, Any]:
    """The SCORES object of ``recover status --json``; suites that were not measured are left out."""
    return scores_json_from((result.suite, result.score) for result in results)


def scores_json_from(rows: Iterable[tuple[str, Score]]) -> dict[str, Any]:
    """The same from (suite name, score) pairs, as they come back from the tracker.

    {"instruction_following": {"value", "stderr", "n"}, "domain_knowledge": {...}, "domain_knowledge_stored":
    {...}, "domain_knowledge_by_corpus": {"1": {...}}, "domain_knowledge_stored_by_corpus": {...},
    "bits_per_byte": {"1": {...}}, "general": {...}}
    """
    scores: dict[str, Any] = {}
    for suite, score in rows:
        name, _, corpus = suite.partition("/")
        if corpus and name in BY_CORPUS:
            scores.setdefault(BY_CORPUS[name], {})[corpus] = score_json(score)
        else:
            scores[suite] = score_json(score)
    return scores


def _ask(
    loaded: Loaded,
    engine: Engine,
    prompts: Sequence[Prompt],
    suite: str,
    *,
    max_new_tokens: int,
    seed: int,
    progress: SuiteProgress | None,
) -> SuiteResult:
    return ifeval.evaluate_instructions(
        loaded.chat,
        engine,
        prompts,
        max_new_tokens=max_new_tokens,
        window=loaded.max_length,
        seed=seed,
        suite=suite,
        progress=counted(progress, suite, len(prompts)),
    )


def _behaviours(
    ask: Callable[[Sequence[Prompt], str], SuiteResult], answered: SuiteResult, wanted: Mapping[str, Sequence[Prompt]]
) -> list[SuiteResult]:
    """The behaviour suites, from answers given already; what was not asked yet is asked once for all of them."""
    items = {item.id: item for item in answered.items}
    further = {p.id: p for prompts in wanted.values() for p in prompts if p.id not in items}
    if further:
        items |= {item.id: item for item in ask(list(further.values()), "behaviour").items}
    return [suite.result([items[p.id] for p in wanted[suite.name]]) for suite in SUITES if suite.name in wanted]


def _corpus(
    loaded: Loaded,
    engine: Engine,
    corpus: int,
    probes: Sequence[Probe],
    tokens: int,
    seed: int,
    limit: int | None,
    progress: SuiteProgress | None,
) -> list[SuiteResult]:
    """Both forms of knowledge of one corpus, whichever it has probes for."""
    results = []
    questions = sample_probes([probe for probe in probes if probe.form == "question"], limit)
    if any(not probe.control for probe in questions):
        suite = f"domain_knowledge/{corpus}"
        told = counted(progress, suite, len(questions))
        window = loaded.max_length
        results.append(
            knowledge.ask(
                loaded.chat,
                engine,
                questions,
                suite=suite,
                max_new_tokens=tokens,
                window=window,
                seed=seed,
                progress=told,
            )
        )
    choices = sample_probes([probe for probe in probes if probe.form == "choice"], limit)
    if any(not probe.control for probe in choices):
        suite = f"domain_knowledge_stored/{corpus}"
        told = counted(progress, suite, len(choices))
        results.append(knowledge.choose(loaded, choices, suite=suite, progress=told))
    return results


def _current(results: Sequence[SuiteResult], corpus: int) -> list[SuiteResult]:
    names = {f"{name}/{corpus}": name for name in ("domain_knowledge", "domain_knowledge_stored")}
    return [replace(result, suite=names[result.suite], items=()) for result in results if result.suite in names]


def counted(progress: SuiteProgress | None, suite: str, total: int) -> Progress | None:
    """Counts what engines report in steps into "this many of so many"."""
    if progress is None:
        return None
    done = sampled = 0

    def told(count: int, tokens: int) -> None:
        nonlocal done, sampled
        done, sampled = done + count, sampled + tokens
        progress(suite, done, total, sampled)

    return told
