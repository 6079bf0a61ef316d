"""Loading of models: student or teacher, full weights or LoRA, on any device."""

from __future__ import annotations

import inspect
import itertools
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import PeftModel, get_peft_model
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from recovery import distributed
from recovery.errors import ModelError, UsageError, first_line
from recovery.models import attention, fsdp, quantization
from recovery.models.adapters import LoraSettings, merge_adapter, peft_warnings, with_adapter
from recovery.models.base_folder import resolve_base
from recovery.models.chat_loading import load_chat
from recovery.models.chat_template import ChatFormat
from recovery.models.folder_check import check_total, read_shapes, reading
from recovery.models.hardware import pick_device, pick_precision
from recovery.models.lm_head import Head
from recovery.models.loaded import Loaded, Tuning

# The lock for loading a model with transformers, which is not safe in two threads at once.
#
# While it loads one, transformers replaces ``PreTrainedModel.tie_weights`` and torch's default dtype for the whole
# process. If two loads overlap, the replacement can stay for good, and every later model with a tied head lacks it.

LOADING = threading.RLock()

# Compilation of a decoder's layers by torch, which fuses the operations between matrix products.


def compile_layers(decoder: Any, device: torch.device) -> None:
    """Compile each layer of a decoder at its first use with gradients, once for batches of all shapes.

    Without gradients the layers run eagerly, see ``Loaded.inference``: every length of the KV cache would be compiled
    separately. Raise UsageError if torch cannot compile on this machine.
    """
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ModelError(f"{type(decoder).__name__} has no list of layers to compile: train it without --compile")
    try:
        torch.compile(torch.nn.functional.silu)(torch.zeros(8, device=device))
    except RuntimeError as error:
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(
            f"torch cannot compile here ({why}): install a C++ compiler and Python's headers (a GPU: Triton), or omit "
            f"--compile"
        ) from error
    for layer in layers:
        layer.compile(dynamic=True)


# RMS norms as one kernel each on a GPU. transformers computes one in eight operations. A decoder has two or more in
# each layer, so in a small model, whose time is that of starting kernels, these are a third of all.

# Largest allowed difference between a normalised entry of the kernel and of the module, by data type: the module also
# rounds before it multiplies by the weight, the kernel rounds once.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
# Scales of the random inputs on which they are compared: only small inputs show where epsilon is added.
SCALES = (3.0, 1e-3)


def fuse_norms(model: Any) -> int:
    """Let the RMS norms of a model run as one kernel each, in place; return how many do.

    A class is tested by its result for random numbers, since some classes scale by 1 + weight. Modules with further
    inputs, such as a gate, are not changed.
    """
    fused: dict[type, bool] = {}
    count = 0
    for module in model.modules():
        kind = type(module)
        if "RMSNorm" not in kind.__name__ or "forward" in vars(module) or not _is_supported_norm(module):
            continue
        if kind not in fused:
            fused[kind] = len(inspect.signature(kind.forward).parameters) == 2 and _agrees(module)  # with self
        if fused[kind]:
            module.forward = types.MethodType(_forward, module)
            count += 1
    return count


