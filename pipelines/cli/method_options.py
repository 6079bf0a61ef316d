"""Options of a training stage: those of `recover distill`, and the settings that `recover train` adds."""

from __future__ import annotations

from pipelines.cli import common, stage_options
from pipelines.cli.setting_options import option_of, options_of, several
from recovery.config import DistillConfig

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
    options_of(
        DistillConfig, "ratio_cap", "steps", "lr", "until", "until_rule", "margin", "check_every", "development"
    ),
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
