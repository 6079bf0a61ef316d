"""Decoding of bytes: byte-order marks first, then UTF-8, then a guessed encoding, which is reported."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from charset_normalizer import from_bytes

from recovery.text_files import without_marks

_MARKS = (  # UTF-32 before UTF-16: its little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_BYTE_ORDER = tuple(mark for mark, _ in _MARKS)
_WIDE = ("utf-16-le", "utf-16-be")  # read without a mark
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f\x1b\x08")  # that text does not contain
_SAMPLE, _LONGEST_SAMPLE = 1 << 16, 1 << 20
_DECLARATION = 1024  # bytes at the start of a page that may name its encoding
_NO_CHARACTER_CUT = re.compile(rb"[\x00-\x2f]")  # bytes that only begin a character in legacy encodings

_LATIN = ("cp1252", "cp1250", "cp1257")  # the most frequent first: of equals it is taken
_PUNCTUATION = frozenset("“”„‘’‚–—…«»‹›£€§°·•©®™\xa0\xad")
# Letters beyond ASCII of the languages that these encodings are for, French to Latvian.
_ALPHABETS = tuple(
    frozenset(letters + letters.upper())
    for letters in (
        "àâæçéèêëîïôœùûüÿ äöüß áéíñóúüºª áâãàçéêíóôõúºª àèéìîòóù åäöé æøåé áðéíóúýþæö áéëïóöü àçèéíïòóúü ąćęłńóśźż "
        "áčďéěíňóřšťúůýž áäčďéíĺľňóôŕšťúýž áéíóöőúüű ăâîșțşţ čćđšž âçğıîöşüû äõöüšž ąčęėįšųūž āčēģīķļņšūž"
    ).split()
)

_Parts = Callable[[], Iterator[bytes]]  # all bytes of a text in parts, as often as it is called


class NotTextError(ValueError):
    """The bytes are not text in any plausible encoding."""


@dataclass(frozen=True)
class Decoded:
    """Text, and a remark if its encoding was guessed or bytes were replaced, else ""."""

    text: str
    note: str


def decode(data: bytes) -> Decoded:
    """Decode ``data``, without byte-order marks where files were joined; raises NotTextError for binary content."""
    encoding, note = _encoding(lambda: (data[at : at + _SAMPLE] for at in range(0, len(data), _SAMPLE)))
    marked = data.startswith(_BYTE_ORDER)
    try:
        text = data.decode(encoding, "strict" if marked or encoding in _WIDE else "replace")
    except UnicodeDecodeError as error:
        raise NotTextError(f"invalid {encoding} at byte {error.start}" if marked else "binary, not text") from error
    unseen = sum(not c.isprintable() and not c.isspace() for c in text[:4096]) if encoding in _WIDE else 0
    if unseen > 0.02 * min(len(text), 4096):
        raise NotTextError("binary, not text")
    return Decoded(without_marks(text), note)


def encoding_of(path: Path) -> tuple[str, str]:
    """Return the encoding of a text file of any size, read in parts, and a remark as of :class:`Decoded`.

    Raises NotTextError for binary content, OSError if the file cannot be read. With the encoding, undecodable bytes are
    to be replaced.
    """

    def parts() -> Iterator[bytes]:
        with path.open("rb") as file:
            while part := file.read(_SAMPLE):
                yield part

    return _encoding(parts)


def _encoding(parts: _Parts) -> tuple[str, str]:
    """Return the encoding of a text and a remark; byte-order marks and wide characters are accepted untested."""
    first = next(parts(), b"")
    marked = next((encoding for mark, encoding in _MARKS if first.startswith(mark)), None)
    if marked is not None:
        return marked, ""
    if wide := _utf16_without_mark(first):
        return wide, _guessed(wide)
    if _is_binary(first):
        raise NotTextError("binary, not text")
    return ("utf-8", "") if _is_valid(parts(), "utf-8") else _guess(parts)


def _guessed(encoding: str) -> str:
    return f"not UTF-8, read as {encoding}"


def _guess(parts: _Parts) -> tuple[str, str]:
    """Return the encoding of bytes that are not valid UTF-8, and a remark; the whole text decides, not its start."""
    replaced = _count_replaced(parts(), "utf-8")
    if replaced is not None:
        return "utf-8", f"damaged UTF-8, {_count_text(replaced)} replaced"
    legacy = _legacy(_sample(parts()))
    if not _is_valid(parts(), legacy) and (replaced := _count_replaced(parts(), legacy)) is not None:
        return legacy, f"{_guessed(legacy)}, {_count_text(replaced)} replaced"
    encoding = next(name for name in (legacy, "cp1252", "latin-1") if _is_valid(parts(), name))
    return encoding, _guessed(encoding)


def _count_text(count: int) -> str:
    return f"{count:,} character{'s' * (count != 1)}"


def _is_valid(parts: Iterator[bytes], encoding: str) -> bool:
    try:
        return all(True for _ in codecs.iterdecode(parts, encoding))
    except UnicodeDecodeError:
        return False


def _count_replaced(parts: Iterator[bytes], encoding: str) -> int | None:
    """Return how many characters of a damaged text are replaced, or None if too few beyond ASCII are valid."""
    broken = others = 0
    for text in codecs.iterdecode(parts, encoding, "replace"):
        broken += text.count("\ufffd")
        others += len(text) - len(text.encode("ascii", "ignore"))
    return None if others - broken < 4 * broken else broken


def _utf16_without_mark(sample: bytes) -> str | None:
    """Return the encoding of UTF-16 without a byte-order mark: in mostly Latin text every other byte is zero."""
    half = len(sample) // 2
    if half < 8:
        return None
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    if odd > 0.7 * half and even < 0.05 * half:
        return "utf-16-le"
    if even > 0.7 * half and odd < 0.05 * half:
        return "utf-16-be"
    return None


def _is_binary(sample: bytes) -> bool:
    if b"\x00" in sample and not _is_utf8(sample):
        return True
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    return controls > min(max(3.0, 0.02 * len(sample)), 0.1 * len(sample))


def _is_utf8(start: bytes) -> bool:
    """Return whether bytes are the start of UTF-8, which may end within a character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return True


