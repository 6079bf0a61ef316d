"""Configurations of the stages: frozen dataclasses, each field the one declaration of a setting."""

from recovery.config.build import (
    SECTIONS,
    FromRecipe,
    Recipe,
    build,
    build_cycle,
    from_json,
    from_recipes,
    model_recipe,
    naming_recipes,
    preset_settings,
    read_recipe,
    to_json,
)
from recovery.config.distill import DistillConfig
from recovery.config.evaluation import ALL, PRUNE_POLICIES, CycleConfig, EvalConfig, InterpolateConfig
from recovery.config.midtrain import WRITER_FILE, MidtrainConfig
from recovery.config.model import ModelConfig, TrainingConfig

__all__ = [
    "ALL",
    "PRUNE_POLICIES",
    "SECTIONS",
    "WRITER_FILE",
    "CycleConfig",
    "DistillConfig",
    "EvalConfig",
    "FromRecipe",
    "InterpolateConfig",
    "MidtrainConfig",
    "ModelConfig",
    "Recipe",
    "TrainingConfig",
    "build",
    "build_cycle",
    "from_json",
    "from_recipes",
    "model_recipe",
    "naming_recipes",
    "preset_settings",
    "read_recipe",
    "to_json",
]
