"""The gate: a cycle is judged by rules on its recorded evaluations and compared with earlier checkpoints.

Rules are parsed in :mod:`evals.acceptance_rules` and tested in :mod:`evals.acceptance`; here are the evaluations that
they are about, the decision, and what is stored with the cycle for the dashboard (:func:`conclude`).
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from db import Database, Decided, Tracker, decide, queries, records, reviews
from db.artifacts import Artifact
from db.cycle_answers import IFEVAL_PROMPTS
from db.cycle_evidence import GATE, KNOWLEDGE, NOTES, for_decision, is_compared, newest_compared
from db.json_values import json_safe
from db.schema import DISCARDED
from evals.acceptance import Decision, judge_all
from evals.acceptance_rules import OF_ANOTHER, PREFERENCE, SOURCE, STUDENT, UNANSWERABLE, Need, Rule, needs, parse_rule
from evals.behaviour import PREFIX, SUITES
from evals.beyond_constant import DETAIL, single_instructions
from evals.domain_pmi import SUITE
from evals.instruction_following import can_be_judged
from evals.measurement import Measurement, evidence_of
from evals.paired_tests import Judged, by_type, compare, corrected, judged
from evals.statistics import score_of
from pipelines.evaluation.knowledge_figures import KnowledgeMatrix, knowledge_figures
from pipelines.evaluation.plan import GENERAL
from pipelines.evaluation.stored_results import JUDGING, asked_prompts, items_of, newest, other_release
from pipelines.runtime.session import Session
from recovery.config import EvalConfig, build
from recovery.data.prompts import behaviour_prompts
from recovery.errors import UsageError, printable
from recovery.settings import flag_of
from recovery.text_files import read_text

# Three points, not a share of base: the error of a difference hardly depends on base's score, so that a student as good
# as a base at 0.3 or at 0.8 is accepted in four of five decisions with the default limits (benchmarks.verdicts).
# Two thirds of what mid-training taught, not nine tenths: a small corpus has some 150 questions, and a tenth is less
# than these can show. In K, not in answers, of which a small model gives too few for any share of them to be shown.
# Ten points of what no document answers: 100 such questions seldom decide less (two: 4 to 7% of students as good as
# base pass, simulated).
STANDARD = (
    "instructions >= base - 3",
    "learnt",
    "learnt >= 0.67*midtrained",
    "general >= base - 3",
    "unanswerable >= base - 10",
)
STANDARD_RULES = "standard"  # their name
LEFT_TO_A_PERSON = "gate_left"
_DECISIONS = {"accept": "accepted", "reject": "rejected"}
_JUDGING_KNOWLEDGE = ("recovery",)  # lm_eval checks instructions and has the tasks

# checkpoint of a rule -> suite of a rule -> evaluations by name; several for a group of tasks
Evaluations = dict[str, dict[str, dict[str, records.Evaluation]]]


def rules_of(texts: Sequence[str], session: Session) -> list[Rule]:
    """Parse rules; "standard" stands for those of :data:`STANDARD` that this model has suites for.

    Raises UsageError with the position of a mistake in a rule.
    """
    known = [rule for rule in STANDARD if "general" not in rule or (session.base.path / GENERAL).is_file()]
    spelt = [rule for text in texts for rule in (known if text.strip() == STANDARD_RULES else (text,))]
    return [parse_rule(text) for text in dict.fromkeys(spelt)]


def check_rules(session: Session, rules: Sequence[Rule], config: EvalConfig, first: int, last: int) -> None:
    """Raise UsageError for a rule about what cycles ``first`` to ``last`` do not measure with this ``config``."""
    own = {f"behaviour/{path.stem}" for path in config.behaviour} | {f"behaviour/{suite.name}" for suite in SUITES}
    tasks = {name for task in config.tasks for name in _names_of(task)}
    latest = session.registry.latest()  # a later check reports missing weights
    asked = [] if latest is None else session.learnt_cycles(latest, first - 1)
    check_source(rules)
    for rule in rules:
        if rule.corpus is not None and not 1 <= rule.corpus <= last:
            raise UsageError(f"--gate {rule.text!r}: there is no cycle {rule.corpus}: the last one is {last}")
        if rule.corpus is not None and rule.corpus > first:
            raise UsageError(
                f"--gate {rule.text!r}: it judges cycle {first}, too, when there is no corpus {rule.corpus} yet: give "
                f"the rule to a later `recover cycle`, or to `recover gate`"
            )
        if rule.corpus is not None and rule.corpus < first and rule.corpus not in asked:
            raise UsageError(
                f"--gate {rule.text!r}: cycle {rule.corpus} was rejected or rolled back, and no later model is asked "
                "about its documents: name another one"
            )
        # Only base is asked about documents that were not trained on.
        if rule.reference == "previous" and rule.of_new_corpus and (last > first or session.resolve("latest").cycle):
            way = f"name an earlier one, as in {rule.name}(1), or compare with midtrained or base"
            raise UsageError(
                f"--gate {rule.text!r}: `previous` is not asked about a corpus that it never learnt: {way}"
            )
        if rule.name == "retention" and rule.argument not in tasks:
            raise UsageError(f"--gate {rule.text!r}: nothing measures {rule.argument}: add --task {rule.argument}")
        if rule.name == "behaviour" and f"behaviour/{rule.argument}" not in own:
            suites = ", ".join(sorted(name.partition("/")[2] for name in own))
            raise UsageError(f"--gate {rule.text!r}: there is no such suite: use {suites}, or --behaviour FILE")
        if rule.name == "general" and not (session.base.path / GENERAL).is_file():
            raise UsageError(f"--gate {rule.text!r}: this model has no questions of general knowledge: use a --task")


def _names_of(task: str) -> set[str]:
    """Return the names by which a rule can mean a value of --task: of a YAML file its own name and that inside it."""
    path = Path(task)
    if path.suffix not in (".yaml", ".yml"):
        return {task.partition("=")[0]}
    try:
        named = re.findall(r"^task:\s*['\"]?([\w.-]+)", read_text(path), re.MULTILINE)
    except UsageError:
        named = []
    return {path.stem, *named}


def judge_cycle(
    session: Session, rules: Sequence[Rule], number: int, *, alpha: float = 0.05, looks: int | None = None
) -> Decision:
    """Judge a cycle by its recorded evaluations; record the judgement as an event with the ids of those it used.

    ``looks`` share ``alpha``; by default as many as in the cycle's newest judgement, so that a cycle whose gate looks
    several times is not judged at another level afterwards.

    Enters no decision, and no event if the newest judgement of the cycle is the same. The votes that a rule is about
    are recorded as an evaluation first, so that later votes do not change what the judgement rests on.
    """
    cycle_id = _cycle(session, number).id  # before anything is recorded
    if all(row.end is None for row in _rows(session) if row.cycle.id == cycle_id):  # else base is the last one
        raise UsageError(f"cycle {number} has no checkpoint yet: there is nothing to judge")
    if queries.is_trial(session.tracker.database, session.experiment_id, cycle_id):
        raise UsageError(f"cycle {number} is {records.NO_DECISION} to judge it")
    _store_votes(session, rules, number)
    check_source(rules)
    evaluations = gather(session, rules, number)
    measured = measured_by(session.tracker.database, evaluations)
    last = last_judgement(session, cycle_id)
    if looks is None:
        looks = 1 if last is None else int(last.data.get("looks", 1))
    decision = judge_all(rules, evidence_of(measured, number), alpha=alpha, looks=looks)
    judged_by = rules, decision, evaluations, number
    notes = [*_what_would_decide(session, *judged_by), *_releases(session, *judged_by)]
    data = json_safe(decision.to_json() | {"evaluations": _evaluation_ids(*judged_by), NOTES: notes})
    if last is None or last.data != data:  # a cycle that was killed after its judgement is judged again
        reason = f"cycle {number}: {decision.reason}"
        session.tracker.event(session.experiment_id, reason, kind=GATE, cycle_id=cycle_id, data=data)
    return decision


def check_source(rules: Sequence[Rule]) -> None:
    """Raise UsageError for a rule about the source of an artifact, where a cycle is judged."""
    for rule in rules:
        if rule.reference == SOURCE:
            raise UsageError(f"{rule.text!r}: {SOURCE} is what an artifact was made from: recover gate --artifact NAME")


def measured_by(database: Database, evaluations: Evaluations) -> dict[str, dict[str, dict[str, Measurement]]]:
    """Return the items of evaluations."""
    return {
        checkpoint: {
            suite: {name: items_of(database, row) for name, row in parts.items()} for suite, parts in suites.items()
        }
        for checkpoint, suites in evaluations.items()
    }


def _what_would_decide(
    session: Session, rules: Sequence[Rule], decision: Decision, evaluations: Evaluations, number: int
) -> Iterator[str]:
    """Yield, for each rule that further items would decide, how many prompts these take and what asks them; or that
    there are fewer. Only of suites whose items ``--limit`` alone chooses, and of IFEval if its file has too few.
    """
    database = session.tracker.database
    for rule, verdict in zip(rules, decision.verdicts, strict=True):
        asked_of = [need.checkpoint for need in needs(rule, number)]
        sides = [evaluations.get(who, {}).get(verdict.suite, {}).get(verdict.suite) for who in asked_of]
        rows = [one for one in sides if one is not None and one.stage_id is not None]
        if verdict.more is None or not rows or len(rows) < len([who for who in sides if who is not None]):
            continue
        stages = [queries.stage(database, row.stage_id) for row in rows if row.stage_id is not None]
        settings = [stage.config for stage in stages if stage is not None]
        composed = verdict.suite in (records.INSTRUCTIONS[0], *(f"{PREFIX}{one.name}" for one in SUITES))
        instructions = composed or verdict.suite in records.INSTRUCTIONS
        asked = [asked_prompts(database, row.checkpoint_id, verdict) if instructions else row.n for row in rows]
        # Both answered the items of the side that was asked fewer.
        wanted = -(-min(asked) * (verdict.n + verdict.more) // verdict.n)
        takes = f"{rule.text}: that takes some {wanted:,} {'prompts' if instructions else 'questions'}"
        if verdict.suite == records.INSTRUCTIONS[1] and wanted > IFEVAL_PROMPTS:
            yield f"{takes}, and IFEval has {IFEVAL_PROMPTS}: the decision is yours"
        own = composed and any(one.get("prompts") or one.get("behaviour") for one in settings)
        if own or not (composed or verdict.suite in ("general", f"domain_knowledge/{number}", f"{SUITE}/{number}")):
            continue
        limits = [one.get("limit") or math.inf for one in settings]
        has = max((n for n, limit in zip(asked, limits, strict=True) if n < limit), default=math.inf)
        if composed and has == math.inf:
            prompts = behaviour_prompts(session.base.path, seed=settings[0].get("seed", 0)).test
            has = sum(map(can_be_judged, prompts))
        flags = f"--limit {wanted}{_lengths(session, settings[0])}"
        names = [f"`recover eval {name} {flags}`" for name in references(session, [rule], number)]
        asking = f": {' and '.join(names)}, then `recover gate {number}` again"
        yield takes + (f", and there are {has:,}: the decision is yours" if has < wanted else asking)


def _lengths(session: Session, asked: Mapping[str, Any]) -> str:
    """Return the flags of the lengths of answers that an evaluation had and `recover eval` alone would not have."""
    usual = vars(build(EvalConfig, {}, session.recipe))
    names = [name for name in ("max_new_tokens", "question_tokens") if asked.get(name, usual[name]) != usual[name]]
    return "".join(f" {flag_of(EvalConfig, name)} {asked[name]}" for name in names)


def _releases(
    session: Session, rules: Sequence[Rule], decision: Decision, evaluations: Evaluations, number: int
) -> list[str]:
    """Return lines about checkpoints that another release judged than the student: its prompts may differ."""
    rows, lines = _rows(session), []
    for rule, verdict in zip(rules, decision.verdicts, strict=True):
        student, *references = needs(rule, number)
        packages = _JUDGING_KNOWLEDGE if rule.name in ("domain", "stored", "learnt", "general") else JUDGING
        for need in references:
            sides = (evaluations.get(one.checkpoint, {}) for one in (student, need))
            own, others = (side.get(verdict.suite, {}).values() for side in sides)
            releases = other_release(session.tracker.database, packages, own, others)
            checkpoint = _checkpoint(rows, need, number)
            if releases and checkpoint is not None:
                lines.append(f"{verdict.suite} of {checkpoint.name} and of the student are of two releases: {releases}")
    return list(dict.fromkeys(lines))


def _store_votes(session: Session, rules: Sequence[Rule], number: int) -> None:
    rows = _rows(session)
    for name in dict.fromkeys(rule.rival for rule in rules if rule.rival is not None):
        student, rival = (_checkpoint(rows, Need(one, ()), number) for one in (STUDENT, name))
        if student is not None and rival is not None and student.id != rival.id:
            store_votes(session.tracker, student, rival, name)


def last_judgement(session: Session, cycle_id: int) -> records.Event | None:
    """Return the newest judgement of a cycle: a decision as JSON, and the ids of the evaluations it used."""
    return queries.newest_event(session.tracker.database, GATE, session.experiment_id, cycle_id)


def gather(session: Session, rules: Sequence[Rule], number: int, *, artifact: Artifact | None = None) -> Evaluations:
    """Find the evaluations that the rules are about; missing ones are left out. An ``artifact`` takes the student's
    place.
    """
    rows = _rows(session)
    served = {} if artifact is None else {STUDENT: artifact.checkpoint, SOURCE: artifact.source}
    evaluations: Evaluations = {}
    for name, need in ((rule.name, need) for rule in rules for need in needs(rule, number)):
        checkpoint = served.get(need.checkpoint) or _checkpoint(rows, need, number)
        if checkpoint is not None:
            known = newest(session.tracker.database, checkpoint.id)
            for suite in need.suites:
                parts = {suite: known[suite]} if suite in known else {}
                if not parts and name == "retention":  # the only one that names a task, which may be a group
                    parts = _of_group(session.tracker.database, known, suite)
                if parts:
                    evaluations.setdefault(need.checkpoint, {})[suite] = parts
    return evaluations


def _evaluation_ids(
    rules: Sequence[Rule], decision: Decision, evaluations: Evaluations, number: int
) -> dict[str, dict[str, list[int]]]:
    """Return the ids of the evaluations that the verdicts rest on, by checkpoint and suite."""
    used: dict[str, dict[str, list[int]]] = {}
    for rule, verdict in zip(rules, decision.verdicts, strict=True):
        for need in needs(rule, number):
            parts = evaluations.get(need.checkpoint, {})
            for suite in need.suites if verdict.missing else (verdict.suite,):
                if suite in parts:
                    used.setdefault(need.checkpoint, {})[suite] = [row.id for row in parts[suite].values()]
    return used


def references(session: Session, rules: Sequence[Rule], number: int) -> list[str]:
    """Return the names of the checkpoints that the rules are about, the judged one first."""
    rows = _rows(session)
    checkpoints = (_checkpoint(rows, need, number) for rule in rules for need in needs(rule, number))
    return list(dict.fromkeys(checkpoint.name for checkpoint in checkpoints if checkpoint is not None))


def newest_decision(session: Session, number: int) -> int:
    """Return the id of the newest decision about a cycle, 0 if there is none. Raises UsageError without the cycle."""
    decisions = queries.decisions(session.tracker.database, _cycle(session, number).id)
    return max((one.id for one in decisions), default=0)


def enter(session: Session, number: int, decision: Decision, *, seen: int | None = None) -> Decided | None:
    """Record the gate's decision with its evidence; return None if it is undecided and left to the user.

    ``seen`` is that of :func:`~db.decisions.decide`.
    """
    word = _DECISIONS.get(decision.decision)
    if word is None:
        return None
    database, cycle = session.tracker.database, _cycle(session, number)
    return decide(database, cycle.id, word, who=GATE, why=decision.reason, evidence=decision.to_json(), seen=seen)


def decide_cycle(session: Session, number: int, decision: str, *, who: str | None, why: str) -> Decided:
    """Record the user's decision. Raises UsageError if the reason is empty or there is no such cycle."""
    if not why.strip():
        raise UsageError("the reason is empty: give one with --why")
    cycle = _cycle(session, number)
    row = next(one for one in _rows(session) if one.cycle.id == cycle.id)
    # The recorded comparisons may be of an earlier checkpoint, or there are none.
    evidence = for_decision(row, conclude(session, number) if row.end is not None else {})
    return decide(
        session.tracker.database, cycle.id, decision, who=who or system_user(), why=why.strip(), evidence=evidence
    )


