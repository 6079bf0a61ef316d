"""Decoding of bytes: byte-order marks first, then UTF-8, then a guessed encoding, which is reported."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path

from charset_normalizer import from_bytes

_MARKS = (  # UTF-32 before UTF-16: its little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f\x1b\x08")  # that text does not contain
_SAMPLE = 1 << 16


class NotTextError(ValueError):
    """The bytes are not text in any plausible encoding."""


@dataclass(frozen=True)
class Decoded:
    """Text, its encoding, and a remark if the encoding was guessed or bytes were replaced."""

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
                raise NotTextError(f"invalid {encoding} at byte {error.start}") from error
    wide = _wide(data[:_SAMPLE])
    if wide:
        return _decode_or_refuse(data, wide)
    if _binary(data[:_SAMPLE]):
        raise NotTextError("binary, not text")
    try:
        return Decoded(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        return _damaged(data) or _guess(data)


def encoding_of(path: Path) -> tuple[str, str]:
    """Return the encoding of a text file of any size, read in parts, and a remark as of :class:`Decoded`.

    Raises NotTextError for binary content, OSError if the file cannot be read. With the encoding, undecodable bytes are
    to be replaced.
    """
    utf8 = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        part = file.read(_SAMPLE)
        marked = next((encoding for mark, encoding in _MARKS if part.startswith(mark)), None)
        if marked is not None:
            return marked, ""
        if wide := _wide(part):
            return wide, _guessed(wide)
        if _binary(part):
            raise NotTextError("binary, not text")
        while part:
            try:
                utf8.decode(part)
            except UnicodeDecodeError:
                found = _damaged(part) or _guess(part)
                damaged = found.encoding == "utf-8"
                return found.encoding, "damaged UTF-8, invalid bytes replaced" if damaged else found.note
            part = file.read(_SAMPLE)
    return "utf-8", ""


def _guessed(encoding: str) -> str:
    return f"not UTF-8, read as {encoding}"


def _damaged(data: bytes) -> Decoded | None:
    """Return text of UTF-8 with a few invalid bytes, or None if too few multi-byte characters are valid."""
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    if sum(not c.isascii() for c in text) - broken < 4 * broken:
        return None
    return Decoded(text, "utf-8", f"damaged UTF-8, {broken} character{'s' * (broken != 1)} replaced")


def _wide(sample: bytes) -> str | None:
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
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    return controls > 0.02 * max(len(sample), 1)


def _guess(data: bytes) -> Decoded:
    """Return text in a guessed legacy encoding, preferring cp1252 where it is among the best guesses."""
    best = from_bytes(data[:_SAMPLE]).best()
    encoding = "cp1252"
    if best is not None and not {"cp1252", "latin_1"} & {best.encoding, *best.could_be_from_charset}:
        encoding = best.encoding
    for name in (encoding, "cp1252", "latin-1"):
        try:
            return Decoded(data.decode(name), name, _guessed(name))
        except (UnicodeDecodeError, LookupError):
            continue
    raise NotTextError("unknown encoding")
