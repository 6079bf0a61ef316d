"""`recover distill`: recovery by on-policy distillation; `recover train`: training by any method."""

from __future__ import annotations

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import option_of, options_of, several
from recovery.config import DistillConfig, build
from recovery.errors import UsageError

# Options of a training stage: those of `recover distill`, and the settings that `recover train` adds.

distill_options = several(
    options_of(DistillConfig, "teacher", "student", "knowledge_teacher", "knowledge_share"),
    options_of(DistillConfig, "earlier_share", "earlier_teacher", "near_miss_share", "writer_questions", "blend"),
    options_of(DistillConfig, "document_loss", "document_teacher", "document_texts"),
    common.model,
    common.workspace,
    common.report_to(),
    common.recipe,
    stage_options.prompts,
    options_of(
        DistillConfig,
        "prompts_per_step",
        "prompts_before",
        "samples_per_prompt",
        "focus",
        "without_kinds",
        "max_new_tokens",
        "overlap",
    ),
    options_of(DistillConfig, "ratio_cap", "steps", "lr", "until", "margin", "check_every", "development"),
    stage_options.retired("--until-rule"),
    options_of(DistillConfig, "plateau", "min_aligned", "token_views"),
    stage_options.trial,
    stage_options.tuning_options,
    stage_options.model_options,
    stage_options.seed,
    common.dry_run,
    common.as_json,
)
divergence = options_of(DistillConfig, "divergence", "top_k")
method_settings = several(
    options_of(DistillConfig, "experts", "alpha", "lam"),
    divergence,
    options_of(DistillConfig, "beta", "anchor", "clip", "drop", "entry_clip", "floor", "batch_epochs", "positions"),
    options_of(
        DistillConfig,
        "skip_first",
        "continuation",
        "answers",
        "data",
        "reward",
        "reward_timeout",
        "keep_above",
        "context",
    ),
    options_of(DistillConfig, "context_file", "context_template", "ema_decay", "temperature", "max_tokens", "alarm"),
    option_of(DistillConfig, "geometry_every"),
)


@click.command(
    cls=common.ShortHelp,
    common="teacher student knowledge_teacher model workspace recipe prompts steps lr trial tuning engine dry_run",
)
@distill_options
@divergence
@click.pass_context
def command(context: click.Context, /, **_: object) -> None:
    """Recover a student's behaviour by on-policy distillation.

    The student samples completions, the teacher scores every token, and the student is trained towards the teacher.
    Needs no mid-training in this workspace: `recover distill --student ./my-finetune --teacher ORG/MODEL`. The same as
    `recover train --method opd`.
    """
    run(context, method="opd")


def run(context: click.Context, **fixed: str) -> None:
    """Run or plan a training stage with the flags of the command and its ``fixed`` settings."""
    from pipelines.cycle_plan import check_no_plan
    from pipelines.runtime.teacher_server import NOT_BEGUN, reach_teacher
    from recovery.rewards import resolve_reward

    flags, given = context.params, common.given(context) | fixed
    config = build(DistillConfig, given, flags["recipe"])  # wrong flags are reported before anything is opened
    new = flags["model"] is None and not flags["workspace"].exists
    clean = _clean_model(config) if new else None
    purpose, as_json = f"recover {context.info_name}", flags["as_json"]
    with (
        stage_options.at_work(
            flags["workspace"], purpose, model=flags["model"], fallback=clean, dry_run=flags["dry_run"]
        ) as session,
        stage_options.configured(session, DistillConfig, given, flags["recipe"]) as config,
    ):
        others = (config.knowledge_teacher, config.earlier_teacher, *config.routes.values())
        # A wrong name, reward or address is reported before torch is imported.
        session.check_names(config.student, *config.teaching.weights, *others)
        if config.rewarded:
            resolve_reward(config.reward)
        if not flags["dry_run"]:
            check_no_plan(session)
            reach_teacher(config, NOT_BEGUN, session.display.say)
        from pipelines.distillation.plan import plan_distill
        from pipelines.distillation.stage import distill

        if config.trial:
            config = stage_options.trial_sizes(session, "distill", config, given, plan_distill)
        if flags["dry_run"]:
            plan = plan_distill(session, config)
            common.emit(plan, as_json, plan.text)
            return
        made = distill(session, config)
    text = f"made {made.name}: {made.path}\nnext: recover eval"
    common.emit({"checkpoint": stage_options.checkpoint_json(made)}, as_json, text)


def _clean_model(config: DistillConfig) -> str | None:
    """Return what a new workspace takes for the clean model: the teacher, else a student from elsewhere; None if the
    settings name neither.

    Raises UsageError if the clean model teaches a student from elsewhere: it may have been made from any.
    """
    from pipelines.runtime.checkpoint_names import is_elsewhere

    teachers = config.teaching.weights if config.lam > 0 else {}
    own = teachers.keys() & {"base", "latest"}
    if len(teachers) == 1 and not own:
        return next(iter(teachers))
    if not is_elsewhere(config.student):
        return None
    answered = config.alpha < 1 and config.answers == "teacher" and not config.teaching.weights  # then by the clean one
    if own or answered:
        other = ", or another teacher with --teacher" if own else ""
        raise UsageError(
            f"--student {config.student}: a new workspace does not know the clean model that is to teach it: name that "
            f"with --model{other}"
        )
    return config.student


# `recover train`: training with any method, by its preset and its settings.


@click.command(
    cls=common.ShortHelp,
    common="method teacher student model workspace recipe prompts data reward steps lr tuning engine dry_run",
)
@option_of(DistillConfig, "method")
@distill_options
@method_settings
@click.pass_context
def train(context: click.Context, /, **_: object) -> None:
    """Train with any method: a preset and its settings.

    SFT, GRPO, on-policy distillation, self-distillation with a context, and combinations of them. A method is a
    choice of three settings: the share of the student's own completions (--alpha), the weight of the teacher against
    the reward (--lambda), and the teacher (--teacher, --context). A preset sets them; any flag overrides one.
    """
    run(context)
