"""Knowledge suites in two forms: questions in a chat, and choices in the document's wording by likelihood.

After mid-training a fact may be stored but not accessible, because the model can no longer answer questions; recovery
then appears to add knowledge. Both forms are therefore measured, with control probes about entities that no corpus
contains, and bits per byte on held-out documents (never alone: low perplexity does not imply that questions are
answered, arXiv 2402.12847).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evals.answer_matching import contains, exact_match, token_f1
from evals.generation import Answer, answer
from evals.probes import GAPS, NATURAL, STATEMENT
from evals.statistics import ratio_of, score_of_items
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.models.chat_template import ChatFormat, common_prefix
from recovery.rollouts.engine import Engine, Progress
from recovery.types import Item, Message, Probe, Score, SuiteResult

if TYPE_CHECKING:
    from evals.loglikelihood import Likelihood, Request
    from recovery.models.loaded import Loaded

loglikelihood = lazily("evals.loglikelihood")

# Maximum window, in tokens, for held-out documents, even if the model's window is longer.
LONGEST_WINDOW = 4096

# Suite of questions whose answer changed: the share answered as before.
STALE = "stale_answers"
# Tag prefix of a probe group; the group has its own score in the details, under the rest of the tag.
GROUP = "group:"


def ask(
    chat: ChatFormat,
    engine: Engine,
    probes: Sequence[Probe],
    *,
    suite: str = "domain_knowledge",
    max_new_tokens: int = 48,
    window: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SuiteResult:
    """Score probes of form "question", prompted as chat with greedy decoding.

    The headline is exact match of the normalised response with any accepted answer. Details: "contains" (an accepted
    answer occurs in the response as whole words), "f1" (over words, best of the accepted answers), "natural" and "gap"
    (exact match on natural questions and on cloze questions) and "control" (exact match on control probes, which count
    nowhere else). Each group (a ``group:`` tag) and the control probes also have both scores: NAME and
    "NAME/contains". Standard errors are clustered by the probes' source.
    """
    questions = _probes_of_form(probes, "question", suite)
    conversations = [(Message(role="user", content=probe.question),) for probe in questions]
    answers = answer(
        chat, engine, conversations, max_new_tokens=max_new_tokens, window=window, seed=seed, progress=progress
    )
    items = [_question_item(probe, response) for probe, response in zip(questions, answers, strict=True)]
    main = [item for item in items if not item.extra.get("control")]
    details = {
        "contains": score_of_items(main, (item.verdicts["contains"] for item in main)),
        "f1": score_of_items(main, (item.extra["f1"] for item in main)),
    }
    details |= _by_form(main) | _by_group(items)
    return _result(suite, items, details)


def stale(
    chat: ChatFormat, engine: Engine, probes: Sequence[Probe], *, suite: str = STALE, **options: Any
) -> SuiteResult:
    """Return the share of ``probes`` that are answered as an older version of their document did: less is better.

    An accepted answer anywhere in the response counts. ``options`` are those of :func:`ask`.
    """
    answered = ask(chat, engine, probes, suite=suite, **options)
    return _result(suite, [replace(item, score=float(item.verdicts["contains"])) for item in answered.items], {})


def _by_form(items: Sequence[Item]) -> dict[str, Score]:
    """Return the scores of natural questions and of cloze questions, which older probes have, if there are any."""
    natural = [item for item in items if {NATURAL, STATEMENT} & set(item.extra.get("tags", ()))]
    gaps = [item for item in items if GAPS & set(item.extra.get("tags", ()))]
    parts = {"natural": natural, "gap": gaps}
    return {name: score_of_items(part) for name, part in parts.items() if part}


def _by_group(items: Sequence[Item]) -> dict[str, Score]:
    """Return exact match and "contains" on the probes of each group and on the control probes."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        tags = [tag for tag in item.extra.get("tags", ()) if tag.startswith(GROUP)]
        for name in ["control"] if item.extra.get("control") else [tag.removeprefix(GROUP) for tag in tags]:
            groups.setdefault(name, []).append(item)
    details: dict[str, Score] = {}
    for name, members in groups.items():
        details[name] = score_of_items(members)
        details[f"{name}/contains"] = score_of_items(members, (item.verdicts["contains"] for item in members))
    return details


