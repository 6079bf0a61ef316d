"""The training loop's settings, from the configuration of a stage."""

from __future__ import annotations

from recovery.config import TrainingConfig
from recovery.training.interfaces import TrainSettings


def settings_of(config: TrainingConfig, steps: int, lr: float) -> TrainSettings:
    """Return the training loop's settings; ``lr`` is the peak rate."""
    return TrainSettings(
        steps=steps,
        lr=lr,
        warmup_steps=round(config.warmup * steps),
        schedule=config.schedule,  # type: ignore[arg-type]  # checked by the configuration
        min_lr_ratio=config.min_lr_ratio,
        optimizer=config.optimizer,  # type: ignore[arg-type]
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        token_budget=config.token_budget,
        seed=config.seed,
        checkpoint_every=config.checkpoint_every,
        gather=config.gather and not config.served,  # a server samples
    )
