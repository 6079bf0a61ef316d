"""Checks of a model folder or an adapter that a stranger may have made, before any library reads it.

Nothing here executes what it reads: sizes are compared with one another, so that the libraries allocate no more than
the files hold. Links, pipes and devices are refused: what is loaded is what lies in the folder.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from recovery.errors import ModelError, RecoveryError, first_line

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOST_TENSORS = 500_000  # the largest mixtures of experts have some 200,000
MOST_LAYERS = 10_000
_LARGEST_TEXT = 64_000_000  # bytes of a JSON file or template; the largest tokenizers have half of it
_TEXTS = (".json", ".jinja", ".txt", ".model", ".toml", ".md")
_INDEX = "model.safetensors.index.json"
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
_SUBFOLDERS = ("additional_chat_templates", "suites")
# Numbers of which libraries make lists, one entry each.
_LISTED = {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_labels"}
_RANKS = ("r", "init_r", "target_r", "num_virtual_tokens")
# Any one of these has the words of a tokenizer; the second of a pair is needed beside the first.
_TOKENIZERS = (
    *(("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("vocab.txt",)),
    *(("spiece.model",), ("sentencepiece.bpe.model",), ("tekken.json",)),
)
_QUANTISATION = ("quantization_config", "compression_config")
# Methods whose stored weights are not floats of 16 bits or more; others quantise some while they are loaded.
_QUANTISED = {
    *("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit", "gptq", "awq", "auto-round", "fp8", "fbgemm_fp8"),
    *("compressed-tensors", "mxfp4", "eetq"),
}
_FLOATS, _PACKED_NAMES = ("F64", "F32", "F16", "BF16"), ("qweight", "qzeros", "packed", "blocks")
# Stored numbers of quantised weights may hold up to sixteen weights each (2 bits in an int32).
_PACKED = 16


@dataclass(frozen=True)
class Stored:
    """The shapes and the types of the tensors in the safetensors files of a folder, by name."""

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """Number of stored elements."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def quantised(self) -> str | None:
        """The name of a tensor of quantised weights, or None. Masks of integers do not count."""
        scaled = any("scale" in name for name in self.types)
        for name, kind in self.types.items():
            small = kind.startswith(("I8", "U8", "I4", "U4", "U32", "F4", "F6")) or (kind.startswith("F8") and scaled)
            packed = name.endswith(_PACKED_NAMES) and kind not in (*_FLOATS, "BOOL")
            if len(self.shapes[name]) > 1 and ((small and name.endswith("weight")) or packed):
                return name
        return None


def check_model(folder: Path) -> None:
    """Check the files of a model folder, its index, the headers of its weights and the counts in its config.json.

    Raise ModelError that names the file.
    """
    _check_files(folder)
    stored = read_shapes(folder)
    _check_index(folder)
    config = read_config(folder / "config.json", max(len(stored.shapes), 100) if stored.shapes else MOST_LAYERS)
    _check_quantised(folder, config, stored)


def check_tokenizer(folder: Path) -> None:
    """Raise ModelError if a model folder lacks the files of its tokenizer: transformers makes one without words."""
    if any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS):
        return
    settings = folder / "tokenizer_config.json"
    named = _json_object(settings).get("tokenizer_class") if settings.is_file() else None
    slow = f"; if its {named} needs none, it has no fast version and cannot be used" if isinstance(named, str) else ""
    others = ", ".join(" with ".join(names) for names in _TOKENIZERS[1:])
    raise ModelError(
        f"{folder} has no tokenizer, neither tokenizer.json nor another vocabulary ({others}): copy tokenizer.json and "
        f"tokenizer_config.json from where the model came from{slow}"
    )


def why_no_chat(name: str, folder: Path) -> str:
    """Return the sign, in name or folder, that a model is not an instruct model; "" if it seems to be one."""
    settings = folder / "tokenizer_config.json"
    has_template = settings.is_file() and _json_object(settings).get("chat_template")
    if not has_template and not any((folder / file).exists() for file in _TEMPLATES):
        return "has no chat template"
    return "is a base model by its name" if re.search(r"[-_.](base|pt)/*$", name, re.IGNORECASE) else ""


