"""Evaluation of a checkpoint on all suites in one call.

Two suites are here as well: the likelihood of answers, and what a model replies to what no document answers.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from evals import domain_pmi, instruction_following, knowledge, open_book
from evals.acceptance_rules import DECLINED, OF_ANOTHER, UNANSWERABLE
from evals.answer_matching import candidates_of, contained
from evals.behaviour import SUITES, Behaviour
from evals.domain_pmi import BITS, CANDIDATES, KIND, RIGHT, blocks_of
from evals.generation import SuiteProgress, answer, counted
from evals.instruction_following import refuses
from evals.knowledge import GROUP
from evals.open_book import OPEN_BOOK
from evals.probes import NEAR_MISS
from evals.statistics import score_of_items
from recovery.data.checkers import prepare
from recovery.data.corpus.facts.fact import content
from recovery.lazy_import import lazily
from recovery.models.chat_template import ChatFormat, common_prefix
from recovery.rollouts.completion_cache import CachingEngine
from recovery.rollouts.engine import Engine, Progress
from recovery.types import Item, Message, Probe, Prompt, SuiteResult

if TYPE_CHECKING:
    from evals.loglikelihood import Request
    from recovery.models.loaded import Loaded

# Likelihood of each candidate of the kind as the response to a question in the chat: the cells S_ij of
# :mod:`evals.domain_pmi`, which have power even if few answers are generated in full.

loglikelihood = lazily("evals.loglikelihood")

DECIMALS = 3


def measure_answer_likelihood(
    loaded: Loaded, questions: Sequence[Probe], probes: Sequence[Probe], *, suite: str, progress: Progress | None = None
) -> SuiteResult | None:
    """Return log2 p(candidate, end of turn | question) of each question and each candidate of its kind.

    ``probes`` are all of the corpus, from which candidates are drawn, ``questions`` those to ask, except control
    questions. None if all kinds have too few answers. Items have the cells in ``extra`` (see :mod:`evals.domain_pmi`)
    and centred top-1 as the score.
    """
    candidates = candidates_of(probes)
    asked = [probe for probe in questions if probe.id in candidates]
    if not asked:
        return None
    requests = [_request(loaded, probe.question, candidates[probe.id].texts) for probe in asked]
    scored = loglikelihood.likelihoods(loaded, requests, progress=progress)
    items, kinds = [], set[str]()
    for probe, likelihoods in zip(asked, scored, strict=True):
        question_candidates = candidates[probe.id]
        bits = [round(likelihood.total / math.log(2), DECIMALS) for likelihood in likelihoods]
        extra = {KIND: question_candidates.kind, BITS: bits, RIGHT: list(question_candidates.right)}
        if question_candidates.kind not in kinds:  # stored once per kind
            kinds.add(question_candidates.kind)
            extra[CANDIDATES] = list(question_candidates.texts)
        likeliest = question_candidates.texts[bits.index(max(bits))]
        items.append(Item(probe.id, probe.question, likeliest, 0.0, group=probe.source, extra=extra))
    first = {
        key: bool(is_first)
        for block in blocks_of((item.id, item.group, item.extra) for item in items)
        for key, is_first in zip(block.keys, block.first, strict=True)
    }
    items = [replace(item, score=float(first[item.id]), verdicts={"first": first[item.id]}) for item in items]
    groups = [{tag.removeprefix(GROUP) for tag in probe.tags if tag.startswith(GROUP)} for probe in asked]
    details = {}
    for name in sorted(set().union(*groups)):
        details[name] = score_of_items([item for item, names in zip(items, groups, strict=True) if name in names])
    return SuiteResult(suite, score_of_items(items), tuple(items), details)


def _request(loaded: Loaded, question: str, candidates: Sequence[str]) -> Request:
    """Return the conversation up to the responses, and the continuations: each response and the end of its turn.

    All are split at the same place, the first label of any of them, to be scored on the same text. Text that a template
    writes before an answer (an empty thought) belongs to the question.
    """
    question_message = Message(role="user", content=question)
    rows: list[list[int]] = []
    starts: list[int] = []
    for text in candidates:
        ids, mask = loaded.chat.conversation([question_message, Message(role="assistant", content=text)])
        labels = [n for n, answered in enumerate(mask) if answered] or [len(ids) - 1]
        rows.append(ids[: labels[-1] + 1])
        starts.append(labels[0])
    cut = min(common_prefix(*rows), *starts)
    return rows[0][:cut], [ids[cut:] for ids in rows]


Asked = TypeVar("Asked", Prompt, Probe)

QUESTION_TOKENS = 64  # of an answer, at most
CONTROL_SHARE = 5  # of a selection of probes, one control probe for so many others
FILLED, FEWEST = 100, 20  # prompts that a behaviour suite is filled up to, and below which it is skipped


def evaluate(
    loaded: Loaded,
    engine: Engine,
    *,
    instruction: Sequence[Prompt] = (),
    extra_prompts: Sequence[Prompt] = (),
    user_suites: Mapping[str, Sequence[Prompt]] | None = None,
    probes_by_corpus: Mapping[int, Sequence[Probe]] | None = None,
    outdated: Mapping[int, Sequence[Probe]] | None = None,
    held_out: Mapping[int, Sequence[str]] | None = None,
    general: Sequence[Probe] = (),
    max_new_tokens: int = 256,
    question_tokens: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    earlier_limit: int = 0,
    near_misses: int = 0,
    pages: Mapping[int, Mapping[str, str]] | None = None,
    progress: SuiteProgress | None = None,
) -> list[SuiteResult]:
    """Evaluate the model in memory; ``engine`` must sample from the weights in ``loaded``.

    The suites, of which one without items is skipped:

        instruction_following          the prompts of ``instruction``
        behaviour/NAME                 each of :data:`evals.behaviour.SUITES` with enough prompts, further ones from
                                       ``extra_prompts`` included (:func:`behaviours`), and each of ``user_suites``
        domain_knowledge/k             questions about corpus k, and so on for every corpus with the data
        domain_knowledge_likelihood/k  the candidates of their answers (:func:`measure_answer_likelihood`)
        open_book/k                    the questions with a passage of ``pages``, the documents' texts by id, which are
                                       given for the clean model alone
        unanswerable/k                 up to ``near_misses`` near misses; with such a passage unanswerable_open_book/k
        domain_knowledge_stored/k      choices
        stale_answers/k                questions of ``outdated``
        bits_per_byte/k                held-out texts
        general                        probes of general knowledge

    The highest corpus is the current one; its two knowledge scores are repeated without the number and without items.
    ``limit`` bounds the items of each suite, with the same selection for every checkpoint, and ``earlier_limit`` those
    of all but the highest corpus together (:func:`corpus_limits`). ``question_tokens`` bounds the length of answers to
    questions (default: at most 64).
    """
    probes, texts = probes_by_corpus or {}, held_out or {}
    if not loaded.can_score:  # suites that need log-probabilities of a given text are not measured
        probes = {corpus: _questions(corpus_probes) for corpus, corpus_probes in probes.items()}
        texts, general = {}, _questions(general)
    limits = corpus_limits({*probes, *texts, *(outdated or {})}, limit, earlier_limit)
    tokens = question_tokens or min(max_new_tokens, QUESTION_TOKENS)
    results: list[SuiteResult] = []
    evaluation = _Evaluation(loaded, engine, tokens, seed, progress)
    follow = partial(evaluation.ask, instruction_following.evaluate_instructions, max_new_tokens=max_new_tokens)
    if instruction:
        prompts = sample(instruction, limit)
        results.append(follow("instruction_following", prompts))
        results += _score_behaviours(follow, results[0], behaviours(prompts, extra_prompts, limit))
    for name, suite_prompts in (user_suites or {}).items():
        kind = Behaviour(name)
        results.append(kind.result(follow(kind.suite, sample(suite_prompts, limit)).items))
    for corpus, corpus_probes in sorted(probes.items()):
        texts_of = (pages or {}).get(corpus)
        results += _evaluate_corpus(evaluation, corpus, corpus_probes, limits[corpus], texts_of)
        if near := sample_near_misses(corpus_probes, near_misses, limits[corpus]):
            results += _evaluate_unanswerable(evaluation, corpus, near, corpus_probes, results, texts_of)
    for corpus, changed in sorted((outdated or {}).items()):
        if questions := sample(_questions(changed), limits[corpus]):
            results.append(evaluation.ask(knowledge.stale, f"{knowledge.STALE}/{corpus}", questions))
    for corpus, documents in sorted(texts.items()):
        if kept := [text for text in documents if text.strip()][: limits[corpus]]:
            results.append(evaluation.score(knowledge.bits_per_byte, f"bits_per_byte/{corpus}", kept))
    if any(not probe.control for probe in general):
        sampled = sample_probes(general, limit)
        report = counted(progress, "general", len(sampled))
        results.append(knowledge.general(loaded, engine, sampled, max_new_tokens=tokens, seed=seed, progress=report))
    current = {f"{name}/{max(probes, default=0)}": name for name in ("domain_knowledge", "domain_knowledge_stored")}
    repeated = [replace(result, suite=current[result.suite], items=()) for result in results if result.suite in current]
    return results + repeated


@dataclass(frozen=True)
class _Evaluation:
    """Arguments that all suites of an evaluation share; ``tokens`` bounds an answer to a question."""

    loaded: Loaded
    engine: Engine
    tokens: int
    seed: int
    progress: SuiteProgress | None

    def ask(self, run: Callable[..., SuiteResult], suite: str, questions: Sequence[Any], **options: Any) -> SuiteResult:
        """Let the model answer prompts or questions, and judge the answers."""
        merged = {"max_new_tokens": self.tokens, "window": self.loaded.max_length, "seed": self.seed} | options
        report = counted(self.progress, suite, len(questions))
        return run(self.loaded.chat, self.engine, questions, suite=suite, progress=report, **merged)

    def score(self, run: Callable[..., Any], suite: str, texts: Sequence[Any], **options: Any) -> Any:
        """Score given texts by their likelihood; None if that is impossible."""
        return run(self.loaded, texts, suite=suite, progress=counted(self.progress, suite, len(texts)), **options)


def _questions(probes: Sequence[Probe]) -> list[Probe]:
    return [probe for probe in probes if probe.form == "question"]


def corpus_limits(corpora: Collection[int], limit: int | None, earlier_limit: int) -> dict[int, int | None]:
    """Return the maximum items of a suite about each corpus: ``limit`` for the highest, the current one; the others
    share ``earlier_limit`` evenly, unless it is 0, with at least one item each and at most ``limit``.
    """
    if not earlier_limit or len(corpora) < 2:
        return dict.fromkeys(corpora, limit)
    newest, *earlier = sorted(corpora, reverse=True)
    share, remainder = divmod(earlier_limit, len(earlier))
    limits = {newest: limit}
    for index, corpus in enumerate(earlier):
        share_limit = max(1, share + (index < remainder))
        limits[corpus] = share_limit if limit is None else min(limit, share_limit)
    return limits


def sample(items: Sequence[Asked], limit: int | None) -> list[Asked]:
    """Return at most ``limit`` items in their order, selected deterministically from the whole list.

    Items are selected by a hash of the id, so that a larger limit only adds items.
    """
    if limit is None or len(items) <= limit:
        return list(items)
    ranked = sorted(range(len(items)), key=lambda i: hashlib.sha256(items[i].id.encode()).digest())
    return [items[index] for index in sorted(ranked[:limit])]


def sample_probes(probes: Sequence[Probe], limit: int | None) -> list[Probe]:
    """Return at most ``limit`` scored probes and at most a fifth as many control probes; see :func:`sample`."""
    if limit is None:
        return list(probes)
    chosen = sample([probe for probe in probes if not probe.control], limit)
    control = sample([probe for probe in probes if probe.control], -(-limit // CONTROL_SHARE))
    ids = {id(probe) for probe in (*chosen, *control)}
    return [probe for probe in probes if id(probe) in ids]


def sample_near_misses(probes: Sequence[Probe], most: int, limit: int | None) -> list[Probe]:
    """Return at most ``most`` and at most ``limit`` of the near misses; see :func:`sample`."""
    return sample([p for p in probes if p.form == NEAR_MISS], most if limit is None else min(most, limit))


def behaviours(
    prompts: Sequence[Prompt], extra_prompts: Sequence[Prompt], limit: int | None
) -> dict[str, list[Prompt]]:
    """Return the prompts of each behaviour suite by name: matching ``prompts`` and, if few, of ``extra_prompts``.

    A suite that takes ``further`` prompts is filled up from ``extra_prompts`` to a tenth of ``limit``, at most 100
    prompts. Every suite is skipped with fewer than 20.
    """
    target = FILLED if limit is None else min(FILLED, -(-limit // 10))
    used_ids = {prompt.id for prompt in prompts}
    by_suite = {}
    for suite in SUITES:
        matching = [prompt for prompt in prompts if suite.holds(prompt)]
        extra = {prompt.id: prompt for prompt in extra_prompts if prompt.id not in used_ids and suite.holds(prompt)}
        matching += sample(list(extra.values()), max(0, target - len(matching)) if suite.further else 0)
        if len(matching) >= min(FEWEST, target):
            by_suite[suite.name] = matching
    return by_suite


def recorded(
    engine: Engine,
    *,
    max_new_tokens: int,
    question_tokens: int | None = None,
    ifeval_tokens: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the settings recorded with the scores because they can change them: limits, batch budget, versions."""
    inner = engine.engine if isinstance(engine, CachingEngine) else engine
    return {
        "decoding": "greedy",
        "max_new_tokens": max_new_tokens,
        "question_tokens": question_tokens or min(max_new_tokens, QUESTION_TOKENS),
        **({} if ifeval_tokens is None else {"ifeval_tokens": ifeval_tokens}),
        "seed": seed,
        "engine": getattr(inner, "name", type(inner).__name__),
        "token_budget": getattr(inner, "token_budget", None),
        "complete_loops": getattr(inner, "complete_loops", False),
        "sentence_data": "nltk" if prepare().real else "stand-in",
        "lm_eval": version("lm_eval"),
        "nltk": version("nltk"),
    }