def choose(
    loaded: Loaded, probes: Sequence[Probe], *, suite: str = "domain_knowledge_stored", progress: Progress | None = None
) -> SuiteResult:
    """Score probes of form "choice": the candidate with the highest log-likelihood per UTF-8 byte is the answer.

    Normalising by bytes removes the disadvantage of long candidates and makes tokenizers comparable (lm-eval's
    ``acc_norm``). Details: "unnormalised" (by plain log-likelihood), "chance" (1 / number of candidates) and
    "control".
    """
    selected = _probes_of_form(probes, "choice", suite)
    for probe in selected:
        if len(probe.choices) < 2 or not all(probe.choices) or probe.answers[0] not in probe.choices:
            raise UsageError(f"probe {probe.id!r}: a choice needs at least two candidates, including the first answer")
    requests, places = _choice_requests(loaded, selected)
    per_probe = _per_probe(places, progress)
    scored = loglikelihood.likelihoods(loaded, requests, progress=per_probe)
    items = [
        _choice_item(probe, [scored[index][0] for index in place])
        for probe, place in zip(selected, places, strict=True)
    ]
    main = [item for item in items if not item.extra.get("control")]
    chances = [1 / len(probe.choices) for probe in selected if not probe.control] or [0.0]
    details = {
        "unnormalised": score_of_items(main, (item.verdicts["unnormalised"] for item in main)),
        "chance": Score(math.fsum(chances) / len(chances), 0.0, len(main)),
    }
    return _result(suite, items, details)


def bits_per_byte(
    loaded: Loaded,
    texts: Sequence[str],
    *,
    suite: str = "bits_per_byte",
    token_budget: int = 16384,
    progress: Progress | None = None,
) -> SuiteResult:
    """Return bits per UTF-8 byte on held-out documents: Σ −log2 p / Σ bytes; lower is better.

    A document longer than the model's window, or :data:`LONGEST_WINDOW`, is split into windows that overlap by half:
    every token is scored once, after the first window with at least half a window of context. Items are documents; the
    standard error is that of a ratio over documents.
    """
    nonempty = [text for text in texts if text.strip()]
    if not nonempty:
        raise UsageError(f"suite {suite!r}: there is no held-out text")
    size = min(LONGEST_WINDOW, loaded.max_length)
    requests: list[Request] = []
    owners: list[int] = []
    for index, text in enumerate(nonempty):
        for context, continuation in text_windows(loaded, text, size):
            requests.append((context, [continuation]))
            owners.append(index)
    members: list[list[int]] = [[] for _ in nonempty]
    for number, owner in enumerate(owners):
        members[owner].append(number)
    scored = loglikelihood.likelihoods(
        loaded, requests, token_budget=token_budget, progress=_per_probe(members, progress)
    )
    bits = [-sum(scored[number][0].total for number in place) / math.log(2) for place in members]
    sizes = [len(text.encode("utf-8")) for text in nonempty]
    items = tuple(
        Item(str(index), text[:200], "", bit / size, extra={"bits": bit, "bytes": size})
        for index, (text, bit, size) in enumerate(zip(nonempty, bits, sizes, strict=True))
    )
    return SuiteResult(suite, ratio_of(bits, sizes), items)


def general(
    loaded: Loaded,
    engine: Engine,
    probes: Sequence[Probe],
    *,
    max_new_tokens: int = 48,
    seed: int = 0,
    progress: Progress | None = None,
) -> SuiteResult:
    """Score general-knowledge probes of both forms in the suite "general"; details "question" and "choice" score each
    form.
    """
    suite = "general"
    parts: dict[str, SuiteResult] = {}
    forms = {probe.form for probe in probes if not probe.control}
    if "question" in forms:
        parts["question"] = ask(
            loaded.chat,
            engine,
            probes,
            suite=suite,
            max_new_tokens=max_new_tokens,
            window=loaded.max_length,
            seed=seed,
            progress=progress,
        )
    if "choice" in forms:
        parts["choice"] = choose(loaded, probes, suite=suite, progress=progress)
    if not parts:
        raise UsageError(f"suite {suite!r}: there is no probe of form 'question' or 'choice'")
    items = [item for part in parts.values() for item in part.items]
    details = {form: part.score for form, part in parts.items()}
    details |= {f"{form}/{name}": score for form, part in parts.items() for name, score in part.details.items()}
    return _result(suite, items, details)


def document_prefix(loaded: Loaded) -> list[int]:
    """Return the tokens that the tokenizer puts before every text (a beginning-of-text token, or nothing)."""
    with_special = list(loaded.tokenizer("a")["input_ids"])
    plain = loaded.chat.encode("a")
    starts = range(len(with_special) - len(plain) + 1)
    at = next((i for i in starts if with_special[i : i + len(plain)] == plain), 0)
    return [int(token) for token in with_special[:at]]