def _check_quantised(folder: Path, config: Mapping[str, Any], stored: Stored) -> None:
    """Raise ModelError if config.json and the stored weights disagree on whether the weights are quantised."""
    text = config.get("text_config")
    places = [(config, ""), *([(text, "text_config.")] if isinstance(text, dict) else [])]
    keys = [(place, key, f"{prefix}{key}") for place, prefix in places for key in _QUANTISATION if place.get(key)]
    name = stored.quantised
    if not stored.types or (name is None) == (not keys):
        return
    if name is not None:
        raise ModelError(
            f"{folder} holds quantised weights ({name}: {stored.types[name]}), and its config.json does not say how: "
            f"copy quantization_config from where the model came from, or use the model before it was quantised"
        )
    place, key, where = keys[0]
    method = place[key].get("quant_method", "") if isinstance(place[key], dict) else ""
    if str(method) in _QUANTISED and place[key].get("format") != "dense":
        kinds = " and ".join(sorted(set(stored.types.values()) & {*_FLOATS}))
        raise ModelError(
            f"{folder / 'config.json'} says that the weights are quantised ({method}), and they are stored as {kinds}, "
            f"as after a merge: remove the key {where} from it"
        )


def check_total(total: int, config: Any, stored: int, place: str | Path) -> None:
    """Raise ModelError if a model has more parameters than its ``stored`` weights: loading it would invent the rest."""
    packed = _PACKED if getattr(config, "quantization_config", None) else 1
    if total > 2 * packed * stored:  # twice: a missing part is reported by its name later
        raise ModelError(
            f"the configuration of {place} describes a model of {total:,} parameters, and its weights hold {stored:,} "
            "numbers: they do not belong together; download it again"
        )


def check_adapter(folder: Path) -> dict[str, Any]:
    """Check the files of an adapter and the ranks in its configuration, which is returned.

    Raise ModelError that names the file.
    """
    _check_files(folder)
    path = folder / ADAPTER_CONFIG
    config = _json_object(path)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"{folder} holds no {ADAPTER_WEIGHTS}: an adapter needs its weights in that format")
    stored, _ = _shapes_in(folder / ADAPTER_WEIGHTS)
    if not stored:
        raise ModelError(f"{folder / ADAPTER_WEIGHTS} holds no tensors: download it again")
    if config.get("megatron_config"):  # peft would import a module whose name the file gives
        raise ModelError(f"{path} asks for code of its own (megatron_config): remove the entry, or use another adapter")
    # The first dimension of LoRA's A is its rank. The rank of other adapters is compared with their largest dimension.
    largest = max(
        [shape[0] for name, shape in stored.items() if "lora_A" in name and shape]
        or [max(shape, default=1) for shape in stored.values()]
    )
    ranks = [config.get(name) for name in _RANKS]
    patterns = config.get("rank_pattern") or {}
    ranks += list(patterns.values()) if isinstance(patterns, dict) else [patterns]
    if wrong := [rank for rank in ranks if rank is not None and not (_is_count(rank) and 1 <= rank <= largest)]:
        raise ModelError(
            f"{path} has the rank {wrong[0]!r:.40}, and its weights have {largest}: they do not belong together"
        )
    replicated = config.get("layer_replication")
    if replicated and (not isinstance(replicated, list) or len(replicated) > MOST_LAYERS):
        raise ModelError(f"{path} repeats layers without end (layer_replication): remove the entry")
    return config


def read_config(path: Path, most: int = MOST_LAYERS) -> dict[str, Any]:
    """Return a config.json. Raise ModelError if it is no object, or counts more than ``most`` layers or labels."""
    config = _json_object(path)
    for key, value in _entries(config):
        if key in _LISTED and _is_count(value) and value > most:
            raise ModelError(
                f"{path} has {key} {value!r:.40}, more than the model can hold ({most:,}): download it again"
            )
    return config