def conclude(session: Session, number: int) -> dict[str, Any]:
    """Compare a cycle's last checkpoint with base, its mid-trained checkpoint and the one before, by suite and by type
    of instruction, with the knowledge of all corpora so far. Stored with the cycle for the dashboard and the report,
    where the tracker can be written.
    """
    rows = _rows(session)
    row = next((r for r in rows if r.cycle.number == number), None)
    if row is None or row.end is None:
        raise UsageError(f"cycle {number} has no checkpoint yet: there is nothing to compare")
    end = row.end.checkpoint
    covered = newest_compared(session.tracker.database, end.id)  # read first: a later one may not be in the comparisons
    pairs = {"base": row.base, "midtrained": row.midtrained if row.recovered else None, "before": row.before}
    comparisons: dict[str, Any] = {
        name: compared(session.tracker.database, one.checkpoint.id, end.id)
        for name, one in pairs.items()
        if one is not None and one.checkpoint.id != end.id
    }
    evidence = {
        "checkpoint": end.name,
        "newest_evaluation": covered,
        "compared_with": comparisons,
        "knowledge": matrix(session.tracker.database, rows, number).to_json(),
        KNOWLEDGE: {
            one.checkpoint.name: knowledge_figures(session.tracker.database, row.base.checkpoint.id, one.checkpoint.id)
            for one in (row.midtrained, row.recovered)
            if one is not None and row.base is not None
        },
    }
    if not session.tracker.database.readonly:
        details = dict(row.cycle.details) | {"evidence": evidence}
        session.tracker.cycle(session.experiment_id, number, details=details)
    return evidence


