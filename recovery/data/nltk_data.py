"""Sentence-splitting data for IFEval's checkers, provided before generation starts.

The checkers need nltk's ``punkt_tab``. If it is missing, they try to download it, print "Downloaded" whether or not
that succeeded, and fail only at scoring time, after the generation. Therefore the data is prepared first: the
installed data if nltk finds it, otherwise a small substitute written from the abbreviations below, without
collocations or orthographic statistics. Only ``number_sentences`` and ``capital_word_frequency`` use it.
"""

from __future__ import annotations

import functools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from recovery.lazy_import import lazily

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
    if _loadable():
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


def _loadable() -> bool:
    try:
        punkt.PunktTokenizer(_LANGUAGE)
    except (LookupError, OSError):
        return False
    return True


def _substitute_root() -> Path:
    """Return a folder in the user's cache, or a new temporary folder if the cache is not writable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recovery" / "nltk_data"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="recovery_nltk_data_"))


def _write(path: Path, text: str) -> None:
    """Write atomically, so that concurrent processes never read a partial file."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    Path(name).replace(path)
