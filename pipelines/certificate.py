"""The certificate of a withdrawal: what a model without some documents still has of them, and what else it lost.

Three parts, each shown or not. The facts are back at base: with D_i of :mod:`evals.domain_pmi` for the questions about
the documents, in means over questions and intervals over facts,

    upper bound of K(after − base)  ≤  a quarter of  K(taught − base),      whose lower bound is above 0.

Nothing of the text is continued near-exactly (:mod:`evals.verbatim`) that base does not continue. Everything else is
not inferior to the model before, by the gate's rules for what is served. Nothing is added to the records of the model's
scores, which are about what it should know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from db.cycle_evidence import CERTIFICATE
from evals.acceptance import judge_all
from evals.acceptance_rules import SOURCE, STUDENT, needs, parse_rule
from evals.domain_pmi import FEWEST_FACTS, SUITE, blocks_of, gain
from evals.measurement import evidence_of
from evals.statistics import interval, resampled_means
from pipelines.data.document_rows import document_rows
from pipelines.evaluation.knowledge_figures import ASKED, ItemReader
from pipelines.evaluation.shipping import RULES
from pipelines.evaluation.stored_results import items_of, newest, result_items
from pipelines.runtime.session import Session
from pipelines.withdrawal import Withdrawal
from recovery.config import EvalConfig
from recovery.lazy_import import lazily
from recovery.types import SuiteResult
from recovery.workspace import Checkpoint

if TYPE_CHECKING:
    from evals import suites, verbatim
    from evals.verbatim import Beginning
    from pipelines.runtime import generation, model_loading
else:  # torch, which a command that certifies nothing does not need
    suites, verbatim = lazily("evals.suites"), lazily("evals.verbatim")
    generation, model_loading = lazily("pipelines.runtime.generation"), lazily("pipelines.runtime.model_loading")

MARGIN = 0.25  # of what was taught: the most that may be left
SHOWN, NOT_SHOWN = "shown", "not shown"
NOT_PROVEN = (
    "Not proven: that no other document says the same, that no other prompt finds the text, and that copies are gone: "
    "earlier checkpoints, what was exported of them, and the workspace's corpora still hold it."
)
_Results = Mapping[str, SuiteResult]


def certify(
    session: Session, withdrawal: Withdrawal, before: Checkpoint, after: Checkpoint, config: EvalConfig, number: int
) -> None:
    """Measure a withdrawal, record the certificate with cycle ``number`` and print it.

    It is about the documents of ``withdrawal`` that ``before`` was trained on. Of the corpora that ``after`` should not
    know, the questions are asked as they were when the corpus was new.
    """
    forgotten = set(session.trained_cycles(before)) - set(session.trained_cycles(after))
    questions = {k: withdrawal.corpora[k].probes for k in sorted(forgotten | withdrawal.documents.keys())}
    texts = [one for k, ids in withdrawal.documents.items() for one in withdrawal.corpora[k].documents if one.id in ids]
    runs: dict[str, list[int]] = {}
    measured: list[SuiteResult] = []
    asked: list[Beginning] = []
    for name, checkpoint in (("base", session.base), ("before", before), ("after", after)):
        with session.at_once(f"certificate: measuring {checkpoint.name}"):
            loaded = model_loading.load_frozen(session.verified(checkpoint), config)
            asked = asked or verbatim.beginnings(document_rows(texts, loaded.tokenizer, loaded.max_length))
            with generation.cached_engine(session, checkpoint, loaded, config) as engine:
                runs[name] = verbatim.verbatim_runs(engine, asked, loaded.max_length)
                if name == "after":
                    measured = suites.evaluate(
                        loaded,
                        engine,
                        probes_by_corpus=questions,
                        max_new_tokens=config.max_new_tokens,
                        question_tokens=config.question_tokens,
                        seed=config.seed,
                        limit=config.limit,
                    )
    results = {one.suite: one for one in measured}
    parts = [
        _facts(session, withdrawal, results),
        _strings(asked, runs),
        _others(session, withdrawal, before, after, results),
    ]
    verdict = SHOWN if all(part["verdict"] == SHOWN for part in parts) else NOT_SHOWN
    data = {"names": withdrawal.names, "documents": withdrawal.ids, "cycle": number, "before": before.name}
    data |= {"after": after.name, "verdict": verdict, "parts": parts, "not_proven": NOT_PROVEN}
    message = f"withdrawal of {', '.join(withdrawal.names)}: {verdict}"
    cycle_id = session.cycle_id(number)
    session.tracker.event(session.experiment_id, message, kind=CERTIFICATE, cycle_id=cycle_id, data=data)
    lines = (f"{part['verdict']:9} {part['what']}: {part['says']}" for part in parts)
    session.display.say("\n".join((message, *lines, NOT_PROVEN)))


def _facts(session: Session, withdrawal: Withdrawal, results: _Results) -> dict[str, Any]:
    """Compare K of what the documents taught, at the end of each of their cycles, with K of what is left, over base."""
    reader, probes = ItemReader(session.tracker.database), withdrawal.probes
    base = newest(session.tracker.database, session.base.id or 0)
    changes: list[tuple[float, float]] = []
    facts: list[str] = []
    for k in withdrawal.documents:
        rows_taught = newest(session.tracker.database, withdrawal.ends[k].id or 0)
        suite = f"{SUITE}/{k}"
        own = results[suite].items if suite in results else ()
        remaining = blocks_of((one.id, one.group, one.extra) for one in own)
        items = (reader.items(rows.get(suite)) for rows in (base, rows_taught))
        clean, learnt = (blocks_of((one.item, one.group, one.extra) for one in side) for side in items)
        before, now = gain(clean, learnt), gain(clean, remaining)
        if before is not None and now is not None:
            asked = {id for cycle, id in probes if cycle == k}
            for key in before.of_questions.keys() & now.of_questions.keys() & asked:
                probe = probes[k, key]
                changes.append((before.of_questions[key], now.of_questions[key]))
                facts.append("\x1f".join((str(k), probe.source, probe.passage, probe.answers[0])))
    return facts_back(changes, facts)


def facts_back(changes: Sequence[tuple[float, float]], facts: Sequence[str]) -> dict[str, Any]:
    """Judge whether facts are back at base, by D_i over base of each question [questions, (taught, left)] in bits, and
    the fact that it asks about: questions with the same answer and passage in one document are one.
    """
    part: dict[str, Any] = {"what": "its facts are back at base", "verdict": NOT_SHOWN}
    part |= {"questions": len(facts), "facts": len(set(facts))}
    if part["facts"] < FEWEST_FACTS:
        return part | {"says": f"{part['facts']} facts have K, and fewer than {FEWEST_FACTS} show nothing"}
    draws = resampled_means([changes], facts)  # [draws, (taught, left)]
    for at, name in enumerate(("taught", "left")):
        low, high = interval(draws[:, at])
        part[name] = {"bits": sum(pair[at] for pair in changes) / len(changes), "low": low, "high": high}
    most = MARGIN * part["taught"]["bits"]
    if part["taught"]["low"] > 0 and part["left"]["high"] <= most:
        part["verdict"] = SHOWN
    says = "{bits:.2f} bits ({low:.2f} to {high:.2f})"
    summary = f"K over base: taught {says.format(**part['taught'])}, left {says.format(**part['left'])}"
    return part | {"says": f"{summary}, at most {most:.2f}; {len(facts)} questions about {part['facts']} facts"}


def _strings(asked: Sequence[Beginning], runs: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Compare how much of the text each model continues."""
    pairs = {name: zip(asked, lengths, strict=True) for name, lengths in runs.items()}
    continued = {name: sum(one.continued(run) for one, run in rows) for name, rows in pairs.items()}
    longest = {name: max(lengths, default=0) for name, lengths in runs.items()}
    parts = (f"{name} {continued[name]} (longest run {longest[name]} tokens)" for name in ("before", "after", "base"))
    return {
        "what": "its text is no longer continued",
        "verdict": SHOWN if asked and continued["after"] <= continued["base"] else NOT_SHOWN,
        "says": f"of {len(asked)} beginnings near-exactly: {', '.join(parts)}",
        "continued": continued,
        "longest": longest,
        "runs": {name: list(length) for name, length in runs.items()},
    }