def matrix(database: Database, rows: Iterable[records.CycleRow], last: int) -> KnowledgeMatrix:
    """Return the knowledge of every corpus so far, asked as questions, after each cycle up to ``last`` that was not
    rejected or rolled back. Where later cycles asked less about a corpus, its scores are those on the questions that
    all were asked, if there are any.
    """
    kept = [row for row in rows if row.cycle.number <= last and row.cycle.decision not in DISCARDED]
    known = [(row.cycle.number, row.end, row.base) for row in kept if row.end is not None]
    ends = [end for _, end, _ in known]
    base = known[0][2] if known else None
    scores = _comparable(database, [*ends, base] if base is not None else ends)
    chance = scores[len(ends)] if base is not None else {}
    return KnowledgeMatrix(tuple(number for number, _, _ in known), tuple(scores[: len(ends)]), chance)


def _comparable(database: Database, measured: Sequence[records.Measured]) -> list[dict[int, float]]:
    """Return each checkpoint's scores by corpus; if numbers of questions differ, on the common questions, if any."""
    asked = [one.scores.domain_knowledge_by_corpus for one in measured]
    scores = [{corpus: score.value for corpus, score in one.items()} for one in asked]
    corpora = {corpus for one in asked for corpus in one}
    uneven = {corpus for corpus in corpora if len({one[corpus].n for one in asked if corpus in one}) > 1}
    newest_of = [newest(database, one.checkpoint.id) for one in measured] if uneven else []
    for corpus in uneven:
        having = [at for at, one in enumerate(asked) if corpus in one]  # the checkpoints that were asked about it
        shared = _on_shared_items(database, [newest_of[at].get(f"domain_knowledge/{corpus}") for at in having])
        for at, value in zip(having, shared, strict=False):  # shorter, and the scores stay, if no item is shared
            scores[at][corpus] = value
    return scores