def _is_supported_norm(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.ndim == 1 and isinstance(_eps(module), float)


def _eps(module: Any) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _forward(module: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Normalise [..., D] over the last dimension and multiply by the weight."""
    weight = module.weight
    if hidden_states.dtype != weight.dtype:  # there is no such kernel
        return type(module).forward(module, hidden_states)
    return F.rms_norm(hidden_states, weight.shape, weight, _eps(module)).to(hidden_states.dtype)


@torch.no_grad()
def _agrees(module: Any) -> bool:
    """Whether the kernel gives the module's own result, up to rounding."""
    weight = module.weight
    generator = torch.Generator(weight.device).manual_seed(0)
    for scale in SCALES:
        x_ND = torch.randn(8, len(weight), generator=generator, device=weight.device).to(weight.dtype) * scale
        try:
            expected_ND = type(module).forward(module, x_ND)
        except Exception:  # the module computes something else
            return False
        difference = (_forward(module, x_ND).float() - expected_ND.float()).abs() / (1 + expected_ND.float().abs())
        if not bool(difference.max() <= ROUNDING.get(weight.dtype, 0.0)):  # also for NaN
            return False
    return True


_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")  # entries of a generation configuration

transformers_logging.disable_progress_bar()


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
    base, found_adapter = resolve_base(path)
    adapter = adapter or found_adapter
    target_device = pick_device(device)
    dtype = pick_precision(precision, target_device)
    if tuning == "full" and adapter is not None:
        raise UsageError(
            f"{path} is an adapter: train it with --tuning lora, or merge it first (recover export --merge)"
        )
    if quantize != "none" and tuning == "full":
        raise UsageError(f"{path} cannot be quantised and fully fine-tuned: use --tuning lora, or omit --quantize")
    if beside is None:
        quantization.check_tuning(base, tuning)
        extra = {} if quantize == "none" else quantization.arguments(dtype, target_device)
        # Trained weights are held in float32, the others in the precision of matrix products.
        model = _load_weights(base, torch.float32 if tuning == "full" else dtype, trust_remote_code, extra)
        if quantize != "none":
            quantization.check(model, base)
    else:
        model = beside.under_adapter()
    chat = load_chat(base, template_args, trust_remote_code, adapter)
    if adapter is not None:
        model = with_adapter(model, adapter, tuning == "lora")
    model = _with_tuning(model, tuning, lora or LoraSettings(), gradient_checkpointing)
    loaded = Loaded(model, chat.tokenizer, chat, target_device, dtype, tuning, str(path))
    if tuning == "full" and not embeddings:
        for weights in loaded.embeddings():
            weights.requires_grad_(False)
    if shard and distributed.size() > 1:
        _check_finite(loaded)
        return shard_layers(loaded, offload)
    model.to(target_device)
    _check_finite(loaded)
    if target_device.type == "cuda":
        fuse_norms(model)
    if compiled and tuning != "frozen":
        compile_layers(loaded.decoder, target_device)
    return loaded


def load_merged(path: Path, adapter: Path) -> Loaded:
    """Load a model with its adapter merged in float32, for the smallest rounding error."""
    loaded = load_model(path, adapter=adapter, precision="float32", device="cpu")
    with torch.no_grad():
        loaded.model = merge_adapter(loaded.model)
    return loaded


def not_finite(model: Any) -> str | None:
    """Return the name of the first weight of a model that has NaN or infinite entries, or None."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and weight.numel():
            values = weight.detach()
            if values.element_size() == 1:  # torch does not compare floats of 8 bits
                values = values.to(torch.bfloat16)
            smallest, largest = torch.aminmax(values)  # makes no copy; NaN is both
            if not bool(torch.isfinite(smallest) & torch.isfinite(largest)):
                return str(name)
    return None


def _check_finite(loaded: Loaded) -> None:
    if name := not_finite(loaded.model):
        raise ModelError(
            f"the weights in {loaded.path} are not all finite numbers ({name}): use another checkpoint, or copy the "
            f"files again"
        )


def outline(config: Any, *, tuning: Tuning = "frozen", lora: LoraSettings | None = None) -> Loaded:
    """Build the model of a transformers configuration as :func:`load_model` would load it, without weights.

    Its tensors are on the meta device: they have a shape and a dtype and take no memory. It has no tokenizer, and its
    head is not compared with the model's own logits. Raise ModelError if transformers cannot build it.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            _pick_attention(model)
            model = _with_tuning(model, tuning, lora or LoraSettings(), gradient_checkpointing=False)
    except (ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        raise ModelError(
            f"cannot build a {config.model_type} model from its config.json: {first_line(error)}"
        ) from error
    chat = ChatFormat(None, frozenset(), 0)
    loaded = Loaded(model, None, chat, torch.device("cpu"), torch.float32, tuning, str(config.name_or_path))
    loaded._head = Head.read(model)
    return loaded


def _with_tuning(model: Any, tuning: Tuning, lora: LoraSettings, gradient_checkpointing: bool) -> Any:
    """Make the weights of ``tuning`` trainable; an existing adapter is kept."""
    if tuning == "lora" and not isinstance(model, PeftModel):
        with peft_warnings():
            model = get_peft_model(model, lora.config())
    if tuning == "frozen":
        model.requires_grad_(False)
    model.eval()
    _without_dropout(model)
    if gradient_checkpointing and tuning != "frozen":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model


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


def _load_weights(base: str, dtype: torch.dtype, trust_remote_code: bool, extra: Mapping[str, Any]) -> Any:
    stored = read_shapes(Path(base)).elements
    if not stored:
        raise ModelError(
            f"{base} holds no weights in *.safetensors, and pickles (*.bin) are not read: convert them first"
        )
    with LOADING, reading(f"the model in {base}"):
        config = AutoConfig.from_pretrained(base, trust_remote_code=trust_remote_code)
        with torch.device("meta"):  # takes no memory, whatever the sizes are
            planned = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        check_total(sum(p.numel() for p in planned.parameters()), config, stored, base)
        model, info = AutoModelForCausalLM.from_pretrained(
            base,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **extra,
        )
    if info["missing_keys"]:
        raise ModelError(
            f"{base} lacks weights of its model, for example {min(info['missing_keys'])}: download it again"
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


def _pick_attention(model: Any) -> None:
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # SDPA does not apply the cap on attention scores (Gemma 2)
    elif model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(attention.NAME)
