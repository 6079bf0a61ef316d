"""A loaded model, for scoring, sampling and training."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from peft import PeftModel

from recovery import distributed
from recovery.batching import Batch, Row, collate
from recovery.errors import ModelError
from recovery.models import fsdp
from recovery.models.adapters import merge_adapter
from recovery.models.chat_template import ChatFormat
from recovery.models.folder_check import ADAPTER_CONFIG
from recovery.models.lm_head import Head, decoder

if TYPE_CHECKING:
    from recovery.prompt_logprobs import ServerScores

# The router of a mixture of experts, and the loss that keeps its experts evenly used.
#
#     E Σ_e f_e P_e        Switch Transformer, arXiv 2101.03961, equations 4 to 6
#
# For E experts, f_e is the mean number of times that a token is sent to expert e (they sum to k, the experts per token)
# and P_e the mean probability that the router gives it, both over all layers and the real tokens of a batch; k if the
# experts are used evenly. It is computed by transformers' own function for the model's family. Since it is a product of
# two means, a sum over batches depends on how a step is split into them, unlike every other term of the loss.


@dataclass(frozen=True)
class Router:
    """The routers of a model: E ``experts`` of which each token takes ``per_token``.

    ``weight`` is that of their loss in the model's configuration.
    """

    experts: int
    per_token: int
    weight: float
    _loss: Callable[..., torch.Tensor]

    @classmethod
    def of(cls, core: Any) -> Router | None:
        """Return the routers of a causal language model; None if transformers has no such loss for its family."""
        loss = getattr(sys.modules[type(core).__module__], "load_balancing_loss_func", None)
        experts, per_token = getattr(core, "num_experts", None), getattr(core, "num_experts_per_tok", None)
        if loss is None or not experts or not per_token:
            return None
        return cls(int(experts), int(per_token), float(getattr(core, "router_aux_loss_coef", None) or 0.0), loss)

    def loss(self, logits: tuple[torch.Tensor, ...], real_BT: torch.Tensor) -> torch.Tensor:
        """Return the loss over the real tokens, a scalar; ``logits`` are those of each layer, [B·T, E]."""
        return self._loss(tuple(layer.float() for layer in logits), self.experts, self.per_token, real_BT)


Tuning = Literal["frozen", "full", "lora"]
_SETS = ("target_modules", "target_parameters", "exclude_modules")
# Tokens of each document that probes packing; allowed rounding, relative to that of rows of one document.
_PROBE_TOKENS, _ROUNDING = 32, 4.0


@dataclass
class Loaded:
    """A causal language model for scoring, sampling and, unless frozen, training.

    ``precision`` is the dtype of matrix products. Trained weights are in float32; a frozen model is in ``precision``.
    ``sharded`` is set if its layers are sharded over several processes, ``gathered`` while this process has all of them
    even so (:meth:`unsharded`); ``state`` holds its weights after
    :meth:`gather_state`. ``trained_rows`` marks the entries of the vocabulary whose rows of the embeddings are trained,
    if not all are. ``server_scores`` scores texts where a server has the weights.
    """

    model: Any
    tokenizer: Any
    chat: ChatFormat
    device: torch.device
    precision: torch.dtype
    tuning: Tuning
    path: str
    sharded: bool = False
    gathered: bool = False
    state: dict[str, torch.Tensor] | None = None
    trained_rows: torch.Tensor | None = None
    server_scores: ServerScores | None = None

    @functools.cached_property
    def core(self) -> Any:
        """The causal LM without peft's wrapper; it includes any LoRA layers."""
        return self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model

    @functools.cached_property
    def decoder(self) -> Any:
        """The decoder below the head: token ids to hidden states."""
        return decoder(self.model)

    @functools.cached_property
    def _head(self) -> Head:
        try:
            # An adapter may train the head or the embedding in float32, above or below layers in lower precision.
            with self.autocast() if self.tuning == "lora" else contextlib.nullcontext():
                return Head.of(self.model)
        except ModelError as error:
            raise ModelError(f"{self.path}: {error}") from error

    @property
    def head(self) -> Head:
        """The output head in the precision of matrix products; gradients reach its original weights."""
        head = self._head
        bias = None if head.bias_V is None else head.bias_V.to(self.precision)
        return dataclasses.replace(head, weight_VD=head.weight_VD.to(self.precision), bias_V=bias)

    @property
    def head_in_training(self) -> Head:
        """The output head with its own weights: the fused loss multiplies in the narrower type of head and hidden
        states, and returns a gradient that is not rounded to it.
        """
        return self._head

    @property
    def vocabulary(self) -> int:
        """Entries of the output head; unlike :attr:`head` it makes no copy in another precision."""
        return self._head.vocabulary

    @property
    def can_score(self) -> bool:
        """Whether it can score a given text: by its weights, or by a server that returns log-probabilities."""
        return self.server_scores is not None or not next(self.model.parameters()).is_meta

    @property
    def max_length(self) -> int:
        """Maximum number of positions of the model."""
        config = self.core.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", 0) or getattr(config, "n_positions", 2048))

    @functools.cached_property
    def router(self) -> Router | None:
        """The routers of a mixture of experts, if the model is one whose router loss is known."""
        return Router.of(self.core)

    @functools.cached_property
    def separates_documents(self) -> bool:
        """Whether a document that is packed into a row after another is read as if it were alone.

        Some families build no mask from positions (gpt-oss, Falcon, OPT, MPT, BLOOM), and recurrent layers keep their
        state (Qwen3-Next). The test compares a document's hidden states after two others of equal length: shape and
        mask are the same, so rounding cancels, except in a mixture of experts, where the experts get other numbers
        of tokens. The same documents in separate rows show that difference alone.
        """
        size = self.core.config.get_text_config().vocab_size
        length = max(1, min(_PROBE_TOKENS, self.max_length // 2))
        first, other, second = (
            [(start + number) % size for number in range(length)] for start in (8, 8 + size // 2, 8 + length)
        )
        mask = [True] * length

        def difference(rows_for: Callable[[list[int]], list[Row]]) -> float:
            batches = [collate(rows_for(document), 0, self.device) for document in (first, other)]
            first_states, second_states = (self.hidden(batch).flatten(0, 1)[-length:].double() for batch in batches)
            return float((first_states - second_states).norm())

        with self.in_step(), self.inference():
            packed = difference(lambda document: [Row(document + second, mask * 2, (length, length))])
            unpacked = difference(lambda document: [Row(document, mask), Row(second, mask)])
        return packed <= _ROUNDING * unpacked

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Return the final hidden states of a batch, [B, T, D], in the precision of matrix products."""
        return self._run_decoder(batch).last_hidden_state.to(self.precision)

    def hidden_and_router_loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the final hidden states [B, T, D] and the router's loss over the batch's real tokens, a scalar.

        Raise ModelError if the model has no router.
        """
        if self.router is None:
            raise ModelError(f"{self.path} has no router whose loss is known: omit --router-loss")
        output = self._run_decoder(batch, output_router_logits=True)
        if not output.get("router_logits"):
            raise ModelError(
                f"{self.path} returns no logits of its router: set --router-loss 0 (with --compile: omit it)"
            )
        return output.last_hidden_state.to(self.precision), self.router.loss(output.router_logits, batch.real)

    def _run_decoder(self, batch: Batch, **options: bool) -> Any:
        with self.autocast():
            return self.decoder(input_ids=batch.ids_BT, position_ids=batch.positions_BT, use_cache=False, **options)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that runs matrix products in ``precision`` if the weights are wider."""
        lower = self.precision != torch.float32 and self.tuning != "frozen"
        return torch.autocast(self.device.type, dtype=self.precision) if lower else contextlib.nullcontext()

    @contextlib.contextmanager
    def inference(self) -> Iterator[None]:
        """Disable gradients, dropout and compiled layers; the training mode is restored afterwards."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                yield
        finally:
            self.model.train(training)

    @contextlib.contextmanager
    def adapter_off(self) -> Iterator[None]:
        """Disable the adapter, leaving the clean model. Raise ModelError if there is no adapter."""
        if not isinstance(self.model, PeftModel):
            raise ModelError(f"{self.path} has no adapter to disable: load the teacher as a separate model")
        with self.model.disable_adapter():
            yield

    @property
    def adapted(self) -> tuple[str, ...]:
        """Last names of the adapted layers, such as q_proj, and parameters, such as experts.down_proj."""
        names = set()
        for name, module in self.model.named_modules():
            if hasattr(module, "lora_A"):
                parameter = getattr(module, "parameter_name", None)
                layer = name.removesuffix(".base_layer").rpartition(".")[2]
                names.add(f"{layer}.{parameter}" if parameter else layer)
        return tuple(sorted(names))

    @property
    def adapts_layers(self) -> bool:
        """Whether it has an adapter, of linear layers only: engines take no adapter of stacked experts or a router."""
        return isinstance(self.model, PeftModel) and not self.model.peft_config["default"].target_parameters

    def merged_weights(self) -> Any:
        """Return a model that holds all weights: this one, or a copy with its adapter merged."""
        return merge_adapter(copy.deepcopy(self.model)) if isinstance(self.model, PeftModel) else self.model

    def under_adapter(self) -> Any:
        """Return the base model of the adapter as a separate module that shares its tensors.

        Raise ModelError if it trains more than LoRA's matrices, see :func:`recovery.models.adapters.only_lora`.
        """
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        model = copy.deepcopy(self.model, {id(tensor): tensor for tensor in tensors}).unload()
        if any(parameter.requires_grad for parameter in model.parameters()):
            raise ModelError(f"{self.path} trains base weights of its adapter: another adapter cannot share them")
        return model

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Return the trainable parameters by name, in a fixed order."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def embeddings(self) -> list[torch.nn.Parameter]:
        """Return the weights of the input embedding and of the output head, once if they are the same; each has a row
        for every entry of the vocabulary.
        """
        modules = [self.core.get_input_embeddings(), self.core.get_output_embeddings()]
        return list(dict.fromkeys(p for module in modules if module is not None for p in module.parameters()))

    def train_rows(self, tokens: Iterable[int]) -> None:
        """Let full fine-tuning change the embeddings of these tokens only."""
        rows = torch.zeros(len(self.embeddings()[0]), dtype=torch.bool)
        rows[list(tokens)] = True
        self.trained_rows = rows.to(self.device)

    @property
    def runs_collectively(self) -> bool:
        """Whether all processes must run the layers at the same time, since each holds only a part of them."""
        return self.sharded and not self.gathered

    @contextlib.contextmanager
    def unsharded(self) -> Iterator[None]:
        """Context in which this process has the whole model, even if sharded; every process must enter it."""
        with fsdp.unsharded(self.model) if self.sharded else contextlib.nullcontext():
            self.gathered = self.sharded
            try:
                yield
            finally:
                self.gathered = False

    def in_step(self) -> contextlib.AbstractContextManager[None]:
        """Return the context for running the layers of a model that may be sharded."""
        return distributed.in_step() if self.runs_collectively else contextlib.nullcontext()

    def gather_state(self) -> None:
        """Gather the weights of a sharded model in the main process for saving; every process must call this."""
        if self.sharded:
            self.state = fsdp.full_state(self.model)

    def weights_for_engines(self) -> dict[str, torch.Tensor]:
        """Return the weights that engines get of a sharded model, in the main process; every process must call this.

        They are an adapter's alone, if engines take it.
        """
        return fsdp.full_state(self.model, self.trainable() if self.adapts_layers else None)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return all weights by name; of a sharded model those gathered by :meth:`gather_state`."""
        weights = {name: p.detach() for name, p in self.model.named_parameters()}
        return weights if self.state is None else {name: self.state[name] for name in weights}

    def save(self, folder: Path) -> None:
        """Write weights (or only the adapter), configuration and tokenizer; safetensors only."""
        self.model.save_pretrained(folder, safe_serialization=True, state_dict=self.state)
        self.tokenizer.save_pretrained(folder)
        if (folder / ADAPTER_CONFIG).is_file():
            _sort_module_names(folder / ADAPTER_CONFIG)


def _sort_module_names(path: Path) -> None:
    """Sort the module names in an adapter's configuration: peft writes a set, whose order differs between processes,
    and the content hash of a checkpoint must not.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    ordered = {
        name: sorted(value) if isinstance(value, list) and name in _SETS else value for name, value in config.items()
    }
    path.write_text(json.dumps(ordered, indent=2, sort_keys=True), encoding="utf-8")
