"""Text files of the user: UTF-8, with or without byte-order marks.

Some editors begin a file with the mark U+FEFF; where files are joined (``cat a b``), it stands between them. No text
needs it. Documents, prompts and probes may have other encodings: recovery.data.corpus.encodings.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from recovery.errors import UsageError

MARK = "\ufeff"
_AT_A_LINE = re.compile(f"^{MARK}+", re.MULTILINE)


def without_marks(text: str) -> str:
    """Return a text without the byte-order marks at the beginnings of its lines, which are in no string of JSON."""
    return _AT_A_LINE.sub("", text) if MARK in text else text


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file without byte-order marks. Raise UsageError, in one line, if it cannot be read."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        what = "in UTF-16" if wide else f"no text in UTF-8 (byte {error.start + 1:,})"
        raise UsageError(f"cannot read {path}: it is {what}: save it as UTF-8") from error
    if "\0" in text:  # UTF-16 without a mark, or no text at all
        raise UsageError(f"cannot read {path}: it has bytes that are 0, as in UTF-16: save it as UTF-8")
    return text.replace(MARK, "").replace("\r\n", "\n").replace("\r", "\n")
