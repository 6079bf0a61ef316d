"""Tokenizers and chat templates that take all time or memory, or are damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.torture.hostile_models.case import TEXTS, Case, Write, changed_json, code, filled

UNKNOWN = {"type": "WordLevel", "vocab": {"<|endoftext|>": 0}, "unk_token": "<|endoftext|>"}


def custom_tokenizer(values: dict[str, Any], folder: Path) -> None:
    (folder / "custom.py").write_text(code(folder))
    values |= {"auto_map": {"AutoTokenizer": ["custom.Custom", "custom.Custom"]}, "tokenizer_class": "Custom"}


def _tokenizer(change: Callable[[dict[str, Any]], object]) -> Write:
    return changed_json("tokenizer.json", lambda values, _: change(values) and None)


def _with(**values: Any) -> Write:
    return _tokenizer(lambda t: t.update(values))


def _pattern(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _added(content: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": True, **flags}


def tokenizers(huge: int) -> Iterator[Case]:
    for what, text in TEXTS.items():
        yield Case(f"tokenizer.json {what}", lambda f, t=text: filled(f / "tokenizer.json", t))
    crowd = lambda t: t["model"]["vocab"].update({f"x{n}": 500 + n for n in range(huge // 20)})  # noqa: E731
    yield Case("tokenizer.json huge", _tokenizer(crowd))
    for name in ("tokenizer.json", "tokenizer*"):
        yield Case(f"without {name}", lambda f, name=name: [path.unlink() for path in f.glob(name)])
    yield Case("tokenizer without words", _tokenizer(lambda t: t["model"].update(vocab={}, merges=[])))
    yield Case("tokenizer of unknown words", _with(model=UNKNOWN))
    yield from _rewriting()
    yield from _added_tokens()
    yield from _references()
    yield from _settings()


def _rewriting() -> Iterator[Case]:
    """Splits, normalisers and decoders that take long, or make much of little."""
    for regex in (r"(a+)+$", r"(.*)*x", r"((\w|\s)+)+#", "[", r"(?:" * 1000, r"a{1000000000}", r"(?=(.*))\1\1\1\1x"):
        yield Case(f"split by {regex:.30}", _with(pre_tokenizer=_pattern(regex)), fine=None)
    long = _replace({"Regex": "."}, "x" * 10**7)
    for what, normaliser in {
        "that doubles": {"type": "Sequence", "normalizers": [_replace({"String": "e"}, "ee")] * 40},
        "of thousands": {"type": "Sequence", "normalizers": [_replace({"Regex": "."}, "x" * 1000)] * 4},
        "long": long,
        "in front": {"type": "Prepend", "prepend": "x" * 10**8},
    }.items():
        yield Case(f"normaliser {what}", _with(normalizer=normaliser))
    yield Case("decoder long", _with(decoder=long), fine=None)


def _added_tokens() -> Iterator[Case]:
    for what, tokens in {
        "of id 2^32-1": [_added("<x>", (1 << 32) - 1)],
        "of id 2^40": [_added("<x>", 1 << 40)],
        "of id -1": [_added("<x>", -1)],
        "empty": [_added("", 447)],
        "of a space": [_added(" ", 447)],
        "of each letter": [_added(c, 300 + n) for n, c in enumerate("abcdefghijklmnopqrstuvwxyz")],
        "long": [_added("x" * 10**7, 447)],
        "with control characters": [_added("\x1b[2J\x00\n", 447)],
        "twice": [_added("<x>", 447), _added("<x>", 446)],
    }.items():
        yield Case(
            f"added tokens {what}", _tokenizer(lambda t, tokens=tokens: t["added_tokens"].extend(tokens)), fine=None
        )
    crowd = lambda t: t["added_tokens"].extend(_added(f"<{n}>", 448 + n) for n in range(10**6))  # noqa: E731
    yield Case("added tokens 10^6", _tokenizer(crowd), fine=None)


def _appending(made: dict[str, Any]) -> None:
    """Put the first special token after every text."""
    token = made["added_tokens"][0]
    special = {"x": {"id": "x", "ids": [token["id"]], "tokens": [token["content"]]}}
    made["post_processor"] = _template([{"Sequence": {"id": "A", "type_id": 0}}, _special("x")], special)


def _special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _template(single: list[dict[str, Any]], special: dict[str, Any]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}


def _references() -> Iterator[Case]:
    """Tokens that do not exist, and lengths that nothing has."""
    yield Case("no vocabulary", _tokenizer(lambda t: t["model"].update(vocab={}, merges=[])), fine=None)
    yield Case("merges of nothing", _tokenizer(lambda t: t["model"].update(merges=[["zz", "yy"]] * 9)), fine=None)
    yield Case("ids apart", _tokenizer(lambda t: t["model"]["vocab"].update(zzz=(1 << 32) - 1)), fine=None)
    yield Case("processor that appends a token", _tokenizer(_appending), fine=None)
    padding = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    nothing = {"max_length": 0, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    yield Case("processor of unknown tokens", _with(post_processor=_template([_special("<zzz>")], {})), fine=None)
    yield Case("padding of 10^9", _with(padding=padding | {"pad_type_id": 0, "pad_token": "x"}), fine=None)
    yield Case("truncation to nothing", _with(truncation=nothing), fine=None)


def _settings() -> Iterator[Case]:
    settings: dict[str, tuple[Any, ...]] = {
        "tokenizer_class": ("../../x", "os.system", "Custom", 7, None, [], "LlamaTokenizer", "BertTokenizer"),
        "eos_token": ("", "zzz", 7, None, [], {}, {"content": "x" * 10**6, "__type": "AddedToken"}),
        "model_max_length": (-1, 0, "x", None, 10**30),
        "added_tokens_decoder": ([], {"x": 1}, {"-1": {"content": "<y>"}}, {"4000000000": {"content": "<y>"}}, 7),
        "extra_special_tokens": ({"to_dict": "x"}, 7, [7], {"a": {}}),
        "chat_template": (7, [], {}, [{"name": "default"}], {"default": 7}, ["x"]),
        "vocab_file": ("/etc/passwd", "../outside/secret.txt"),
        "tokenizer_file": ("../outside/tokenizer.json", "/dev/zero"),
        "name_or_path": ("../outside", "org/model"),
    }
    for key, values in settings.items():
        for value in values:
            change = lambda t, _, key=key, value=value: t.update({key: value})  # noqa: E731
            yield Case(f"tokenizer {key} {value!r:.40}", changed_json("tokenizer_config.json", change), fine=None)


_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
_ENDS = "{% endfor %}{% endfor %}{% endfor %}"
TEMPLATES = {
    "endless": _LOOP + _ENDS,
    "endless text": _LOOP + "x" + _ENDS,
    "endless recursion": "{% macro a(n) %}{{ a(n) }}{{ a(n) }}{% endmacro %}{{ a(1) }}",
    "tree of macros": "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(60) }}",
    "memory by product": "{{ 'a' * 20000000000 }}",
    "memory by product of lists": "{{ ([0] * 20000000000) | length }}",
    "memory by format": "{{ '%20000000000d' % 1 }}",
    "memory by a method": "{{ 'a'.ljust(20000000000) }}",
    "memory by str.format": "{{ '{:>20000000000}'.format(1) }}",
    "memory by a filter": "{{ 'a' | center(20000000000) }}",
    "memory by doubling": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "memory by lists": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "number by power": "{{ 9 ** 9 ** 9 }}",
    "number by products": "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "regular expression": "{{ ('a' * 40) | wordwrap(1) | urlize }}" * 1000,
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ lipsum.__globals__['os'].system('touch ../executed') }}",
    "globals by a filter": "{{ lipsum | attr('__globals__') }}",
    "globals of cycler": "{{ cycler.__init__.__globals__.os.popen('touch ../executed').read() }}",
    "format of a class": "{{ '{0.__class__.__init__}'.format(lipsum) }}",
    "format by a map": "{{ ['{0.__class__}'] | map('format', lipsum) | list }}",
    "code of raise_exception": "{{ raise_exception.__globals__ }}",
    "itself": "{{ self.__init__.__globals__ }}",
    "changes messages": "{{ messages.append(messages) }}{{ messages }}",
    "include": "{% include '/etc/passwd' %}",
    "include beside": "{% include '../outside/secret.txt' %}",
    "extends": "{% extends '../outside/secret.txt' %}",
    "import": "{% import '../outside/secret.txt' as x %}{{ x }}",
    "syntax": "{% for %}",
    "deep": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "refusal": "{{ raise_exception('no') }}",
    "division": "{{ 1 / 0 }}",
    "types": "{{ messages + 1 }}",
    "undefined": "{{ a.b.c }}",
    "unknown filter": "{{ 1 | zzz }}",
    "control characters": "\x1b[2J\x00{{ messages[0]['content'] }}",
    "half of a pair": "{{ '\\ud800' }}",
    "huge": "{# x #}" * 10**6,
    "huge text": "x" * 5 * 10**7,
    "strftime": "{{ strftime_now('%Y' * 10000) }}",
    "generation": "{% generation %}x{% endgeneration %}",
}


def templates() -> Iterator[Case]:
    for name, text in TEMPLATES.items():
        yield Case(f"template: {name}", lambda f, t=text: (f / "chat_template.jinja").write_text(t), fine=None)