def _on_shared_items(database: Database, evaluations: Sequence[records.Evaluation | None]) -> list[float]:
    """Return the score of each evaluation on the items that all of them have; an empty list without such items."""
    items = [judged(queries.judged_items(database, one.id)) if one is not None else {} for one in evaluations]
    shared = set.intersection(*map(set, items))
    return [sum(scores[key].score for key in shared) / len(shared) for scores in items] if shared else []


def compared(database: Database, first: int, second: int) -> dict[str, Any]:
    """Compare two checkpoints on every suite that both have, and by type of instruction."""
    one, two = newest(database, first), newest(database, second)
    items, parts, others = {}, [], []
    for suite in sorted(one.keys() & two.keys(), key=lambda name: (name not in records.INSTRUCTIONS, name)):
        if is_compared(suite):
            sides = [queries.judged_items(database, side[suite].id) for side in (one, two)]
            items[suite] = [judged(rows) for rows in sides]
            if suite in records.INSTRUCTIONS:
                singles = (judged(single_instructions(rows)) for rows in sides)
                parts.append(compare(f"{suite}/{DETAIL}", *singles))
            if records.kind_of(suite) == UNANSWERABLE:
                others.append(compare(f"{suite}/{records.NOT_OF_ANOTHER}", *map(_without_others, items[suite])))
    suites = [*(compare(suite, *both) for suite, both in items.items()), *others]
    # Single instructions are the same hypothesis as their suite's prompts: no further one of Holm's family.
    every = [*corrected([one for one in suites if one is not None]), *(one for one in parts if one is not None)]
    result: dict[str, Any] = {"suites": [c.to_json() for c in every]}
    for suite in records.INSTRUCTIONS:
        if suite in items:
            result[f"types of {suite}"] = [c.to_json() for c in by_type(*items[suite])]
    return result


