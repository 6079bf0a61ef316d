"""The output head of a language model, which maps hidden states to logits.

Most heads are one matrix. Some add a bias, multiply or divide the logits (Cohere, Granite) or cap them softly
(Gemma 2: z <- c tanh(z/c)). The fused loss projects hidden states itself, a chunk of tokens at a time, so it
needs the complete head; a head that cannot be reproduced raises ModelError.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from recovery.errors import ModelError
from recovery.lazy_import import lazily

# The losses, and a plan by them, need heads but no adapters; peft imports all of transformers.
tuners, wrappers = lazily("peft.tuners.tuners_utils"), lazily("peft.utils.other")

# Configuration entries of transformers models that change the logits after the matrix product.
_MULTIPLIERS = ("logit_scale", "output_multiplier", "lm_head_multiplier")
_DIVISOR = "logits_scaling"
_DIVISOR_MULTIPLIES = ("hyperclovax",)
_SOFTCAP = "final_logit_softcapping"

# The probe scales its hidden states until the raw logits span this range: it detects a missing cap or scale even in an
# untrained model, whose logits are small.
_PROBE_LOGIT = 30.0
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}

_verified: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass(frozen=True, eq=False)
class Head:
    """logits = cap(scale * (hidden W^T + bias)), with cap(z) = softcap * tanh(z / softcap) where present.

    ``weight_VD`` and ``bias_V`` are the model's own tensors, not copies: if they require grad, they are trained.
    """

    weight_VD: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Head:
        """Return the head of a transformers causal language model, bare or wrapped by PEFT.

        The first call for a model compares the head with the model's own logits (one forward pass of four tokens).

        Raises:
            ModelError: the head is adapted by LoRA, quantised, not a linear layer, or its logits differ.
        """
        head, base = cls.read(model), _base(model)
        if base not in _verified:
            head.check(model)
            _verified.add(base)
        return head

    @classmethod
    def read(cls, model: nn.Module) -> Head:
        """Return the head from the model's configuration, without comparing it with the model's logits.

        Raise ModelError as :meth:`of` does, except for different logits.
        """
        base = _base(model)
        linear = _output_layer(base)
        return cls(linear.weight, linear.bias, *_scale_and_cap(base.config))

    @property
    def vocabulary(self) -> int:
        """Number of logits, V."""
        return self.weight_VD.shape[0]

    @property
    def width(self) -> int:
        """Size of the hidden state, D."""
        return self.weight_VD.shape[1]

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return the logits of hidden states (any leading shape, last dimension D), differentiable."""
        logits_NV = nn.functional.linear(hidden_ND, self.weight_VD, self.bias_V)
        if self.scale != 1.0:
            logits_NV = logits_NV * self.scale
        if self.softcap is not None:
            logits_NV = self.softcap * torch.tanh(logits_NV / self.softcap)
        return logits_NV

    def first(self, vocabulary: int) -> Head:
        """Return the head truncated to its first ``vocabulary`` rows.

        Models of one family pad the same vocabulary to different sizes; padding entries are never produced, and two
        heads can only be compared over the entries that both have.
        """
        if vocabulary > self.vocabulary:
            raise ModelError(f"cannot cut a head of {self.vocabulary} logits to {vocabulary}: give a smaller size")
        bias_V = None if self.bias_V is None else self.bias_V[:vocabulary]
        return replace(self, weight_VD=self.weight_VD[:vocabulary], bias_V=bias_V)

    def in_float32(self) -> Head:
        """Return the head with its weights in float32."""
        bias_V = None if self.bias_V is None else self.bias_V.float()
        return replace(self, weight_VD=self.weight_VD.float(), bias_V=bias_V)

    def check(self, model: nn.Module) -> None:
        """Compare this head with the model's own logits on hidden states scaled to large logits.

        Raises:
            ModelError: they differ by more than rounding.
        """
        name = type(_base(model)).__name__
        hidden_TD, logits_TV = _probe(model, self)
        with torch.no_grad():
            ours_TV = self.logits(hidden_TD.to(self.weight_VD.dtype))
        if ours_TV.shape != logits_TV.shape:
            counts = f"{logits_TV.shape[-1]} logits and its head {ours_TV.shape[-1]}"
            raise ModelError(f"{name} returns {counts}: use a model that returns the output of its head")
        if not torch.isfinite(logits_TV).all():
            raise ModelError(f"{name} returns logits that are not finite: its weights are damaged, download it again")
        size = logits_TV.abs().max().clamp_min(1e-6)
        error = float((ours_TV.double() - logits_TV.double()).abs().max() / size)
        if not error <= _TOLERANCE.get(logits_TV.dtype, 1e-3):
            raise ModelError(
                f"{name} changes its logits after the output head in a way that is not supported "
                f"(relative error {error:.2g}): use a linear head, with or without bias, scale, cap"
            )