def _sample(parts: Iterator[bytes]) -> bytes:
    """Return a sample to guess an encoding from: the start of a text and its first part beyond ASCII.

    It does not end within a character: an encoding that cannot decode it would be ruled out.
    """
    sample = b""
    for part in parts:
        sample += part
        if sample.isascii():
            sample = sample[:_DECLARATION]
        elif end := _NO_CHARACTER_CUT.search(sample, _SAMPLE):
            return sample[: end.end()]
        elif len(sample) > _LONGEST_SAMPLE:
            break
    return sample


def _legacy(sample: bytes) -> str:
    """Return the likeliest legacy encoding of a sample.

    Encodings of Latin letters read each other's texts as plausible noise ("città" as "cittŕ"): of these it is the first
    whose text has the most of one language's alphabet.
    """
    best = from_bytes(sample).best()
    letters = [] if best is None else [c for c in str(best) if not c.isascii() and c.isalpha()]
    if best is not None and 2 * sum(unicodedata.name(c, "").startswith("LATIN") for c in letters) < len(letters):
        return best.encoding
    texts = {name: sample.decode(name, "replace") for name in (*_LATIN, *([] if best is None else [best.encoding]))}
    return max(texts, key=lambda name: _share_of_an_alphabet(texts[name]))


def _share_of_an_alphabet(text: str) -> float:
    """Return the largest share of the characters beyond ASCII, usual punctuation apart, that one language writes."""
    letters = Counter(c for c in text if not c.isascii() and c not in _PUNCTUATION)
    most_of_one = max(sum(letters[c] for c in alphabet) for alphabet in _ALPHABETS)
    return most_of_one / letters.total() if letters else 1.0