def _without_others(items: Mapping[str, Judged]) -> dict[str, Judged]:
    """Return items scored by whether they hold no value of another subject."""
    return {key: replace(one, score=float(not (one.verdicts or {}).get(OF_ANOTHER))) for key, one in items.items()}


def _cycle(session: Session, number: int) -> records.Cycle:
    """Return a cycle. Raises UsageError if there is none of that number."""
    cycles = session.cycles()
    if number not in cycles:
        raise no_cycle(number, cycles)
    return cycles[number]


def cycle_number(session: Session, given: str) -> int:
    """Return the number of the cycle that a user names. Raises UsageError with the known cycles if there is none."""
    cycles = session.cycles()
    number = {str(known): known for known in cycles}.get(given)
    if number is None:
        raise no_cycle(given, cycles)
    return number


def no_cycle(number: int | str, cycles: Iterable[int]) -> UsageError:
    """Return the error for a cycle that does not exist, with the numbers of those that do."""
    number = printable(str(number)) or "''"
    if known := ", ".join(map(str, cycles)):
        only = "the cycles are" if "," in known else "the only cycle is"
        return UsageError(f"there is no cycle {number}: {only} {known}")
    return UsageError(
        f"there is no cycle {number}, nor any other yet: `recover cycle --docs FOLDER` runs one, and "
        "`recover midtrain --docs FOLDER` begins one"
    )