def decoder(model: nn.Module) -> Any:
    """Return the decoder below the head of a causal language model: token ids to hidden states (last_hidden_state)."""
    base = _base(model)
    found = base.get_decoder()
    return found if found is not base else base.base_model


def _base(model: nn.Module) -> Any:
    """Return the transformers model inside an optional PEFT wrapper."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if callable(unwrap) else model


def _output_layer(base: Any) -> nn.Linear:
    """Return the linear output layer. Raise ModelError if it is more than a weight and a bias."""
    name = type(base).__name__
    layer = base.get_output_embeddings()
    if isinstance(layer, wrappers.ModulesToSaveWrapper):
        layer = _saved_module(layer, name)
    if isinstance(layer, tuners.BaseTunerLayer | wrappers.AuxiliaryTrainingWrapper):
        raise ModelError(
            f"the output head of {name} carries an adapter ({type(layer).__name__}): remove it from "
            "target_modules, or train it whole by naming it in modules_to_save"
        )
    if not isinstance(layer, nn.Linear):
        raise ModelError(f"the output head of {name} is {type(layer).__name__}, not a linear layer: unsupported")
    if not layer.weight.is_floating_point() or layer.weight.dim() != 2:
        raise ModelError(f"the output head of {name} is quantised: load the model with an unquantised head")
    return layer


def _saved_module(wrapper: Any, name: str) -> nn.Module:
    """Return the active copy of a fully trained head: the adapter's, or the original with adapters off."""
    active = wrapper.active_adapters
    if wrapper.disable_adapters or not active:
        return wrapper.original_module
    if len(active) > 1:
        raise ModelError(f"the output head of {name} has {len(active)} active adapters: activate one")
    saved = wrapper.modules_to_save
    return saved[active[0]] if active[0] in saved else wrapper.original_module  # noqa: SIM401 (a ModuleDict)


def _scale_and_cap(config: Any) -> tuple[float, float | None]:
    """Read logit scale and soft cap from the configuration of the (text) model."""
    text = config.get_text_config()
    scale = 1.0
    for key in _MULTIPLIERS:
        scale *= float(getattr(text, key, None) or 1.0)
    divisor = float(getattr(text, _DIVISOR, None) or 1.0)
    scale = scale * divisor if text.model_type in _DIVISOR_MULTIPLIES else scale / divisor
    cap = getattr(text, _SOFTCAP, None)
    return scale, float(cap) if cap else None


@torch.no_grad()
def _probe(model: nn.Module, head: Head) -> tuple[Tensor, Tensor]:
    """Return hidden states and the model's own logits of four tokens, with the states scaled before the head."""
    states: list[Tensor] = []

    def scale_up(_module: nn.Module, _args: Any, output: Any) -> Any:
        hidden = output.last_hidden_state
        raw = nn.functional.linear(hidden.to(head.weight_VD.dtype), head.weight_VD)
        output.last_hidden_state = hidden * (_PROBE_LOGIT / raw.abs().max().clamp_min(1e-6))
        states.append(output.last_hidden_state)
        return output

    ids = torch.arange(1, 5, device=head.weight_VD.device).remainder(head.vocabulary).unsqueeze(0)
    handle = decoder(model).register_forward_hook(scale_up)
    try:
        logits = _base(model)(input_ids=ids, use_cache=False, return_dict=True).logits
    finally:
        handle.remove()
    if not states:
        raise ModelError(f"{type(_base(model)).__name__} does not run its own decoder: its head cannot be checked")
    return states[0][0], logits[0]
