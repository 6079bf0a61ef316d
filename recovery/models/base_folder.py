"""The folder with the weights of a model that is named by folder, GGUF file, hub id or as the built-in one.

Nothing here imports torch, so that a name that is wrong is reported at once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from recovery.disk import near, user_cache
from recovery.errors import ModelError, first_line
from recovery.lazy_import import lazily
from recovery.models.folder_check import ADAPTER_CONFIG, check_adapter, check_model, check_tokenizer
from recovery.models.gguf_files.header import is_gguf

if TYPE_CHECKING:
    from recovery.models.gguf_files.conversion import Showing

conversion, huggingface_hub = lazily("recovery.models.gguf_files.conversion"), lazily("huggingface_hub")
package = lazily("recovery.miniature.package")

MINIATURE = "miniature"  # the name of the model that comes with the package
_DOUBLES = ["consolidated*"]  # the same weights again, for another library


def resolve_base(
    path: str | Path, cache: Path | None = None, showing: Showing | None = None
) -> tuple[str, Path | None]:
    """Return the folders of the weights of ``path``: (base folder, adapter folder or None).

    Hub ids are downloaded; a GGUF file is converted once, into ``cache`` (by default the user's), and the built-in
    model is unpacked there. Raise ModelError if nothing is found.
    """
    folder = _folder(path, cache, showing)
    if not _is_adapter(folder):
        return _checked(folder), None
    base = check_adapter(folder).get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        raise ModelError(f"{folder}/adapter_config.json names no base model: set base_model_name_or_path")
    try:
        below = _folder(base, cache, showing)
        if not _is_adapter(below):
            return _checked(below), folder
    except ModelError as error:
        raise ModelError(f"the adapter {folder} names a base model that cannot be used: {error}") from error
    raise ModelError(f"{folder} is an adapter on an adapter, {base}: merge that one first (recover export --merge)")


def _folder(path: str | Path, cache: Path | None, showing: Showing | None) -> Path:
    """Return the folder of a model or an adapter, converted or downloaded if it is not one itself."""
    folder = Path(path).expanduser()
    if is_gguf(folder):
        return conversion.converted(folder, cache or user_cache("models"), showing)
    if os.path.isdir(folder):  # noqa: PTH112  (False where Path.is_dir raises: for what cannot be a path)
        return folder
    if str(path) == MINIATURE:
        return package.unpacked((cache or user_cache("models")) / MINIATURE)
    if is_path(str(path)) or folder.is_file():
        raise no_model_at(str(path))
    _check_typo(Path(path))
    return Path(_download(str(path)))


def _check_typo(path: Path) -> None:
    """Raise ModelError for a name that is nearly that of a folder here, or has the form of a checkpoint's."""
    if len(path.parts) > 1 and (meant := near(path)):
        raise ModelError(f"there is no folder {path}: {meant}")
    if re.match(r"cycle-\d+/", str(path)):
        raise ModelError(
            f"{path} has the form of a checkpoint's name, and is none: give a folder or a hub id (ORG/MODEL)"
        )


def is_path(name: str) -> bool:
    """Whether a model's name looks like a path, whether or not anything is there; no hub id does."""
    return name.startswith(("./", "../", "/", "~")) or name.endswith("/") or name.count("/") > 1


def no_model_at(name: str) -> ModelError:
    """Return the error for a path that is neither a folder nor a GGUF file: what it is, and where it was looked for."""
    place = Path(name).expanduser().resolve()
    if place.exists():
        return ModelError(
            f"{name} is neither a folder nor a GGUF file: name the folder with config.json and *.safetensors ({place})"
        )
    looked = "" if str(place) == name else f"it was looked for at {place}: "
    what = near(Path(name)) or f"{looked}correct the path, or give a hub id (ORG/MODEL)"
    return ModelError(f"there is no {'file' if is_gguf(name) else 'folder'} {name}: {what}")


def _checked(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} holds no model: expected config.json and *.safetensors in it (of GGUF files, name one of them)"
        )
    if (folder / ADAPTER_CONFIG).is_file():  # transformers would put the adapter on whatever the weights are
        raise ModelError(
            f"{folder} holds a model (config.json) and an adapter ({ADAPTER_CONFIG}): move one of them elsewhere"
        )
    check_model(folder)
    check_tokenizer(folder)
    return str(folder)


def _is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def _download(name: str) -> str:
    try:
        patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "README.md", "suites/*", "recovery.toml"]
        return str(huggingface_hub.snapshot_download(name, allow_patterns=patterns, ignore_patterns=_DOUBLES))
    except Exception as error:  # the hub client raises many unrelated types: no network, no such repository ...
        raise ModelError(
            f"{name!r} is neither a folder with a model nor a hub id that can be fetched: {_why_not_fetched(error)}"
        ) from error


def _why_not_fetched(error: Exception) -> str:
    """Return the hub client's reason in a few words: its own are several sentences, an address and a request's id."""
    kinds = {one.__name__ for one in type(error).__mro__}
    if "GatedRepoError" in kinds:
        return "the hub asks you to accept its terms first"
    if "RepositoryNotFoundError" in kinds:
        return "the hub has no such public model"
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "TransportError", "ConnectionError"}:
        return "the hub was not reached, and there is no copy here"
    return first_line(error)