def _rows(session: Session) -> tuple[records.CycleRow, ...]:
    overview = queries.overview(session.tracker.database, session.experiment_id)
    return overview.cycles if overview is not None else ()


def _checkpoint(rows: Sequence[records.CycleRow], need: Need, number: int) -> records.Checkpoint | None:
    """Return the checkpoint that a need is about, if there is one."""
    at = need.corpus if need.checkpoint == "first" and need.corpus is not None else number
    row = next((r for r in rows if r.cycle.number == at), None)
    if row is None:
        raise no_cycle(at, (r.cycle.number for r in rows))
    measured = {"base": row.base, "midtrained": row.midtrained, "previous": row.before}.get(need.checkpoint, row.end)
    return measured.checkpoint if measured is not None else None


def _of_group(database: Database, known: Mapping[str, records.Evaluation], group: str) -> dict[str, records.Evaluation]:
    """Return the evaluations of a group of tasks (mmlu): suites with its prefix that no longer group (mmlu_pro) has."""
    members = {name: row for name, row in known.items() if name.startswith(f"{group}_")}
    ids = {row.stage_id for row in members.values()}
    stages = {key: None if key is None else queries.stage(database, key) for key in ids}

    def is_of_another(name: str, row: records.Evaluation) -> bool:
        stage = stages[row.stage_id]
        asked = () if stage is None else stage.config.get("tasks", ())
        tasks = (task.partition("=")[0] for task in asked)
        return any(name.startswith(f"{task}_") and len(task) > len(group) for task in tasks)

    return {name: row for name, row in members.items() if not is_of_another(name, row)}


