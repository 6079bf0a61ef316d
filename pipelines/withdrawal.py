"""Withdrawal of documents: what they taught, and the cycles again without them.

One mechanism: a plan of cycles that withdraws something (`recover cycle --withdraw`, or `recover withdraw --rebuild`,
which plans the cycles again from the last checkpoint that read none of it) ends with a certificate
(:mod:`pipelines.certificate`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from db import decide, queries, records
from db.cycle_evidence import CERTIFICATE
from db.facts import Fact, ledger
from evals.measurement import Measurement
from pipelines.cycle_plan import CyclePlan, check_no_plan, new_plan
from pipelines.data.corpus_snapshot import CorpusSnapshot, load_snapshots
from pipelines.data.revisions import named, near_name
from pipelines.evaluation.acceptance import system_user
from pipelines.evaluation.knowledge_figures import ASKED, ItemReader
from pipelines.evaluation.stored_results import newest
from pipelines.runtime.recorded_paths import read
from pipelines.runtime.session import Session
from recovery.config import CycleConfig, DistillConfig, EvalConfig, MidtrainConfig, from_json
from recovery.errors import UsageError
from recovery.types import Probe
from recovery.workspace import Checkpoint

BEGUN = "withdrawal"  # an event, before anything is trained
STORED = "domain_knowledge_stored"
# Settings that a cycle's place gives its stages, and not the user.
_SET_BY_PLACE = {"docs", "student", "withdrawn", "knowledge_teacher", "earlier_teacher", "prompts_before"}


@dataclass(frozen=True)
class Withdrawal:
    """What names withdraw: the ids of trained documents by cycle, among all ``corpora``, and each cycle's last
    checkpoint.
    """

    names: tuple[str, ...]
    documents: Mapping[int, tuple[str, ...]]
    corpora: Mapping[int, CorpusSnapshot]
    ends: Mapping[int, Checkpoint]

    @property
    def ids(self) -> list[str]:
        """The documents, each once."""
        return sorted({id for documents in self.documents.values() for id in documents})

    @cached_property
    def probes(self) -> dict[tuple[int, str], Probe]:
        """The probes about the documents, by cycle and id."""
        probes: dict[tuple[int, str], Probe] = {}
        for k, ids in self.documents.items():
            sources = named(self.corpora[k], {*self.names, *ids})
            about = (one for one in self.corpora[k].probes if one.source in sources)
            probes |= {(k, one.id): one for one in about if not one.control and not one.absent}
        return probes

    def without(self, measured: Measurement, corpus: int) -> Measurement:
        """Return the measurement of a suite about a corpus without the items about the documents."""
        out = {probe.source for (k, _), probe in self.probes.items() if k == corpus}
        kept = {key: group for key, group in measured.groups.items() if group not in out}
        return Measurement({key: measured.items[key] for key in kept}, kept)


def withdrawal_of(session: Session, names: Sequence[str], cycles: Collection[int]) -> Withdrawal:
    """Return what names withdraw of the documents of cycles, which may be nothing."""
    corpora = load_snapshots(session.workspace, session.cycles())
    documents = {k: _trained_on(corpora[k], names) for k in sorted(cycles)}
    documents = {k: ids for k, ids in documents.items() if ids}
    overview = queries.overview(session.tracker.database, session.experiment_id, details=False)
    by_id = {one.id: one for one in session.registry.all()}
    rows = overview.cycles if overview is not None else ()
    ends = {row.cycle.number: by_id[row.end.checkpoint.id] for row in rows if row.end is not None}
    return Withdrawal(tuple(names), documents, corpora, ends)


def _trained_on(corpus: CorpusSnapshot, names: Sequence[str]) -> tuple[str, ...]:
    selected = named(corpus, names)
    return tuple(document.id for document in corpus.documents if document.id in selected)


def find_withdrawal(session: Session, names: Sequence[str]) -> Withdrawal:
    """Return what names withdraw of what ``latest`` was trained on. Raises UsageError, which says what to do, if that
    is nothing, or if the documents of one of its cycles are missing.
    """
    trained = session.trained_cycles(session.resolve("latest"))
    for folder in map(session.workspace.corpus, trained):
        if not folder.is_dir():
            raise UsageError(f"{folder} is missing, so that nobody can say what was trained on: put the folder back")
    withdrawal = withdrawal_of(session, names, trained)
    if not withdrawal.documents:
        raise _not_trained_on(session, withdrawal)
    return withdrawal


def _not_trained_on(session: Session, withdrawal: Withdrawal) -> UsageError:
    names, name = withdrawal.names, ", ".join(withdrawal.names)
    for event in queries.events(session.tracker.database, session.experiment_id, kind=CERTIFICATE, limit=1000):
        if set(names) <= {*event.data["names"], *event.data["documents"]}:
            number = event.data["cycle"]
            return UsageError(f"{name} is withdrawn already: its certificate is in `recover report {number}`")
    for number, corpus in withdrawal.corpora.items():
        if _trained_on(corpus, names):
            decision = str(session.cycles()[number].decision or "left").replace("_", " ")
            return UsageError(f"latest was not trained on {name}: cycle {number}, which has it, was {decision}")
        if named(corpus, names) & {document.id for document in corpus.held_out}:
            return UsageError(f"{name} was held out of training in cycle {number}: there is nothing to withdraw")
    known = {document.id for corpus in withdrawal.corpora.values() for document in corpus.documents}
    return UsageError(f"no cycle has a document called {name}{near_name(names[0], known)}")


def start_without(session: Session, withdrawal: Withdrawal) -> tuple[Checkpoint, list[int]]:
    """Return the last checkpoint that read none of the documents and still has its weights, and the cycles to be
    trained again. Raises UsageError if no checkpoint is known to be without them.
    """
    latest, name = session.resolve("latest"), ", ".join(withdrawal.names)
    line = [latest, *session.registry.ancestors(latest)]
    if foreign := next((one for one in line if one.kind == "external"), None):
        raise UsageError(
            f"no checkpoint is known to be without {name}: latest comes from {foreign.name}, and what that was trained "
            f"on is not recorded: begin again from the clean model, in another --workspace"
        )
    trained = session.trained_cycles(latest)
    for number in sorted((k for k in trained if k <= min(withdrawal.documents)), reverse=True):
        start = next(one for one in line if (one.cycle or 0) < number)
        if start.path.exists():  # else it was pruned
            return start, [k for k in trained if k >= number]
    raise UsageError(f"no checkpoint without {name} is left: {start.name} is not in {start.path}: put the folder back")


def taught(session: Session, removed: Withdrawal) -> tuple[list[Fact], list[tuple[str, list[int]]]]:
    """Return the facts of the documents; and for base and the end of each cycle that was asked, the questions that it
    answered, of how many, and the sentences that it recognised, of how many.
    """
    database = session.tracker.database
    facts = ledger(database, session.experiment_id)
    facts = [one for one in facts if any((one.cycle, key) in removed.probes for key in one.wordings)]
    reader, rows = ItemReader(database), []
    for checkpoint in (session.base, *removed.ends.values()):
        known, counts = newest(database, checkpoint.id or 0), list[int]()
        for suite in (ASKED, STORED):
            items = [(k, one) for k in removed.documents for one in reader.items(known.get(f"{suite}/{k}"))]
            scores = [one.score or 0.0 for k, one in items if (k, one.item) in removed.probes]
            counts += [sum(score >= 1 for score in scores), len(scores)]
        if any(counts):
            rows.append((checkpoint.name, counts))
    return facts, rows


def rebuild_plan(session: Session, removed: Withdrawal) -> CyclePlan:
    """Return the plan of the cycles again, from their snapshots and with the settings of the first of them.

    Settings that differed in later cycles are printed. Writes nothing. Raises UsageError if a cycle was not made by a
    mid-training and a recovery, or as :func:`start_without` and :func:`~pipelines.cycle_plan.new_plan`.
    """
    check_no_plan(session)
    start, again = start_without(session, removed)
    stages, folders = [_stages(session, k) for k in again], tuple(map(session.workspace.corpus, again))
    for number, made in zip(again, stages, strict=True):
        if not {"midtrain", "distill"} <= made.keys():
            docs = " ".join(f"--docs {folder}" for folder in folders)
            raise UsageError(
                f"cycle {number} was not made by a mid-training and a recovery, so that its settings are not known: "
                f"`recover rollback {again[0]}`, then with yours `recover cycle {docs} --withdraw {removed.names[0]}`"
            )
    values = {kind: read(stage.config, session.workspace) for kind, stage in stages[0].items()}
    distill = from_json(DistillConfig, values["distill"])
    before = {name for k in again for name in removed.corpora[k].withdrawn}
    teacher, drawn = distill.knowledge_teacher, distill.prompts_before
    config = CycleConfig(
        docs=folders,
        knowledge_teacher="midtrained" if teacher == f"cycle-{again[0]}/midtrained" else teacher,
        evaluate="evaluate" in values,
        midtrain=dataclasses.replace(
            from_json(MidtrainConfig, values["midtrain"]), docs=None, withdrawn=tuple(sorted({*before, *removed.names}))
        ),
        distill=dataclasses.replace(
            distill,
            knowledge_teacher=None,
            earlier_teacher=None,
            prompts_before=None if drawn else drawn,  # 0 was asked for; other numbers follow from a cycle's place
        ),
        eval=from_json(EvalConfig, values.get("evaluate", {})),
    )
    if differing := _differing_settings(stages):
        session.display.say(f"set otherwise in later cycles, and now as in cycle {again[0]}: {', '.join(differing)}")
    return new_plan(session, config, start=start.name)


def _stages(session: Session, number: int) -> dict[str, records.Stage]:
    """Return the first finished stage of each kind of a cycle: later ones extend it, or measure something more."""
    cycle = session.cycles()[number].id
    stages = queries.stages(session.tracker.database, session.experiment_id, cycle_id=cycle, limit=1000)
    return {stage.kind: stage for stage in stages if stage.status == "finished"}  # newest first


def _differing_settings(stages: Sequence[Mapping[str, records.Stage]]) -> list[str]:
    """Return the settings that later cycles had otherwise than the first."""
    first, *later = ({kind: one[kind].config for kind in ("midtrain", "distill")} for one in stages)
    pairs = [(config, first[kind]) for one in later for kind, config in one.items()]
    differing = ((key for key in own.keys() - _SET_BY_PLACE if own[key] != base.get(key)) for own, base in pairs)
    return sorted({key for keys in differing for key in keys})


def begin(session: Session, plan: CyclePlan) -> None:
    """Record what a plan withdraws from what ``latest`` has read, and roll back the cycles after the plan's start."""
    latest, names = session.resolve("latest"), plan.config.midtrain.withdrawn
    withdrawal = withdrawal_of(session, names, session.trained_cycles(latest)) if names else None
    if withdrawal is None or not withdrawal.documents:
        return
    data = {"names": names, "cycles": list(withdrawal.documents), "first": plan.first, "before": latest.name}
    session.tracker.event(session.experiment_id, f"{', '.join(names)} is withdrawn", kind=BEGUN, data=data)
    if plan.start:
        _, again = start_without(session, withdrawal)
        why = f"{', '.join(names)} is withdrawn: trained again from cycle {plan.first} on"
        cycle = session.cycles()[again[0]].id
        done = decide(session.tracker.database, cycle, "rolled_back", who=system_user(), why=why)
        session.display.say(f"cycle {again[0]} and what builds on it are rolled back; latest is {done.after} again")


def begun(session: Session, plan: CyclePlan) -> tuple[Withdrawal, Checkpoint] | None:
    """Return what a plan withdrew when it began, and the checkpoint that was ``latest`` then; None if nothing."""
    events = queries.events(session.tracker.database, session.experiment_id, kind=BEGUN, limit=1000)
    data = next((one.data for one in events if one.data["first"] == plan.first), None)
    if data is None:
        return None
    return withdrawal_of(session, data["names"], data["cycles"]), session.resolve(data["before"])
