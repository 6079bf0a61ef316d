"""The tables of an experiment on two releases of the same documents: what became of facts, and stale answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evals.answer_matching import normalise
from pipelines.data.question_splits import Question
from pipelines.experiments.bounds import ASKED, MISSING, STALE
from pipelines.experiments.page_cells import arm_names, at_each, checkpoint_name, percent_cell
from pipelines.experiments.records import Measured, Record
from pipelines.reports.document import table_lines


def stale_by_corpus(records: Sequence[Record]) -> list[str]:
    """Return the shares of questions about an older release that are answered as it had it although a newer one has
    another answer, mean of the seeds; no lines if none was asked.
    """
    at = at_each(records)
    rows = []
    for arm in arm_names(records):
        mine = [record for record in records if record.arm == arm]
        for corpus in range(1, max(record.cycles for record in mine) + 1):
            name = f"{STALE}/{corpus}"
            found = [[one.suites[name] for one in _there(mine, *place) if name in one.suites] for place in at]
            if seeds := len(max(found, key=len)):
                asked = max(suite["n"] for suites in found for suite in suites)
                shares = [percent_cell([suite["value"] for suite in suites]) for suites in found]
                rows.append([f"`{arm}`", str(corpus), str(seeds), str(asked), *shares])
    head = ["arm", "corpus", "seeds", "questions", *(checkpoint_name(*place) for place in at)]
    return table_lines(head, rows) if rows else []


def facts_by_release(records: Sequence[Record], questions: Sequence[Question]) -> list[str]:
    """Count the answers to test questions about facts that several corpora have, seeds together: of those whose answer
    changed and of those whose answer did not, as each corpus has it.
    """
    tested = [question for question in questions if question.use != "train" and not question.control]
    corpora = list(dict.fromkeys(question.corpus for question in questions))
    accepted: dict[str, dict[str, set[str]]] = {}
    for question in tested:
        of_fact = accepted.setdefault(question.fact, {})
        of_fact.setdefault(question.corpus, set()).update(map(normalise, question.answers))
    shared = {fact: list(by.values()) for fact, by in accepted.items() if len(by) == len(corpora) > 1}
    same = {fact for fact, sides in shared.items() if all(side == sides[0] for side in sides)}
    at = at_each(records)
    rows = []
    for arm in arm_names(records):
        mine = [record for record in records if record.arm == arm]
        for words, facts in (("changed", shared.keys() - same), ("unchanged", same)):
            for number, corpus in enumerate(corpora, 1):
                ids = {question.id for question in tested if question.fact in facts and question.corpus == corpus}
                cells = [_answered(_there(mine, *place), number, ids, words == "changed") for place in at]
                rows.append([f"`{arm}`", words, f"as corpus {number} has it", *cells])
    head = ["arm", "facts", "answered", *(checkpoint_name(*place) for place in at)]
    return table_lines(head, rows) if shared else []


def _there(records: Sequence[Record], cycle: int, kind: str) -> list[Measured]:
    return [found for record in records if (found := record.at(cycle, kind)) is not None]


def _answered(checkpoints: Sequence[Measured], corpus: int, ids: Collection[str], changed: bool) -> str:
    """Return how many of the questions ``ids`` about a corpus are answered as it has it, and how many were asked; those
    that are outdated are a suite of their own.
    """
    won = total = 0
    for one in checkpoints:
        asked = [verdicts for key, verdicts in one.items.get(f"{ASKED}/{corpus}", {}).items() if key in ids]
        won, total = won + sum("1" in verdicts for verdicts in asked), total + len(asked)
        stale = one.suites.get(f"{STALE}/{corpus}")
        if changed and stale is not None:
            won, total = won + round(stale["value"] * stale["n"]), total + stale["n"]
    return f"{won} of {total}" if total else MISSING