def system_user() -> str:
    """Return the name of the system's user, "unknown" if there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


# Blind votes of reviewers as an evaluation, which the gate judges and a bundle proves like any other.

_SWAPPED = {reviews.FIRST: reviews.SECOND, reviews.SECOND: reviews.FIRST}
_POINTS = {"student": 1.0, "tie": 0.5, "rival": 0.0}


def share_of(votes: Mapping[str, str]) -> float | None:
    """Return the score of an item: the mean of its votes for the student, without the skipped; None without a vote."""
    return reviews.mean_vote(votes.values(), _POINTS)


def store_votes(tracker: Tracker, student: records.Checkpoint, rival: records.Checkpoint, name: str) -> None:
    """Record the votes on a checkpoint against another as the suite "preference/NAME", unless they are recorded.

    An item's score is the mean of its votes for the student, a tie as one half. Votes that are no
    preference (:func:`db.reviews.is_preference`) are left out. Without any vote nothing is recorded.
    """
    first, second = sorted((student.id, rival.id))
    current = [one for one in reviews.votes(tracker.database, first, second) if reviews.is_preference(one)]
    about = {one.key: one for one in current}
    votes = {
        key: {who: _gate_choice(choice, student.id == second) for who, choice in sorted(choices.items())}
        for key, choices in reviews.tally(current).choices.items()
    }
    scores = {key: share for key in votes if (share := share_of(votes[key])) is not None}
    content = hashlib.sha256(json.dumps({key: votes[key] for key in scores}, sort_keys=True).encode()).hexdigest()
    known = newest(tracker.database, student.id).get(f"{PREFERENCE}/{name}")
    if known.details.get("votes") == content if known is not None else not scores:
        return
    score = score_of(list(scores.values()), [about[key].group for key in scores]) if scores else None
    items = [
        {
            "id": about[key].item,
            "group": about[key].group,
            "prompt": about[key].prompt,
            "response": about[key].second_response if student.id == second else about[key].first_response,
            "score": value,
            "extra": {"votes": votes[key]},
        }
        for key, value in scores.items()
    ]
    tracker.add_evaluation(
        student.id,
        f"{PREFERENCE}/{name}",
        value=score.value if score is not None else math.nan,
        stderr=score.stderr if score is not None else math.nan,
        n=len(items),
        name="share",
        details={"votes": content, "rival": rival.name},
        items=items,
    )


def _gate_choice(choice: str, student_second: bool) -> str:
    """Return a choice in the words of the gate: "student", "rival", "tie" or "skip"."""
    choice = choice if student_second else _SWAPPED.get(choice, choice)
    return {reviews.SECOND: "student", reviews.FIRST: "rival"}.get(choice, choice)
