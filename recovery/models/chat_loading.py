"""Loading of tokenizers with their chat format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateSyntaxError
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from recovery.errors import ModelError
from recovery.limits import Overdue, memory_limit, time_limit
from recovery.models.chat_template import ChatFormat
from recovery.models.folder_check import check_tokenizer, reading
from recovery.types import Message

# Of processor time and memory for a template: thousands of times what it needs.
_SECONDS, _BYTES = 10.0, 1 << 30
_LONGEST_RENDERED = 1_000_000  # characters
# A normaliser may make a text this many times longer.
_GROWTH, _LONGEST_REPLACEMENT = 1000, 1000
# Ordinary text of several scripts: a tokenizer knows at least one of them.
_ORDINARY = (
    "The office opens at seven.",
    "Контора открывается в семь.",
    "办公室七点开门。",
    "事務所は七時に開きます。",
    "사무실은 일곱 시에 엽니다.",
    "يفتح المكتب في السابعة.",
    "कार्यालय सात बजे खुलता है।",
)
_OLD_TEMPLATE = "chat_template.json"  # where earlier releases of transformers stored the template of a processor


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
    if adapter is not None and _template_in(adapter) not in (None, _default(tokenizer.chat_template)):
        tokenizer, place = _own_tokenizer(adapter, tokenizer, base, trust_remote_code), str(adapter)
    with reading(f"the tokenizer in {place}"):
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
    with reading(f"the tokenizer in {adapter}"):
        if not config.is_file():
            return None
        if file.is_file():
            return file.read_text(encoding="utf-8")
        return _default(json.loads(config.read_text(encoding="utf-8")).get("chat_template"))


def _default(templates: Any) -> str | None:
    """Return the template for a conversation without tools, of one or several by name."""
    if isinstance(templates, list):  # the form in files of earlier releases of transformers
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


def _load_tokenizer(base: str, trust_remote_code: bool) -> Any:
    check_tokenizer(Path(base))
    with reading(f"the tokenizer in {base}"):
        tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=trust_remote_code)
        _check_growth(tokenizer, base)
        _check_words(tokenizer, base)
        if not tokenizer.chat_template and (old := Path(base) / _OLD_TEMPLATE).is_file():
            tokenizer.chat_template = json.loads(old.read_text(encoding="utf-8"))["chat_template"]
    # Documents are tokenised whole and split into rows afterwards: no warning if one is longer than the context.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _check_words(tokenizer: Any, base: str) -> None:
    """Raise ModelError if a tokenizer is a slow one, or makes nothing or only unknown tokens of ordinary text."""
    if not tokenizer.is_fast:
        raise ModelError(
            f"the tokenizer in {base} is a {type(tokenizer).__name__}, which has no fast version (tokenizer.json): a "
            f"control token that a text spells could not be told from a real one; use a model with a fast tokenizer"
        )
    ids = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in _ORDINARY]
    if all(set(one) <= {tokenizer.unk_token_id} for one in ids):
        made = f"only {tokenizer.unk_token}" if any(ids) else "nothing"
        raise ModelError(
            f"the tokenizer in {base} makes {made} of ordinary text: its files lack the words; copy tokenizer.json and "
            f"tokenizer_config.json from where the model came from"
        )


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
    with reading(f"the generation_config.json in {base}"):
        return GenerationConfig.from_pretrained(base)
