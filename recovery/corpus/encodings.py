"""Bytes to text: byte-order marks first, then UTF-8, then a guess that is said aloud."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from charset_normalizer import from_bytes

_MARKS = (  # UTF-32 before UTF-16: the little-endian mark of the one begins with that of the other
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_TEXT_CONTROLS = frozenset(b"\t\n\r\f\x1b\x08")
_SAMPLE = 1 << 16


class NotTextError(ValueError):
    """The bytes are not text in any encoding that we would believe."""


@dataclass(frozen=True)
class Decoded:
    """Text, its encoding, and a remark where it was a guess or had to be mended."""

    text: str
    encoding: str
    note: str = ""


def decode(data: bytes) -> Decoded:
    """Decode ``data``; raises NotTextError for binary content."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return Decoded(data.decode(encoding), encoding)
            except UnicodeDecodeError as error:
                raise NotTextError(f"starts as {encoding} and breaks at byte {error.start}") from error
    wide = _wide(data[:_SAMPLE])
    if wide:
        return _decode_or_refuse(data, wide)
    if _binary(data[:_SAMPLE]):
        raise NotTextError("binary, not text")
    try:
        return Decoded(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        return _damaged(data) or _guess(data)


def _guessed(encoding: str) -> str:
    return f"not UTF-8, read as {encoding}"


def _damaged(data: bytes) -> Decoded | None:
    """UTF-8 with a few broken bytes: far more of its longer characters are whole than are not."""
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    if sum(not c.isascii() for c in text) - broken < 4 * broken:
        return None
    return Decoded(text, "utf-8", f"damaged UTF-8, {broken} character{'s' * (broken != 1)} replaced")


def _wide(sample: bytes) -> str | None:
    """UTF-16 without a mark: mostly Latin text, whose every other byte is zero."""
    half = len(sample) // 2
    if half < 8:
        return None
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    if odd > 0.7 * half and even < 0.05 * half:
        return "utf-16-le"
    if even > 0.7 * half and odd < 0.05 * half:
        return "utf-16-be"
    return None


def _decode_or_refuse(data: bytes, encoding: str) -> Decoded:
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise NotTextError("binary, not text") from error
    if sum(not c.isprintable() and not c.isspace() for c in text[:4096]) > 0.02 * min(len(text), 4096):
        raise NotTextError("binary, not text")
    return Decoded(text, encoding, _guessed(encoding))


def _binary(sample: bytes) -> bool:
    if b"\x00" in sample:
        return True
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in sample)
    return controls > 0.02 * max(len(sample), 1)


def _guess(data: bytes) -> Decoded:
    """A legacy encoding. Where Western Windows text fits as well as the best guess, it is the likelier one."""
    best = from_bytes(data[:_SAMPLE]).best()
    encoding = "cp1252"
    if best is not None and not {"cp1252", "latin_1"} & {best.encoding, *best.could_be_from_charset}:
        encoding = best.encoding
    for name in (encoding, "cp1252", "latin-1"):
        try:
            return Decoded(data.decode(name), name, _guessed(name))
        except (UnicodeDecodeError, LookupError):
            continue
    raise NotTextError("in no known encoding")
