"""Loading of models: student or teacher, full weights or LoRA, on any device."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2.exceptions import TemplateSyntaxError
from peft import LoraConfig, PeftModel, get_peft_model
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from recovery import distributed
from recovery.batching import Batch, Row, collate
from recovery.errors import ModelError, RecoveryError, UsageError, first_line
from recovery.memory_limit import memory_limit
from recovery.models import attention, fsdp, quantization
from recovery.models.base_folder import resolve_base
from recovery.models.chat_template import ChatFormat
from recovery.models.compilation import compile_layers
from recovery.models.folder_check import ADAPTER_CONFIG, check_adapter, check_total, read_shapes
from recovery.models.hardware import pick_device, pick_precision
from recovery.models.lm_head import Head
from recovery.models.loading_lock import LOADING
from recovery.models.norms import fuse_norms
from recovery.models.routing import Router
from recovery.time_limit import Overdue, time_limit
from recovery.types import Message

Tuning = Literal["frozen", "full", "lora"]
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")  # of a generation configuration
_SETS = ("target_modules", "target_parameters", "exclude_modules")
# Entries of an adapter's configuration with regular expressions, which are compared with the names of all modules.
_PATTERNS = (
    "target_modules",
    "exclude_modules",
    "rank_pattern",
    "alpha_pattern",
    "layers_pattern",
    "target_parameters",
)
# Of processor time and memory, for a template and an adapter's patterns: thousands of times what they need.
_SECONDS, _BYTES = 10.0, 1 << 30
_LONGEST_RENDERED = 1_000_000  # characters
# A normaliser may make a text this many times longer.
_GROWTH, _LONGEST_REPLACEMENT = 1000, 1000
# Each document by which packed rows are tried, and how far rounding may exceed the rounding of rows of one document.
_PROBE_TOKENS, _ROUNDING = 32, 4.0

transformers_logging.disable_progress_bar()


@dataclass(frozen=True)
class LoraSettings:
    """The shape of a LoRA adapter; ``targets`` "all-linear" means every linear layer but the head."""

    rank: int = 32
    alpha: int = 64
    targets: str | tuple[str, ...] = "all-linear"

    def config(self) -> LoraConfig:
        """Return the settings as a peft configuration."""
        targets = self.targets if isinstance(self.targets, str) else list(self.targets)
        return LoraConfig(
            r=self.rank, lora_alpha=self.alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
        )


@dataclass
class Loaded:
    """A causal language model for scoring, sampling and, unless frozen, training.

    ``precision`` is the dtype of matrix products. Trained weights are in float32; a frozen model is in ``precision``.
    ``sharded`` is set if its layers are sharded over several processes, ``gathered`` while this process has all of them
    even so (:meth:`whole`); ``state`` holds its weights after
    :meth:`put_together`. ``trained_rows`` marks the entries of the vocabulary whose rows of the embeddings are trained,
    if not all are.
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

    @functools.cached_property
    def core(self) -> Any:
        """The causal LM without peft's wrapper; it includes any LoRA layers."""
        return self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model

    @functools.cached_property
    def decoder(self) -> Any:
        """The decoder below the head: token ids to hidden states."""
        decoder = self.core.get_decoder()
        return decoder if decoder is not self.core else self.core.base_model

    @functools.cached_property
    def _head(self) -> Head:
        try:
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
        """Whether a document that is packed into a row behind another is read as if it were alone.

        Some families build no mask from positions (gpt-oss, Falcon, OPT, MPT, BLOOM), and recurrent layers go on
        (Qwen3-Next). A document's hidden states behind two others of one length are compared: shape and mask are the
        same, so rounding cancels. Only in a mixture of experts does it not: experts get other numbers of tokens. In
        rows of their own the same documents give that difference alone.
        """
        size = self.core.config.get_text_config().vocab_size
        length = max(1, min(_PROBE_TOKENS, self.max_length // 2))
        first, other, second = (
            [(start + number) % size for number in range(length)] for start in (8, 8 + size // 2, 8 + length)
        )
        mask = [True] * length

        def difference(behind: Callable[[list[int]], list[Row]]) -> float:
            batches = [collate(behind(document), 0, self.device) for document in (first, other)]
            one, two = (self.hidden(batch).flatten(0, 1)[-length:].double() for batch in batches)
            return float((one - two).norm())

        with self.together(), self.inference():
            packed = difference(lambda document: [Row(document + second, mask * 2, (length, length))])
            alone = difference(lambda document: [Row(document, mask), Row(second, mask)])
        return packed <= _ROUNDING * alone

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Return the final hidden states of a batch, [B, T, D], in the precision of matrix products."""
        return self._decoded(batch).last_hidden_state.to(self.precision)

    def hidden_and_router_loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the final hidden states [B, T, D] and the router's loss over the batch's real tokens, a scalar.

        Raise ModelError if the model has no router.
        """
        if self.router is None:
            raise ModelError(f"{self.path} has no router whose loss is known: omit --router-loss")
        output = self._decoded(batch, output_router_logits=True)
        if not output.get("router_logits"):
            raise ModelError(
                f"{self.path} returns no logits of its router: set --router-loss 0 (with --compile: omit it)"
            )
        return output.last_hidden_state.to(self.precision), self.router.loss(output.router_logits, batch.real)

    def _decoded(self, batch: Batch, **wanted: bool) -> Any:
        with self.autocast():
            return self.decoder(input_ids=batch.ids_BT, position_ids=batch.positions_BT, use_cache=False, **wanted)

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
        """What the adapter adapts, by last names: layers such as q_proj, and parameters such as experts.down_proj."""
        found = set()
        for name, module in self.model.named_modules():
            if hasattr(module, "lora_A"):
                parameter = getattr(module, "parameter_name", None)
                layer = name.removesuffix(".base_layer").rpartition(".")[2]
                found.add(f"{layer}.{parameter}" if parameter else layer)
        return tuple(sorted(found))

    @property
    def adapts_layers(self) -> bool:
        """Whether it has an adapter, of linear layers only: engines take no adapter of stacked experts or a router."""
        return isinstance(self.model, PeftModel) and not self.model.peft_config["default"].target_parameters

    def whole_weights(self) -> Any:
        """Return a model that holds all weights: this one, or a copy with its adapter merged."""
        return copy.deepcopy(self.model).merge_and_unload() if isinstance(self.model, PeftModel) else self.model

    def under_adapter(self) -> Any:
        """Return the base model of the adapter as a separate module that shares its tensors.

        Raise ModelError if it trains more than LoRA's matrices, see :func:`only_lora`.
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
    def in_pieces(self) -> bool:
        """Whether all processes must run the layers at the same time, since each holds only a part of them."""
        return self.sharded and not self.gathered

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Context in which this process has the whole model, even if sharded; every process must enter it."""
        with fsdp.whole(self.model) if self.sharded else contextlib.nullcontext():
            self.gathered = self.sharded
            try:
                yield
            finally:
                self.gathered = False

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Return the context for running the layers of a model that may be in pieces."""
        return distributed.in_step() if self.in_pieces else contextlib.nullcontext()

    def put_together(self) -> None:
        """Gather the weights of a sharded model in the main process for saving; every process must call this."""
        if self.sharded:
            self.state = fsdp.full_state(self.model)

    def weights_for_engines(self) -> dict[str, torch.Tensor]:
        """Return the weights that engines get of a model in pieces, in the main process; every process must call this.

        They are an adapter's alone, if engines take it.
        """
        return fsdp.full_state(self.model, self.trainable() if self.adapts_layers else None)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return all weights by name; of a sharded model those gathered by :meth:`put_together`."""
        found = {name: p.detach() for name, p in self.model.named_parameters()}
        return found if self.state is None else {name: self.state[name] for name in found}

    def save(self, folder: Path) -> None:
        """Write weights (or only the adapter), configuration and tokenizer; safetensors only."""
        self.model.save_pretrained(folder, safe_serialization=True, state_dict=self.state)
        self.tokenizer.save_pretrained(folder)
        if (folder / ADAPTER_CONFIG).is_file():
            _in_order(folder / ADAPTER_CONFIG)


def _in_order(path: Path) -> None:
    """Sort the module names in an adapter's configuration: peft writes a set, whose order differs between processes,
    and the content hash of a checkpoint must not.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    ordered = {
        name: sorted(value) if isinstance(value, list) and name in _SETS else value for name, value in config.items()
    }
    path.write_text(json.dumps(ordered, indent=2, sort_keys=True), encoding="utf-8")


def load_model(
    path: str | Path,
    *,
    tuning: Tuning = "frozen",
    adapter: Path | None = None,
    lora: LoraSettings | None = None,
    embeddings: bool = True,
    precision: str = "auto",
    device: str = "auto",
    template_args: Mapping[str, Any] | None = None,
    gradient_checkpointing: bool = False,
    shard: bool = False,
    offload: bool = False,
    compiled: bool = False,
    beside: Loaded | None = None,
    quantize: str = "none",
    trust_remote_code: bool = False,
) -> Loaded:
    """Load a model from a folder, a GGUF file or a hub id.

    A folder that contains only an adapter is loaded on the base it names. ``tuning`` "lora" adds a new adapter
    (or continues the existing one); "full" makes all weights trainable in float32; without
    ``embeddings`` all but the input embedding and the output head. ``shard`` shards the model's layers over all
    processes; ``offload`` keeps the shards in CPU memory. ``compiled`` compiles the layers of a trained
    model that is not sharded. ``beside`` is an already loaded, unsharded model with an adapter on the same base: the
    base is shared instead of loaded again. ``quantize`` "nf4" holds the linear layers of the base in 4 bits.
    Raise ModelError or UsageError, in one line, if the model cannot be loaded.
    """
    base, found = resolve_base(path)
    adapter = adapter or found
    place = pick_device(device)
    compute = pick_precision(precision, place)
    if tuning == "full" and adapter is not None:
        raise UsageError(
            f"{path} is an adapter: train it with --tuning lora, or merge it first (recover export --merge)"
        )
    if quantize != "none" and tuning == "full":
        raise UsageError(f"{path} cannot be quantised and fully fine-tuned: use --tuning lora, or omit --quantize")
    if beside is None:
        more = {} if quantize == "none" else quantization.arguments(compute, place)
        model = _load_weights(base, _held_in(tuning, compute), trust_remote_code, more)
        if quantize != "none":
            quantization.check(model, base)
    else:
        model = beside.under_adapter()
    chat = load_chat(base, template_args, trust_remote_code, adapter)
    if adapter is not None:
        model = _with_adapter(model, adapter, tuning == "lora")
    model = _tuned(model, tuning, lora or LoraSettings(), gradient_checkpointing)
    loaded = Loaded(model, chat.tokenizer, chat, place, compute, tuning, str(path))
    if tuning == "full" and not embeddings:
        for weights in loaded.embeddings():
            weights.requires_grad_(False)
    if shard and distributed.size() > 1:
        _check_finite(loaded)
        return shard_layers(loaded, offload)
    model.to(place)
    _check_finite(loaded)
    if place.type == "cuda":
        fuse_norms(model)
    if compiled and tuning != "frozen":
        compile_layers(loaded.decoder, place)
    return loaded


def not_finite(model: Any) -> str | None:
    """Return the name of the first weight of a model that has NaN or infinite entries, or None."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and weight.numel():
            smallest, largest = torch.aminmax(weight.detach())  # makes no copy; NaN is both
            if not bool(torch.isfinite(smallest) & torch.isfinite(largest)):
                return str(name)
    return None


def _check_finite(loaded: Loaded) -> None:
    if name := not_finite(loaded.model):
        raise ModelError(
            f"the weights in {loaded.path} are not all finite numbers ({name}): use another checkpoint, or copy the "
            f"files again"
        )


def only_lora(adapter: Path | None) -> bool:
    """Return whether an adapter (None: a new one) consists of LoRA matrices only, so that others can share its base.

    Biases, fully trained modules and some initialisations change or replace tensors of the base itself.
    """
    if adapter is None:
        return True
    config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    if any(config.get(name) for name in ("modules_to_save", "trainable_token_indices", "layer_replication")):
        return False
    plain = config.get("init_lora_weights", True) in (True, False, "gaussian")
    return plain and config.get("peft_type") == "LORA" and config.get("bias", "none") == "none"


def load_chat(
    base: str,
    template_args: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    adapter: Path | None = None,
) -> ChatFormat:
    """Load the tokenizer of a model folder with its chat format; an adapter may have a chat template of its own.

    Raise ModelError if they do not fit the model.
    """
    tokenizer, place = _load_tokenizer(base, trust_remote_code), base
    if adapter is not None and _template_in(adapter) not in (None, _template_of(tokenizer)):
        tokenizer, place = _own_tokenizer(adapter, tokenizer, base, trust_remote_code), str(adapter)
    with _reading(f"the tokenizer in {place}"):
        chat = ChatFormat.of(tokenizer, _generation_config(base), template_args)
        config = AutoConfig.from_pretrained(base, trust_remote_code=trust_remote_code)
        _check_vocabulary(chat, config.get_text_config().vocab_size, place)
        _try_template(chat, place)
    return chat


def _own_tokenizer(adapter: Path, below: Any, base: str, trust_remote_code: bool) -> Any:
    """Return the tokenizer of an adapter whose chat template is not its base's: it was trained with that one."""
    own = _load_tokenizer(str(adapter), trust_remote_code)
    if own.get_vocab() != below.get_vocab():
        raise ModelError(
            f"the adapter in {adapter} has a chat template and tokens of its own, which its base {base} lacks: merge "
            f"the two with the tools that it was trained with, or remove the tokenizer's files from its folder"
        )
    return own


def _template_in(adapter: Path) -> str | None:
    """Return the chat template that lies beside an adapter; None if there is no tokenizer with one."""
    file, config = adapter / "chat_template.jinja", adapter / "tokenizer_config.json"
    with _reading(f"the tokenizer in {adapter}"):
        if not config.is_file():
            return None
        if file.is_file():
            return file.read_text(encoding="utf-8")
        return _default(json.loads(config.read_text(encoding="utf-8")).get("chat_template"))


def _template_of(tokenizer: Any) -> str | None:
    return _default(tokenizer.chat_template)


def _default(templates: Any) -> str | None:
    """Return the template for a conversation without tools, of one or several by name."""
    if isinstance(templates, list):  # in files of earlier releases of transformers
        templates = {one["name"]: one["template"] for one in templates}
    return templates.get("default") if isinstance(templates, dict) else templates


def _try_template(chat: ChatFormat, base: str) -> None:
    """Render and encode a conversation once. Raise ModelError if that needs much time or memory.

    Others may be refused by the template, which is said where they occur.
    """
    messages = [Message(role="user", content="Hello"), Message(role="assistant", content="Good morning")]
    try:
        with time_limit(_SECONDS, of_processor=True), memory_limit(_BYTES):
            text = chat.render(messages, generation_prompt=True)
    except ModelError as error:
        if isinstance(error.__cause__, TemplateSyntaxError):
            raise ModelError(
                f"the chat template in {base} cannot be read ({error.__cause__}): restore its file, or use another"
            ) from error
        text = ""
    except (Overdue, MemoryError, RecursionError) as error:
        raise ModelError(
            f"the chat template in {base} does not end within {_SECONDS:.0f} seconds and {_BYTES >> 30} GiB of memory: "
            "use another"
        ) from error
    if len(text) > _LONGEST_RENDERED:
        raise ModelError(f"the chat template in {base} writes {len(text):,} characters around two words: use another")
    chat.encode(text[:10_000])


def outline(
    config: Any,
    *,
    tuning: Tuning = "frozen",
    lora: LoraSettings | None = None,
    precision: torch.dtype = torch.float32,
    gradient_checkpointing: bool = False,
) -> Loaded:
    """Build the model of a transformers configuration as :func:`load_model` would load it, without weights.

    Its tensors are on the meta device: they have a shape and a dtype and take no memory. It has no tokenizer, and its
    head is not compared with the model's own logits. Raise ModelError if transformers cannot build it.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=_held_in(tuning, precision))
            _pick_attention(model)
            model = _tuned(model, tuning, lora or LoraSettings(), gradient_checkpointing)
    except (ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        raise ModelError(
            f"cannot build a {config.model_type} model from its config.json: {first_line(error)}"
        ) from error
    chat = ChatFormat(None, frozenset(), 0)
    made = Loaded(model, None, chat, torch.device("cpu"), precision, tuning, str(config.name_or_path))
    made._head = Head.read(model)
    return made


def _held_in(tuning: Tuning, compute: torch.dtype) -> torch.dtype:
    """Return the dtype of the weights: float32 if they are trained, else that of matrix products."""
    return torch.float32 if tuning == "full" else compute


def _tuned(model: Any, tuning: Tuning, lora: LoraSettings, gradient_checkpointing: bool) -> Any:
    """Make the weights of ``tuning`` trainable; an existing adapter is kept."""
    if tuning == "lora" and not isinstance(model, PeftModel):
        with _peft_warnings():
            model = get_peft_model(model, lora.config())
    if tuning == "frozen":
        model.requires_grad_(False)
    model.eval()
    _without_dropout(model)
    if gradient_checkpointing and tuning != "frozen":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model


@contextlib.contextmanager
def _peft_warnings() -> Iterator[None]:
    """Ignore peft's claim that the ranks it sets itself for stacked experts match no module: it looks among layers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"The following \w+_pattern keys did not match", RuntimeWarning)
        yield


def _without_dropout(model: Any) -> None:
    """Set all dropout rates to 0: dropout would depend on how a step is split into batches.

    Without it a step gives the same result for any token budget and any number of processes.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def shard_layers(loaded: Loaded, offload: bool) -> Loaded:
    """Shard the model's layers over all processes, moving them to the device one at a time, then move the rest."""
    _ = loaded.head  # checked now, while every process has the whole model
    fsdp.shard(loaded.decoder, loaded.device, loaded.precision, offload=offload)
    for tensor in itertools.chain(loaded.model.parameters(), loaded.model.buffers()):
        if not isinstance(tensor, DTensor):
            tensor.data = tensor.data.to(loaded.device)
    loaded.sharded = True
    return loaded


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turn whatever a library raises for the files of a model into ModelError: what a file can cause has no limit."""
    try:
        yield
    except RecoveryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of a library in Rust
            raise
        raise ModelError(f"cannot load {what}: {first_line(error)}") from error


def _load_weights(base: str, dtype: torch.dtype, trust_remote_code: bool, more: Mapping[str, Any]) -> Any:
    stored = read_shapes(Path(base)).elements
    if not stored:
        raise ModelError(
            f"{base} holds no weights in *.safetensors, and pickles (*.bin) are not read: convert them first"
        )
    with LOADING, _reading(f"the model in {base}"):
        config = AutoConfig.from_pretrained(base, trust_remote_code=trust_remote_code)
        with torch.device("meta"):  # takes no memory, whatever the sizes are
            planned = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        check_total(sum(p.numel() for p in planned.parameters()), config, stored, base)
        model, found = AutoModelForCausalLM.from_pretrained(
            base,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **more,
        )
    if found["missing_keys"]:
        raise ModelError(
            f"{base} lacks weights of its model, for example {min(found['missing_keys'])}: download it again"
        )
    _pick_attention(model)
    _make_storable(model)
    return model


def _make_storable(model: Any) -> None:
    """Repair generation settings that transformers loads with a warning and refuses to save, such as a temperature
    without ``do_sample``: the model could be trained and not be saved.
    """
    settings = getattr(model, "generation_config", None)
    if settings is None or _is_valid(settings):
        return
    settings.do_sample = True
    if not _is_valid(settings):
        model.generation_config = GenerationConfig(**{name: getattr(settings, name, None) for name in _TOKENS})


def _is_valid(settings: GenerationConfig) -> bool:
    try:
        settings.validate(strict=True)
    except ValueError:
        return False
    return True


def _with_adapter(model: Any, adapter: Path, trainable: bool) -> Any:
    config = check_adapter(adapter)
    with _reading(f"the adapter in {adapter}"):
        _try_patterns(config, [name for name, _ in model.named_modules()], adapter)
        with _peft_warnings():
            warnings.filterwarnings("error", "Found missing adapter keys", UserWarning)
            adapted = PeftModel.from_pretrained(model, str(adapter), is_trainable=trainable, use_safetensors=True)
    if any(config.is_prompt_learning for config in adapted.peft_config.values()):
        raise ModelError(f"the adapter in {adapter} adds tokens to the prompt, not to the layers: use a LoRA adapter")
    return adapted


def _try_patterns(config: Mapping[str, Any], names: list[str], adapter: Path) -> None:
    """Raise ModelError if a regular expression of an adapter takes for ever: peft matches all with all modules."""
    found = [config.get(key) for key in _PATTERNS]
    patterns = [
        p for value in found for p in ([value] if isinstance(value, str) else value or ()) if isinstance(p, str)
    ]
    try:
        with time_limit(_SECONDS, of_processor=True):
            for pattern in patterns:
                compiled = re.compile(pattern)
                for name in names:
                    compiled.fullmatch(name)
    except Overdue:
        raise ModelError(
            f"{adapter / ADAPTER_CONFIG} has a pattern that cannot be matched in {_SECONDS:.0f} seconds: use another"
        ) from None


def _pick_attention(model: Any) -> None:
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # SDPA does not apply the cap on attention scores (Gemma 2)
    elif model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(attention.NAME)


def _load_tokenizer(base: str, trust_remote_code: bool) -> Any:
    with _reading(f"the tokenizer in {base}"):
        tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=trust_remote_code)
        _check_growth(tokenizer, base)
    # Documents are tokenised whole and split into rows afterwards: no warning if one is longer than the context.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _check_vocabulary(chat: ChatFormat, size: int, base: str) -> None:
    """Raise ModelError if the model has no row for a token that a text or the chat template can give.

    Others do no harm: the smallest models of Gemma 3 have no row for ``<image_soft_token>``.
    """
    tokenizer = chat.tokenizer
    needed = {*chat.end_ids, chat.pad_id, tokenizer.bos_token_id}
    for token, number in tokenizer.get_vocab().items():
        if number < size:
            continue
        if number in needed or number not in chat.control or token in str(tokenizer.chat_template):
            raise ModelError(
                f"the tokenizer in {base} has {len(tokenizer)} tokens, among them {token!r:.80}, and the model only "
                f"{size}: they do not belong together"
            )


def _check_growth(tokenizer: Any, base: str) -> None:
    """Raise ModelError if a tokenizer replaces parts of texts by far longer ones."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    growth = 1.0
    for part in (getattr(backend, "normalizer", None), getattr(backend, "decoder", None)):
        for step in _steps(json.loads(part.__getstate__()) if part is not None else {}):
            content = str(step.get("content") or step.get("prepend") or "")
            pattern = step.get("pattern") or {}
            replaced = len(pattern.get("String", "x")) or 1 if isinstance(pattern, dict) else 1
            growth *= max(1.0, len(content) / replaced) if "content" in step else 1.0
            if growth > _GROWTH or len(content) > _LONGEST_REPLACEMENT:
                raise ModelError(
                    f"the tokenizer in {base} makes texts more than {_GROWTH:,} times longer: download it again"
                )


def _steps(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a normaliser or decoder, which may be sequences of others."""
    inner = part.get("normalizers") or part.get("decoders")
    if inner is None:
        yield part
    for one in inner or ():
        yield from _steps(one)


def _generation_config(base: str) -> GenerationConfig | None:
    if not (Path(base) / "generation_config.json").is_file():
        return None
    with _reading(f"the generation_config.json in {base}"):
        return GenerationConfig.from_pretrained(base)