def _others(
    session: Session, withdrawal: Withdrawal, before: Checkpoint, after: Checkpoint, results: _Results
) -> dict[str, Any]:
    """Judge everything else by the rules for what is served, as if the model before were its source."""
    database, last = session.tracker.database, max(withdrawal.corpora)
    everywhere = f"{ASKED}/{last}"  # what the rule reads, here of all corpora
    of_after, of_before = (
        {suite: items_of(database, row) for suite, row in newest(database, one.id or 0).items()}
        for one in (after, before)
    )
    of_after |= {suite: result_items(one) for suite, one in results.items()}
    asked = sorted(suite for suite in of_after.keys() & of_before.keys() if suite.startswith(f"{ASKED}/"))
    known = of_before.keys() | ({everywhere} if asked else set())
    # Rules about what the model before was measured on, and always the first: otherwise nothing could be judged.
    rules = [parse_rule(text) for number, text in enumerate(RULES) if not number or _suites(text, last) & known]
    wanted = {suite for text in RULES for suite in _suites(text, last)} - {everywhere}
    sides: dict[str, dict[str, Any]] = {}
    for name, own in ((STUDENT, of_after), (SOURCE, of_before)):
        others = {f"all {suite}": withdrawal.without(own[suite], int(suite.rpartition("/")[2])) for suite in asked}
        sides[name] = {suite: {suite: one} for suite, one in own.items() if suite in wanted} | {everywhere: others}
    decision = judge_all(rules, evidence_of(sides, last))
    reasons = (one.reason for one in decision.verdicts)
    return {
        "what": "everything else is kept within 3 points",
        "verdict": SHOWN if decision.decision == "accept" else NOT_SHOWN,
        "says": "; ".join(reasons).replace(everywhere, "all other documents"),
        "decision": asdict(decision),
    }


def _suites(rule: str, corpus: int) -> set[str]:
    return {suite for need in needs(parse_rule(rule), corpus) for suite in need.suites}
