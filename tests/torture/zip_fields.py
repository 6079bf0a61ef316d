"""Zip files with other values in the fields of the format than their contents have."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator

# Where a field lies in the header before an entry's data and in the directory at the end, and how it is packed.
_FIELDS = {
    "version": (4, 6, "<H"),
    "flags": (6, 8, "<H"),
    "method": (8, 10, "<H"),
    "date": (12, 14, "<H"),
    "crc": (14, 16, "<I"),
    "packed size": (18, 20, "<I"),
    "size": (22, 24, "<I"),
}
# Where a field lies in the record at the very end.
_END = {"disk": (4, "<H"), "entries": (10, "<H"), "directory's size": (12, "<I"), "directory": (16, "<I")}
_VALUES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("version", (255, 65535)),
    ("flags", (1, 0x41, 65535)),  # encrypted, strongly encrypted, all
    ("method", (0, 1, 9, 12, 14, 93, 99)),  # stored, and methods that unpack something else or that nobody knows
    ("date", (0, 65535)),
    ("crc", (0,)),
    ("packed size", (0, 2**31, 2**32 - 1)),
    ("size", (0, 10, 2**31, 2**32 - 1)),
)
_END_VALUES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("disk", (7,)),
    ("entries", (0, 65535)),
    ("directory's size", (0, 2**31)),
    ("directory", (0, 2**31, 2**32 - 1)),
)


def mutations(data: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield what was done to a zip file, with its bytes; ``name`` is the entry whose fields are changed."""
    for field, values in _VALUES:
        for value in values:
            yield f"{field} {value}", _with_field(data, name, field, value)
    end = data.rindex(b"PK\x05\x06")
    for field, values in _END_VALUES:
        at, form = _END[field]
        for value in values:
            yield f"{field} {value}", _put(data, end + at, form, value)
    directory: int = struct.unpack_from("<I", data, end + 16)[0]
    for what, at in {
        "first entry": 50,
        "middle": len(data) // 2,
        "directory": directory,
        "half of the directory": (directory + end) // 2,
        "record at the end": end,
        "last byte": len(data) - 1,
    }.items():
        yield f"cut at the {what}", data[:at]
    yield "with 10^6 bytes in front", b"x" * 10**6 + data
    yield "with 10^6 bytes behind", data + b"x" * 10**6
    yield "twice", data + data
    yield "with a comment of 65,535 bytes", _put(data, end + 20, "<H", 65535) + b"PK\x05\x06" * 16383 + b"PK\x05"
    at = _places(data, name)[0] + 30
    yield "with another name before the data", data[:at] + b"x" * len(name) + data[at + len(name) :]
    yield "of overlapping entries", _overlapping(data, name, 2000)


def _put(data: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


def _places(data: bytes, name: str) -> tuple[int, int]:
    """Return where the two headers of an entry begin."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        local = archive.getinfo(name).header_offset
    at: int = struct.unpack_from("<I", data, data.rindex(b"PK\x05\x06") + 16)[0]
    while True:
        lengths = struct.unpack_from("<HHH", data, at + 28)
        if data[at + 46 : at + 46 + lengths[0]] == name.encode():
            return local, at
        at += 46 + sum(lengths)


def _with_field(data: bytes, name: str, field: str, value: int) -> bytes:
    (local, central), (one, other, form) = _places(data, name), _FIELDS[field]
    return _put(_put(data, local + one, form, value), central + other, form, value)


def _overlapping(data: bytes, name: str, count: int) -> bytes:
    """Return a zip file whose directory names the data of one entry ``count`` times."""
    _, at = _places(data, name)
    end = data.rindex(b"PK\x05\x06")
    directory, total = struct.unpack_from("<I", data, end + 16)[0], struct.unpack_from("<H", data, end + 10)[0]
    length, *more = struct.unpack_from("<HHH", data, at + 28)
    entry = data[at : at + 46 + length + sum(more)]
    crowd = b"".join(entry[:46] + f"{n:0{length}d}".encode()[:length] + entry[46 + length :] for n in range(count))
    last = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, total + count, total + count, 0, directory, 0)
    found = data[:end] + crowd + last
    return _put(found, len(found) - 10, "<I", end - directory + len(crowd))
