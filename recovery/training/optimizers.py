"""The optimizers of a run: AdamW, and Muon for the matrices inside the layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from recovery.errors import UsageError
from recovery.models.fsdp import apart
from recovery.models.loaded import Loaded
from recovery.training.interfaces import TrainSettings


def make_optimizers(
    loaded: Loaded, params: dict[str, torch.nn.Parameter], settings: TrainSettings
) -> list[torch.optim.Optimizer]:
    """Create AdamW for all parameters; with "muon", Muon for the matrices inside the layers (Jordan et al., 2024).

    Vectors do not decay, nor do embeddings of which only some rows are trained.
    """
    still = {id(p) for p in loaded.embeddings()} if loaded.trained_rows is not None else set()
    muon = _inside_layers(loaded, params) if settings.optimizer == "muon" else []
    if any(apart(muon)[1]):
        raise UsageError("--optimizer muon needs whole matrices: use --shard none, or --optimizer adamw")
    chosen = {id(p) for p in muon}
    rest = [p for p in params.values() if id(p) not in chosen]
    # Sharded and replicated tensors are in separate groups: one call cannot update both.
    groups = [
        {
            "params": [p for p in part if (p.ndim >= 2 and id(p) not in still) == matrix],
            "weight_decay": decay,
            "scale": 1.0,
        }
        for matrix, decay in ((True, settings.weight_decay), (False, 0.0))
        for part in apart(rest)
    ]
    made: list[torch.optim.Optimizer] = []
    if rest:
        groups = [group for group in groups if group["params"]]
        made.append(torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, fused=True))
    if muon:
        group = {"params": muon, "weight_decay": settings.weight_decay, "scale": 1.0}
        made.append(torch.optim.Muon([group], lr=settings.lr, adjust_lr_fn="match_rms_adamw"))
    return made


def _inside_layers(loaded: Loaded, params: Mapping[str, torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Return the matrices that are neither embeddings, of tokens or positions, nor in the output head."""
    tables = [module for module in loaded.model.modules() if isinstance(module, torch.nn.Embedding)]
    outside = {id(p) for p in (*loaded.embeddings(), *(table.weight for table in tables))}
    return [p for p in params.values() if p.ndim == 2 and id(p) not in outside]
