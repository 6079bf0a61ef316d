"""Sentence-splitting data for IFEval's checkers, made ready before anything is generated.

The checkers ask nltk for ``punkt_tab``. Where a machine lacks it they try to download it, print
"Downloaded" whether or not that worked, and fail only at scoring time, after the generation has been paid
for. So the data is settled first: the user's own where it is found, otherwise a small stand-in written from
the list of abbreviations below. The stand-in knows abbreviations and nothing of collocations or spelling
statistics; only the two instructions that count sentences or tokens (``number_sentences``,
``capital_word_frequency``) ever read it.
"""

from __future__ import annotations

import functools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from recovery.lazily import lazily

nltk, punkt = lazily("nltk"), lazily("nltk.tokenize.punkt")

_LANGUAGE = "english"
_FOLDER = Path("tokenizers", "punkt_tab", _LANGUAGE)
_EMPTY_FILES = ("collocations.tab", "sent_starters.txt", "ortho_context.tab")
# Words that also end sentences (units, months, "no", "fig") are left out: an abbreviation never ends one here.
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
    """Where the sentence data lies, and whether it is nltk's own (``real``) or our stand-in."""

    path: str
    real: bool


@functools.cache
def prepare() -> NltkData:
    """Make ``punkt_tab`` loadable in this process without touching the network.

    Idempotent. Call it before ``lm_eval.tasks.ifeval`` is imported: nothing is then left to download.
    """
    if _loadable():
        return NltkData(str(nltk.data.find(f"tokenizers/punkt_tab/{_LANGUAGE}/")), real=True)
    root = _stand_in_root()
    write_stand_in(root)
    nltk.data.path.append(str(root))
    return NltkData(str(root / _FOLDER), real=False)


def write_stand_in(root: Path) -> Path:
    """Write the stand-in below ``root``, an nltk data folder; return its language folder."""
    folder = root / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "abbrev_types.txt", _ABBREVIATIONS.replace(" ", "\n") + "\n")
    for name in _EMPTY_FILES:
        _write(folder / name, "")
    return folder


def _loadable() -> bool:
    try:
        punkt.PunktTokenizer(_LANGUAGE)
    except (LookupError, OSError):
        return False
    return True


def _stand_in_root() -> Path:
    """A folder of the user's cache; a fresh private one where that cannot be written (a read-only home)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recovery" / "nltk_data"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="recovery_nltk_data_"))


def _write(path: Path, text: str) -> None:
    """Replace in one move, so that two processes starting at once never read half a file."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    Path(name).replace(path)