def _score_behaviours(
    ask: Callable[[str, Sequence[Prompt]], SuiteResult], answered: SuiteResult, by_suite: Mapping[str, Sequence[Prompt]]
) -> list[SuiteResult]:
    """Score the behaviour suites on existing responses; missing ones are generated once for all suites."""
    items = {item.id: item for item in answered.items}
    further = {p.id: p for prompts in by_suite.values() for p in prompts if p.id not in items}
    if further:
        items |= {item.id: item for item in ask("behaviour", list(further.values())).items}
    return [suite.result([items[p.id] for p in by_suite[suite.name]]) for suite in SUITES if suite.name in by_suite]


def _evaluate_corpus(
    evaluation: _Evaluation, corpus: int, probes: Sequence[Probe], limit: int | None, pages: Mapping[str, str] | None
) -> list[SuiteResult]:
    """Evaluate the forms of knowledge for which a corpus has probes."""
    results = []
    questions = sample_probes(_questions(probes), limit)
    if any(not probe.control for probe in questions):
        results.append(evaluation.ask(knowledge.ask, f"domain_knowledge/{corpus}", questions))
        if evaluation.loaded.can_score:
            suite = f"{domain_pmi.SUITE}/{corpus}"
            result = evaluation.score(measure_answer_likelihood, suite, questions, probes=probes)
            results += [] if result is None else [result]
        if opened := open_book.opened(questions, pages) if pages is not None else []:
            results.append(evaluation.ask(open_book.ask, f"{OPEN_BOOK}/{corpus}", opened))
    choices = sample_probes([probe for probe in probes if probe.form == "choice"], limit)
    if any(not probe.control for probe in choices):
        results.append(evaluation.score(knowledge.choose, f"domain_knowledge_stored/{corpus}", choices))
    return results