def read_shapes(folder: Path) -> Stored:
    """Return the shapes of a folder's weights. Raise ModelError if a file of them is damaged or has too many."""
    shapes: dict[str, tuple[int, ...]] = {}
    types: dict[str, str] = {}
    for path in _weight_files(folder):
        more, kinds = _shapes_in(path)
        shapes |= more
        types |= kinds
        if len(shapes) > MOST_TENSORS:
            raise ModelError(f"{path} brings the tensors to {len(shapes):,}, no model has so many: download it again")
    return Stored(shapes, types)


def _weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers reads: others, such as Mistral's ``consolidated.safetensors``, may hold the
    same weights again.
    """
    present = sorted(folder.glob("*.safetensors"))
    if (single_file := folder / "model.safetensors") in present:
        return [single_file]
    mapping = _json_object(folder / _INDEX).get("weight_map") if (folder / _INDEX).is_file() else None
    indexed = list(mapping.values()) if isinstance(mapping, dict) else []
    return [path for path in present if path.name in indexed] or present


def _shapes_in(path: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return the shapes and the types of a file's tensors, by name."""
    try:
        # The library checks that offsets fit the shapes, the file and one another.
        with safe_open(path, framework="np") as file:
            names = list(file.keys())
            if len(names) > MOST_TENSORS:
                raise ModelError(f"{path} holds {len(names):,} tensors, no model has so many: download it again")
            slices = {name: file.get_slice(name) for name in names}
            shapes = {name: tuple(tensor.get_shape()) for name, tensor in slices.items()}
            return shapes, {name: str(tensor.get_dtype()) for name, tensor in slices.items()}
    except (SafetensorError, OSError, ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"{path} is not a sound safetensors file ({first_line(error)}): download it again") from error


def _check_index(folder: Path) -> None:
    path = folder / _INDEX
    if not path.is_file() or (folder / "model.safetensors").is_file():
        return
    mapping = _json_object(path).get("weight_map")
    if not isinstance(mapping, dict) or not mapping or len(mapping) > MOST_TENSORS:
        raise ModelError(f"{path} has no usable weight_map: download it again")
    present = {file.name for file in folder.glob("*.safetensors")}
    for name in mapping.values():
        if not isinstance(name, str) or name not in present:
            raise ModelError(
                f"{path} names {name!r:.80}, which is not a safetensors file of the folder: download it again"
            )


def _check_files(folder: Path) -> None:
    """Raise ModelError for links that leave the folder, irregular files, and texts that are too large."""
    root = folder.resolve()
    allowed = [root]
    if root.parent.name == "snapshots":  # the hub's cache: its files are links to a folder beside the snapshots
        allowed.append(root.parent.parent / "blobs")
    for path in _files(folder):
        if path.is_symlink():
            target = Path(os.path.realpath(path))
            if not any(target.is_relative_to(place) for place in allowed):
                raise ModelError(f"{path} is a link to a place outside the folder: copy the file itself there")
        try:
            status = path.stat()
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({error.strerror}): remove it, or copy the file again") from error
        must_be_file = path.suffix in (*_TEXTS, ".safetensors")
        if stat.S_ISDIR(status.st_mode) and not must_be_file:
            continue
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path} is not a regular file: remove it, or copy the file again")
        if path.suffix in _TEXTS and status.st_size > _LARGEST_TEXT:
            raise ModelError(f"{path} has {status.st_size:,} bytes, more than any model needs ({_LARGEST_TEXT:,})")


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.iterdir())
    for name in _SUBFOLDERS:
        if (folder / name).is_dir():
            yield from sorted((folder / name).iterdir())


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({first_line(error)}): download it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object: download it again")
    return value


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        yield key, value
        if isinstance(value, dict):
            yield from _entries(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn any error that a library raises for the files of a model into ModelError."""
    try:
        yield
    except RecoveryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # raised by libraries in Rust
            raise
        raise ModelError(f"cannot load {what}: {first_line(error)}") from error
