"""The model that a plan is made for: its configuration, recipe and tokenizer, without its weights."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from pipelines.planning.architecture import Architecture
from recovery.config import Recipe, model_recipe
from recovery.errors import ModelError, RecoveryError
from recovery.lazy_import import lazily
from recovery.miniature.package import RECOMMENDED, WEIGHTS
from recovery.models.base_folder import is_path, no_model_at, resolve_base
from recovery.models.folder_check import check_model, read_config
from recovery.models.gguf_files import is_gguf
from recovery.workspace import MINIATURE

# Most of a plan's time would be imports: these are for tokenizers, GGUF files and hub ids.
transformers, chat_loading = lazily("transformers"), lazily("recovery.models.chat_loading")
conversion = lazily("recovery.models.gguf_files.conversion")


def model_text(name: str) -> str:
    """Return the config.json of a model folder, a file, "miniature" or a hub id.

    For a GGUF file it is the one of its conversion. Raises ModelError if there is none that can be planned with.
    """
    path = Path(WEIGHTS if name == MINIATURE and not Path(name).exists() else name).expanduser()
    try:
        if is_gguf(path):
            text: str = conversion.config_of(path).to_json_string(use_diff=False)
        elif path.exists():
            text = json.dumps(_config_of(path))
        elif is_path(name):
            raise no_model_at(name)
        else:
            text = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False).to_json_string(use_diff=False)
        Architecture.of(text)
    except RecoveryError as error:
        raise error if name in str(error) else ModelError(f"--model {name}: {error}") from error
    except KeyError:
        raise ModelError(
            f"{path} is not a model's config.json: it names no model_type that transformers knows"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ModelError(
            f"--model {name}: no configuration was found in a folder, a file or on the hub: {reason}"
        ) from error
    return text


def recipe_of(name: str) -> Recipe:
    """Return what a model's folder recommends, which its stages follow; nothing for a file or a hub id."""
    if name == MINIATURE and not Path(name).exists():
        return Recipe(name, tomllib.loads(RECOMMENDED), recommended=True)
    return model_recipe(Path(name).expanduser())


def _config_of(path: Path) -> dict[str, Any]:
    """Return the config.json of a model folder, of the base of an adapter, or in a file."""
    if not path.is_dir():
        takes = "--model takes a folder, a GGUF file, a config.json or a hub id"
        if not path.is_file():
            raise ModelError(f"{path} is not a regular file: {takes}")
        try:
            return read_config(path)
        except ModelError as error:
            if path.suffix == ".json":
                raise
            raise ModelError(f"{path} is neither a GGUF file nor a config.json: {takes}") from error
    if (path / "config.json").is_file():
        check_model(path)
        return read_config(path / "config.json")
    return read_config(Path(resolve_base(path)[0]) / "config.json")


def tokenizer_of(model: str) -> Any:
    """Return the tokenizer of a folder or a GGUF file; None if there is none."""
    folder = WEIGHTS if model == MINIATURE else Path(model)
    if is_gguf(folder):
        return conversion.tokenizer_of(folder)
    if folder.is_dir() and any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return chat_loading.load_chat(str(folder)).tokenizer
    return None