def _evaluate_unanswerable(
    evaluation: _Evaluation,
    corpus: int,
    near: Sequence[Probe],
    probes: Sequence[Probe],
    done: Sequence[SuiteResult],
    pages: Mapping[str, str] | None,
) -> list[SuiteResult]:
    """Ask near misses, also with the page of the nearest subject if ``pages`` are given."""
    questions = {probe.id: probe for probe in _questions(probes)}
    answers = [answer for probe in questions.values() for answer in probe.answers]
    rounds: list[tuple[str, str, Sequence[Probe], dict[str, str]]]
    rounds = [(UNANSWERABLE, f"domain_knowledge/{corpus}", near, {})]
    if pages is not None:
        opened = {probe.id: probe.question for probe in open_book.opened(near, pages)}
        with_page = [probe for probe in near if probe.id in opened]
        rounds.append((WITH_PAGE, f"{OPEN_BOOK}/{corpus}", with_page, opened))
    results = []
    for kind, reference_suite, round_probes, prompts in rounds:
        if round_probes:
            items = next((result.items for result in done if result.suite == reference_suite), ())
            known = [replace(item, prompt=questions[item.id].question) for item in items]  # without its page
            options = {"known": known, "answers": answers, "pages": prompts}
            results.append(evaluation.ask(ask_unanswerable, f"{kind}/{corpus}", round_probes, **options))
    return results


