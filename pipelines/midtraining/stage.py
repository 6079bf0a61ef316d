"""The mid-training stage: plan, training on documents, checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from db import records
from pipelines.runtime.model_group import ModelSpecs, load_models, train_settings
from pipelines.runtime.model_loading import FrozenModel
from pipelines.runtime.session import Session
from pipelines.runtime.stage import running
from recovery.config import MidtrainConfig
from recovery.errors import CorpusError
from recovery.lazy_import import lazily
from recovery.losses.config import LossConfig
from recovery.losses.objective import MAIN_TEACHER
from recovery.training.interfaces import Hooks, StepBatch
from recovery.workspace import Checkpoint

if TYPE_CHECKING:
    from pipelines.data.corpus_snapshot import CorpusSnapshot
    from pipelines.midtraining import material as data
    from pipelines.midtraining import plan as planner
    from pipelines.planning import memory
else:
    # By name: importing a stage must not import what reads formats of documents, makes questions about them and
    # estimates memory. Only members of the material and the plan are used.
    data, planner = lazily("pipelines.midtraining.material"), lazily("pipelines.midtraining.plan")
    memory = lazily("pipelines.planning.memory")


def midtrain(
    session: Session,
    config: MidtrainConfig,
    own: CorpusSnapshot | None = None,
    *,
    resume: records.Stage | None = None,
    name: str | None = None,
) -> Checkpoint:
    """Run the stage on the documents of a cycle and return its checkpoint, which becomes ``latest``.

    ``own`` is the snapshot of an open cycle's documents, by default of the next cycle, opened on the configuration's;
    ``resume`` is the record of an interrupted stage to continue; ``name`` is the checkpoint's name,
    "cycle-K/midtrained" by default. Raise StageInterrupted if a stop is requested, CorpusError if the stage to continue
    began with other documents.
    """
    student, opened = session.resolve(config.student), own is not None
    own = own or data.gather_cycle(session, config, session.next_cycle())
    if resume is not None:
        _check_documents(resume, own)
    material = data.gather_material(session, config, student, own)
    plan = planner.plan_of(session, material)
    session.forget()  # a training of hours needs the memory
    with memory.memory_counted(plan.rows, config.device):
        if not opened:  # after the plan, which may refuse: until then a stopped stage of the cycle can go on
            data.check_questions(session, config.trial, plan.few_questions)
            data.record_cycle(session, own, config.seed)
        student = session.registered(student)
        # The tuning is fixed here: a resumed stage may find another amount of memory.
        asked, config = config.tuning, replace(config, student=student.name, tuning=plan.tuning)
        session.display.say(plan.text())
        with running(
            session, "midtrain", config, cycle=own.cycle, student=student, resume=resume, rows=plan.rows, asked=asked
        ) as stage:
            stage.describe(corpus_hash=own.hash)
            frozen = FrozenModel(session, config)
            if material.write(stage, frozen):
                plan = planner.with_written(session, material, plan)
            chat = data.replayed(stage, frozen, material.config, material.clean)
            with session.at_once("packing the documents into rows"):
                steps = material.steps(plan.length, chat)
            # The clean model is the anchor and the teacher of the replayed chat, if configured.
            specs = ModelSpecs(
                config,
                student,
                train_settings(config, plan.length.steps, plan.lr),
                teachers={MAIN_TEACHER: {material.clean: 1.0}} if config.distils_replay else {},
                anchor=material.clean if config.anchor else None,
                loss_config=LossConfig(anchor=config.anchor, divergence="forward_kl", metric="replay_kl"),
                trained_tokens=material.tokens(plan.length.row) if config.embeddings == "documents" else None,
            )
            with load_models(stage, specs, frozen) as models:
                hooks = Hooks(
                    log=lambda _step, metrics: models.instrumentation.account(metrics) if models.scorers else None,
                    reference=material.guard(chat),
                )
                result = models.train(stage, lambda step: StepBatch(steps[step - 1], {}), hooks=hooks)
            extra = {"cycle": own.cycle, "corpus_hash": own.hash, "steps": result.step, "tokens": result.trained_tokens}
            stage.details = {"corpus": list(own.lines), "replay": len(chat), **extra, "parameters": plan.parameters}
            stage.details |= {"augmentation": list(plan.augmentation)} if plan.augmentation else {}
            return stage.keep(models.loaded, "midtrained", student, extra, name=name)


def _check_documents(stopped: records.Stage, own: CorpusSnapshot) -> None:
    """Raise CorpusError if another mid-training has replaced the documents that a stopped stage began with."""
    if stopped.details.get("corpus_hash", own.hash) != own.hash:  # none before 0.2
        raise CorpusError(
            f"stage {stopped.id} (midtrain) cannot continue: the documents of cycle {own.cycle} were replaced by those "
            f"of {own.folder} after it began; train on them again (recover midtrain, or recover cycle --abandon)"
        )