def start_token(loaded: Loaded) -> int:
    """Return a start token for tokenizers that add none: the BOS token, otherwise the end-of-text token."""
    for token in (loaded.tokenizer.bos_token_id, loaded.tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return min(loaded.chat.end_ids)


def text_windows(loaded: Loaded, text: str, size: int) -> list[tuple[list[int], list[int]]]:
    """Return (context, continuation) windows of at most ``size`` tokens of a text; every token is scored once.

    All begin with what the tokenizer puts before a text, since some models predict badly without it; if that is
    nothing, the first one begins with a start token.
    """
    tokens, special = loaded.chat.encode(text), document_prefix(loaded)
    prefix = special or [start_token(loaded)]
    first, step = size - len(prefix), max(1, size // 2)
    pieces = [(prefix, tokens[:first])] if tokens else []
    for start in range(first, len(tokens), step):
        context = tokens[max(0, start - (size - step - len(special))) : start]
        pieces.append(([*special, *context], tokens[start : start + step]))
    return pieces


def _choice_requests(loaded: Loaded, probes: Sequence[Probe]) -> tuple[list[Request], list[list[int]]]:
    """Return each candidate as a (context ids, [continuation ids]) request, and the request indices of each probe.

    Spaces before the gap belong to the candidate, and the text is split before a token that spans the gap, so that the
    ids equal those of the text in a document. All are split at the same place, to be scored on the same text.
    """
    texts: list[str] = []
    for probe in probes:
        texts += [probe.question.rstrip(), *(probe.question + choice for choice in probe.choices)]
    encoded = map(loaded.chat.encode, texts)
    prefix = document_prefix(loaded)
    start = prefix or [start_token(loaded)]
    requests: list[Request] = []
    places: list[list[int]] = []
    for probe in probes:
        stem = next(encoded)
        places.append(list(range(len(requests), len(requests) + len(probe.choices))))
        candidates = [next(encoded) for _ in probe.choices]
        cut = min(min(common_prefix(stem, ids), len(ids) - 1) for ids in candidates)
        requests += [(prefix + ids[:cut] if cut else start, [ids[cut:]]) for ids in candidates]
    return requests, places


def _per_probe(places: Sequence[Sequence[int]], progress: Progress | None) -> Progress | None:
    """Convert progress in requests to approximate progress in probes, exact at the end."""
    if progress is None:
        return None
    total, probe_count = sum(map(len, places)), len(places)
    state = {"requests": 0, "probes": 0}

    def report(count: int, tokens: int) -> None:
        state["requests"] += count
        probes = probe_count * state["requests"] // max(1, total)
        progress(probes - state["probes"], tokens)
        state["probes"] = probes

    return report


def _question_item(probe: Probe, response: Answer) -> Item:
    right = exact_match(response.text, probe.answers)
    extra: dict[str, Any] = {
        "answers": list(probe.answers),
        "f1": token_f1(response.text, probe.answers),
        "tokens": response.tokens,
        "finished": response.finished,
        **({} if response.fits else {"too_long": True}),
    }
    verdicts = {"correct": right, "contains": contains(response.text, probe.answers)}
    return _marked(Item(probe.id, probe.question, response.text, float(right), verdicts, probe.source, extra), probe)


def _choice_item(probe: Probe, scored: Sequence[Likelihood]) -> Item:
    sizes = [len(choice.encode("utf-8")) for choice in probe.choices]
    per_byte = [likelihood.total / size for likelihood, size in zip(scored, sizes, strict=True)]
    chosen = max(range(len(per_byte)), key=per_byte.__getitem__)
    plain = max(range(len(scored)), key=lambda i: scored[i].total)
    right = probe.choices.index(probe.answers[0])
    extra = {
        "answers": list(probe.answers[:1]),
        "choices": len(probe.choices),
        "logprob_per_byte": per_byte[right],
        "margin_per_byte": per_byte[right] - max(v for i, v in enumerate(per_byte) if i != right),
    }
    verdicts = {"correct": chosen == right, "unnormalised": plain == right}
    item = Item(probe.id, probe.question, probe.choices[chosen], float(chosen == right), verdicts, probe.source, extra)
    return _marked(item, probe)


def _marked(item: Item, probe: Probe) -> Item:
    extra = dict(item.extra)
    if probe.tags:
        extra["tags"] = list(probe.tags)
    if probe.control:
        extra |= {"control": True, "headline": False}
    return replace(item, extra=extra)


def _probes_of_form(probes: Sequence[Probe], form: str, suite: str) -> list[Probe]:
    selected = [probe for probe in probes if probe.form == form]
    if not any(not probe.control for probe in selected):
        raise UsageError(f"suite {suite!r}: there is no probe of form {form!r} (control probes do not count)")
    for probe in selected:
        if not probe.answers:
            raise UsageError(f"probe {probe.id!r} has no accepted answer")
    return selected


def _result(suite: str, items: Sequence[Item], details: dict[str, Score]) -> SuiteResult:
    main = [item for item in items if not item.extra.get("control")]
    control = [item for item in items if item.extra.get("control")]
    if control:
        details = {**details, "control": score_of_items(control)}
    return SuiteResult(suite, score_of_items(main), tuple(items), details)