# Unanswerable: the replies of a model to near misses, questions about something that no document holds.
#
# A response *declines* if its first 300 characters say, in English, that there is no such thing, that it is not
# documented, or that the speaker does not know or cannot tell (:data:`_DECLINES`,
# :func:`evals.instruction_following.refuses`); "N/A" and "unknown" decline as well, while "none", "null" and "no" may
# be values. Any other response with a content word or a number that is not in the question gives a value: it is
# *confabulated*. The score is the share that is not. The same rules are applied to questions that documents answer.

WITH_PAGE = f"{UNANSWERABLE}_open_book"
# Details of the suite: of the near misses, and of the questions that the documents answer.
CONFABULATED = "confabulated"
KNOWN_DECLINED, KNOWN_ANSWERED = "known/declined", "known/answered"

_DECLINES_WITHIN = 300
_NOT = r"(?:\s+not|n['’]t)"
_STATED = (
    r"(?:documented|mentioned|specified|described|defined|stated|listed|known|found|recogni[sz]ed|provided|available"
    r"|supported)"
)
_DECLINES = re.compile(
    rf"\bthere (?:is|was|are|were)(?:{_NOT}(?: an?| any)?| no)\b|\bthere['’]s (?:no|not)\b|\bno such\b"
    rf"|\b(?:do|does|did){_NOT} (?:(?:seem|appear) to )?(?:exist|appear|mention|specify|document|describe|say|state)\b"
    rf"|\b(?:is|was|are|were){_NOT} (?:(?:yet|currently|explicitly|publicly) )?{_STATED}\b|^\W*(?:is )?not {_STATED}\b"
    rf"|\b(?:is|was|are|were){_NOT} an? (?:\w+[ -]){{0,2}}?"
    r"(?:known|valid|real|recogni[sz]ed|documented|actual|existing|official)\b"
    r"|\bno (?:information|documentation|mention|record|evidence|knowledge|data)"
    r" (?:is |was )?(?:on|of|about|for|available|given)\b"
    rf"|\b(?:I|we)(?: really| also)? do{_NOT} (?:know|have (?:any |enough |access|information)|find|recogni[sz]e)\b"
    r"|\b(?:I['’]m|I am|we['’]re|we are) not (?:aware|familiar|sure|certain)\b"
    rf"|\b(?:could|can)(?:{_NOT}|not) (?:find|locate|determine|verify|confirm|tell|answer|be (?:found|determined))\b"
    r"|\b(?:un|not )documented\b|\bnon-?existent\b|^\W*(?:unknown|n/a|not (?:available|applicable))\W*$",
    re.IGNORECASE,
)


