"""Detects damage in SQLite's write-ahead log.

SQLite reads its log (``FILE-wal``) up to the first frame whose checksum is wrong and drops the rest without an error,
as it must for a transaction that a power failure interrupted. Only the last transaction can be such a one: each is
flushed to the disk before the next begins. If two or more are dropped, the log is damaged and committed data are lost.
The format: https://www.sqlite.org/walformat.html.

Only the log is opened here. A process that closes the database file or its index (``FILE-shm``) loses all locks that
SQLite holds on them for it, and another process may then delete the log while it is in use.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from pathlib import Path

_HEADER = 32  # bytes
_FRAME = 24  # bytes in front of each page
_BIG_ENDIAN = 0x377F0683
_PAGE = 4096  # SQLite's default, for a log whose header is damaged
_AGAIN_SECONDS = 0.2

# The headers of logs that this process found sound: the next log of the same file has another one.
_sound: set[bytes] = set()


def dropped_transactions(log: Path) -> int:
    """Return how many committed transactions of a log SQLite would drop because of damage; 0 if there is no log.

    It is read twice if it seems damaged: a process may have been writing to its end meanwhile.
    """
    found = _dropped(log)
    if found < 2:
        return 0
    time.sleep(_AGAIN_SECONDS)
    again = _dropped(log)
    return again if again > 1 else 0


def _dropped(log: Path) -> int:
    """Return how many transactions end behind the first frame of a log that is not sound."""
    try:
        with log.open("rb") as file:
            header = file.read(_HEADER)
            if len(header) < _HEADER or header in _sound:
                return 0
            magic, _, page = struct.unpack_from(">III", header)
            order, salt = ">" if magic == _BIG_ENDIAN else "<", header[16:24]
            checksum = _checksum(order, (0, 0), header[:24])
            sound = whole = checksum == struct.unpack(">II", header[24:])
            size = _FRAME + (page if whole else _PAGE)
            ends: Counter[bytes] = Counter()  # by the salt of the log that they are of: older frames may be left
            while len(frame := file.read(size)) == size:
                if sound:
                    checksum = _checksum(order, checksum, frame[:8] + frame[_FRAME:])
                    sound = frame[8:16] == salt and checksum == struct.unpack(">II", frame[16:_FRAME])
                if not sound and frame[4:8] != bytes(4):  # only a frame that ends a transaction has this field
                    ends[frame[8:16]] += 1
        found = ends[salt] if whole else max(ends.values(), default=0)
        if found and _header(log) != header:
            return 0  # a process has begun it anew meanwhile: the rest of the earlier log was left on purpose
    except OSError:  # there is none, or SQLite says why it cannot be read
        return 0
    if whole and not found:
        _sound.add(header)
    return found


def _header(log: Path) -> bytes:
    with log.open("rb") as file:
        return file.read(_HEADER)


def _checksum(order: str, start: tuple[int, int], data: bytes) -> tuple[int, int]:
    """Return SQLite's checksum of data whose length is a multiple of 8, continued from ``start``."""
    a, b = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        a = (a + even + b) & 0xFFFFFFFF
        b = (b + odd + a) & 0xFFFFFFFF
    return a, b
