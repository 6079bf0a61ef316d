"""Detects damage in SQLite's write-ahead log.

SQLite reads its log (``FILE-wal``) up to the first frame whose checksum is wrong and drops the rest without an error,
as it must for a transaction that a power failure interrupted. Only the last transaction can be such a one: each is
flushed to the disk before the next begins. If two or more are dropped, the log is damaged and committed data are lost.
The formats of the log and of its index (``FILE-shm``): https://www.sqlite.org/walformat.html.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_HEADER = 32
_FRAME = 24
_BIG_ENDIAN = 0x377F0683


def damaged_log(path: Path) -> Path | None:
    """Return the log of the SQLite file at ``path`` if committed transactions in it cannot be read, else None.

    The caller has the file open and holds its write lock, so that neither log nor index changes.
    """
    log, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    if not (log.is_file() and index.is_file() and log.stat().st_size > _HEADER):
        return None
    with path.open("rb") as file:
        page = struct.unpack(">H", file.read(18)[16:])[0]
    with index.open("rb") as file:
        head = file.read(40)
    with log.open("rb") as file:
        return log if _dropped(file, head, _FRAME + (65_536 if page == 1 else page)) > 1 else None


def keep_copy(log: Path) -> Path:
    """Copy a log next to itself under a new name, and return that. Raises OSError if it cannot be written."""
    number = 1
    while (copy := log.with_name(f"{log.name}.damaged-{number}")).exists():
        number += 1
    copy.write_bytes(log.read_bytes())
    return copy


def _dropped(file: BinaryIO, index: bytes, size: int) -> int:
    """Return how many transactions of a log are not in its index, with ``size`` bytes in a frame and its page."""
    header = file.read(_HEADER)
    order = ">" if struct.unpack_from(">I", header)[0] == _BIG_ENDIAN else "<"
    (valid,) = struct.unpack_from("=I", index, 16)
    before, salt = struct.unpack_from("=II", index, 24), index[32:40]
    ends = Counter(frame[8:16] for frame in _frames(file, valid, size) if _ends(frame))  # by the log that they are of
    if _checksum(order, (0, 0), header[:24]) != struct.unpack(">II", header[24:]):
        return max(ends.values(), default=0)
    if _whole(file, valid, size, order, before, salt):
        return 0  # the process that wrote it was killed before it could enter it into the index
    return ends[salt]


def _whole(file: BinaryIO, start: int, size: int, order: str, checksum: tuple[int, int], salt: bytes) -> bool:
    """Whether the transaction that begins with frame ``start`` is sound, behind frames with this ``checksum``."""
    file.seek(_HEADER + start * size)
    while len(frame := file.read(size)) == size:
        checksum = _checksum(order, checksum, frame[:8] + frame[_FRAME:])
        if frame[8:16] != salt or checksum != struct.unpack(">II", frame[16:_FRAME]):
            return False
        if _ends(frame):
            return True
    return False


def _ends(frame: bytes) -> bool:
    """Whether a frame ends a transaction: then it names the size of the database."""
    return frame[4:8] != bytes(4)


def _frames(file: BinaryIO, start: int, size: int) -> Iterator[bytes]:
    """Yield the headers of all frames from number ``start``, counted from 0."""
    at = _HEADER + start * size
    while file.seek(at) and len(frame := file.read(_FRAME)) == _FRAME:
        yield frame
        at += size


def _checksum(order: str, start: tuple[int, int], data: bytes) -> tuple[int, int]:
    """Return SQLite's checksum of data whose length is a multiple of 8, continued from ``start``."""
    a, b = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        a = (a + even + b) & 0xFFFFFFFF
        b = (b + odd + a) & 0xFFFFFFFF
    return a, b