def declines(response: str) -> bool:
    """Return whether a response says that there is no such thing, that it is not documented or not known."""
    return refuses(response) or bool(_DECLINES.search(re.sub(r"[*_\s]+", " ", response[:_DECLINES_WITHIN])))


def gives_value(question: str, response: str) -> bool:
    """Return whether a response does not decline, and has content that the question does not have."""
    return not declines(response) and bool(content(response) - content(question))


def ask_unanswerable(
    chat: ChatFormat,
    engine: Engine,
    probes: Sequence[Probe],
    known: Iterable[Item],
    answers: Iterable[str],
    *,
    pages: Mapping[str, str] = MappingProxyType({}),
    suite: str = UNANSWERABLE,
    max_new_tokens: int = 48,
    window: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SuiteResult:
    """Score near misses, prompted as chat with greedy decoding: the share that is not confabulated.

    Details: "declined", "confabulated", and "of_another_subject": confabulated replies with one of the ``answers`` to
    the corpus's questions, or of the probe's nearest subject, that is not in the question. "known/declined" and
    "known/answered" are about ``known``, the responses to questions that the documents answer, with the question as
    their prompt. ``pages`` has prompts with a page for some probes, by id; values from the page count as confabulated.
    """
    prompts = [pages.get(probe.id, probe.question) for probe in probes]
    turns = [(Message(role="user", content=prompt),) for prompt in prompts]
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "window": window, "seed": seed, "progress": progress}
    replies = answer(chat, engine, turns, **options)
    values = list(dict.fromkeys([*answers, *(value for probe in probes for value in probe.choices)]))
    hits = contained([*(item.text for item in replies), *(probe.question for probe in probes)], [[v] for v in values])
    items = []
    for at, (probe, reply) in enumerate(zip(probes, replies, strict=True)):
        invented = gives_value(probe.question, reply.text)
        verdicts = {
            DECLINED: declines(reply.text),
            CONFABULATED: invented,
            OF_ANOTHER: invented and any(row[at] and not row[at + len(probes)] for row in hits),
        }
        extra = {"tags": [*probe.tags], "absent": probe.absent, "tokens": reply.tokens, "finished": reply.finished}
        items.append(Item(probe.id, prompts[at], reply.text, float(not invented), verdicts, probe.source, extra))
    details = {name: score_of_items(items, [item.verdicts[name] for item in items]) for name in items[0].verdicts}
    if answerable := [item for item in known if not item.extra.get("control")]:
        details[KNOWN_DECLINED] = score_of_items(answerable, [declines(item.response) for item in answerable])
        gave_value = [gives_value(item.prompt, item.response) for item in answerable]
        details[KNOWN_ANSWERED] = score_of_items(answerable, gave_value)
    return SuiteResult(suite, score_of_items(items), tuple(items), details)
