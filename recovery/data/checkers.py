"""Verifiable instructions, judged by IFEval's own checkers, unmodified, from lm-eval.

Some checkers are random (the language detector; the choice of a letter where a prompt gives no valid one). They are
seeded by the prompt's id, so that a verdict depends only on the prompt and the response.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import langdetect

from recovery.disk import user_cache
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.types import Prompt

# Sentence-splitting data for IFEval's checkers, provided before generation starts.
#
# The checkers need nltk's ``punkt_tab``. If it is missing, they try to download it, print "Downloaded" whether or not
# that succeeded, and fail only at scoring time, after the generation. Therefore the data is prepared first: the
# installed data if nltk finds it, otherwise a small substitute written from the abbreviations below, without
# collocations or orthographic statistics. Only ``number_sentences`` and ``capital_word_frequency`` use it.

nltk, punkt = lazily("nltk"), lazily("nltk.tokenize.punkt")

_LANGUAGE = "english"
_FOLDER = Path("tokenizers", "punkt_tab", _LANGUAGE)
_EMPTY_FILES = ("collocations.tab", "sent_starters.txt", "ortho_context.tab")
# Words that often end sentences (units, months, "no", "fig") are omitted: an abbreviation never ends a sentence here.
_ABBREVIATIONS = (
    "a.d a.k.a a.m adj adm adv al alt approx apr apt asst assn aug ave b.a b.c b.s bldg blvd bros c.e "
    "c.o c.v ca capt cf ch cm co col comdr corp cpl cpt ct d.c dec dept dist div dr e.g eds encl et etc "
    "eq ex feb figs fri ft gen gov govt h.r hon hwy i.e inc incl insp intl jan jr jul jun lt ltd m.a m.d "
    "m.sc maj messrs mfg mgr misc mr mrs ms mt n.b n.y nat natl neg nos nov oct op p.m p.s ph.d pl pos "
    "pp pres prof pt pub pvt r.i.p rd reps res rev sec sen sens sep sept sgt sq sr st ste supt tel thurs "
    "tue tues u.k u.n u.s u.s.a univ v vol vols vs wk"
)


@dataclass(frozen=True)
class NltkData:
    """Path of the sentence data, and whether it is nltk's own (``real``) or the substitute."""

    path: str
    real: bool


@functools.cache
def prepare() -> NltkData:
    """Make ``punkt_tab`` loadable in this process without network access.

    Idempotent. Call it before ``lm_eval.tasks.ifeval`` is imported, so that nothing is downloaded.
    """
    with contextlib.suppress(LookupError, OSError):
        punkt.PunktTokenizer(_LANGUAGE)
        return NltkData(str(nltk.data.find(f"tokenizers/punkt_tab/{_LANGUAGE}/")), real=True)
    root = _substitute_root()
    write_stand_in(root)
    nltk.data.path.append(str(root))
    return NltkData(str(root / _FOLDER), real=False)


def write_stand_in(root: Path) -> Path:
    """Write the substitute data below ``root``, an nltk data folder, and return its language folder."""
    folder = root / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "abbrev_types.txt", _ABBREVIATIONS.replace(" ", "\n") + "\n")
    for name in _EMPTY_FILES:
        _write(folder / name, "")
    return folder


def _substitute_root() -> Path:
    """Return a folder in the user's cache, or a new temporary folder if the cache is not writable."""
    cache = user_cache("nltk_data")
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    return Path(tempfile.mkdtemp(prefix="recovery_nltk_data_"))


def _write(path: Path, text: str) -> None:
    """Write atomically, so that concurrent processes never read a partial file."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    Path(name).replace(path)


@dataclass(frozen=True)
class Verdict:
    """Whether one response follows each of its prompt's instructions, in order.

    ``strict`` judges the response as it is; ``loose`` also variants without its first line, last line or asterisks.
    ``repaired`` is ``strict`` without the checkers' faults (:data:`REPAIRED`): what a reward should be.
    """

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    repaired: tuple[bool, ...]


# The paragraph is looked up among all chunks between blank lines, but counted without the blank ones.
REPAIRED: dict[str, Callable[[str], str]] = {
    "length_constraints:nth_paragraph_first_word": lambda response: "\n\n".join(
        chunk for chunk in response.split("\n\n") if chunk.strip()
    )
}
"""Instructions whose checker has a plain fault, with the change to a response that avoids it."""


def judge(prompt: Prompt, response: str) -> Verdict:
    """Return the strict and loose verdict for every instruction. An empty response follows none."""
    with fixed_draws(prompt.id):
        loose = checkers().test_instruction_following_loose(_example(prompt), response).follow_instruction_list
    strict = follows(prompt, response)
    repaired = [
        follows(prompt, REPAIRED[check.instruction](response))[place] if check.instruction in REPAIRED else followed
        for place, (check, followed) in enumerate(zip(prompt.checks, strict, strict=True))
    ]
    return Verdict(strict, tuple(map(bool, loose)), tuple(repaired))


def follows(prompt: Prompt, response: str) -> tuple[bool, ...]:
    """Return the strict verdict for every instruction."""
    with fixed_draws(prompt.id):
        strict = checkers().test_instruction_following_strict(_example(prompt), response).follow_instruction_list
    return tuple(map(bool, strict))


def _example(prompt: Prompt) -> Any:
    ids, kwargs = [check.instruction for check in prompt.checks], [dict(check.kwargs) for check in prompt.checks]
    return checkers().InputExample(key=0, instruction_id_list=ids, prompt=prompt.text, kwargs=kwargs)


def check_prompts(prompts: Sequence[Prompt]) -> None:
    """Verify that every check can be judged: sentence data exists, ids are known, arguments are accepted.

    Each judges one response, as an argument that is used as a regular expression may be none ("**"). Raises UsageError
    naming the first prompt that cannot be judged.
    """
    registry = checkers().instructions_registry.INSTRUCTION_DICT
    for prompt in prompts:
        for check in prompt.checks:
            if check.instruction not in registry:
                raise UsageError(f"prompt {prompt.id!r}: {check.instruction!r} is not an instruction that IFEval knows")
            kwargs = {name: value for name, value in check.kwargs.items() if value}
            try:
                with fixed_draws(prompt.id):
                    checker = registry[check.instruction](check.instruction)
                    checker.build_description(**kwargs)
                    if check.instruction.startswith(_BY_EXPRESSION):
                        checker.check_following("A reply.")
            except (TypeError, ValueError, AttributeError, re.error) as error:
                raise UsageError(f"prompt {prompt.id!r}: bad arguments for {check.instruction}: {error}") from error


# Groups whose arguments are used as regular expressions.
_BY_EXPRESSION = ("keywords:", "detectable_content:postscript", "detectable_format:multiple_sections")


@functools.cache
def checkers() -> ModuleType:
    """Return lm-eval's IFEval module, imported lazily: it loads nltk data, which ``prepare`` provides."""
    prepare()
    return importlib.import_module("lm_eval.tasks.ifeval.utils")


@contextlib.contextmanager
def fixed_draws(key: str) -> Iterator[None]:
    """Seed the global random generators that the checkers use from ``key``, and restore their state afterwards."""
    langdetect.DetectorFactory.seed = 0
    state = random.getstate()
    random.seed(f"ifeval {key}")
    try:
        yield
    finally:
        random.setstate(state)
