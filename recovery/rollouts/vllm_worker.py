"""Worker extension of vLLM that replaces the weights, including tied heads and, on a CPU, stacked experts.

A server whose weights follow a student in full training must be started with
``--worker-extension-cls recovery.rollouts.vllm_worker.FollowedWeights``. The in-process engine sets it itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open


class FollowedWeights:
    """Mixin of vLLM's worker; its methods are called by name, on every worker."""

    def take_tensors(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load weights by their names in a checkpoint; for an engine in the same process."""
        self.reload_weights(weights_iterator=iter(weights))  # type: ignore[attr-defined]
        self._repack()

    def take_folder(self, folder: str, token: str = "") -> None:
        """Load the safetensors of a folder; :meth:`held` returns ``token`` from then on."""
        self._recovery_holds = ""  # neither the former weights nor these, until all are loaded
        self.reload_weights(weights_iterator=_saved(folder))  # type: ignore[attr-defined]
        self._repack()
        self._recovery_holds = token

    def held(self) -> str:
        """Return the token of the weights loaded last; empty after a start, which reveals a restart."""
        return getattr(self, "_recovery_holds", "")

    def meeting_file(self) -> str:
        """Return the rendezvous file of the engine's processes, which vLLM does not delete; empty if there is none."""
        method = str(getattr(self, "distributed_init_method", ""))
        return method.removeprefix("file://") if method.startswith("file://") else ""

    def _repack(self) -> None:
        """On a CPU, pack what vLLM packs at its start only. Without this it silently computes with wrong weights."""
        from vllm.platforms import current_platform

        if current_platform.is_cpu():
            model = self.model_runner.get_model()  # type: ignore[attr-defined]
            self._repack_tied_head(model)
            self._repack_experts(model)

    def _repack_experts(self, model: Any) -> None:
        """Pack the stacked experts: vLLM loads them again as they are in the files, and leaves out the packing."""
        for layer in model.modules():
            kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
            if kernel is not None:
                kernel.fused_experts.process_weights_after_loading(layer)

    def _repack_tied_head(self, model: Any) -> None:
        """Pack a tied head: vLLM packs the head when it is loaded, and a tied head is never loaded again."""
        if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
            return
        head, embedding = getattr(model, "lm_head", None), getattr(getattr(model, "model", None), "embed_tokens", None)
        if head is None or embedding is None:
            return
        head, embedding = _below_adapter(head), _below_adapter(embedding)
        if head.weight.data_ptr() != embedding.weight.data_ptr():
            head.weight = embedding.weight
        # vLLM marks packed layers and skips them the next time.
        if hasattr(head, "_already_called_process_weights_after_loading"):
            del head._already_called_process_weights_after_loading
        head.quant_method.process_weights_after_loading(head)


def _below_adapter(layer: Any) -> Any:
    return getattr(layer, "base_layer", layer)


def _saved(folder: str) -> Iterable[tuple[str, torch.Tensor]]:
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a dictionary)
                yield name, tensors.get_tensor(name)
