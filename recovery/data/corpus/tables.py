"""Tables: Parquet, Arrow (Feather), CSV and TSV files, folders written by ``datasets``, and datasets on the hub.

Rows are read in small batches and only from the wanted columns, so that a table may be larger than the memory.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from recovery.data.corpus.documents import UnreadableError
from recovery.data.corpus.encodings import NotTextError, encoding_of
from recovery.data.corpus.json_lines import json_text
from recovery.data.sources import SPLITS_FILE, Source
from recovery.errors import UsageError, first_line
from recovery.lazy_import import lazily
from recovery.text_files import MARK

pa = lazily("pyarrow")
ipc = lazily("pyarrow.ipc")
parquet = lazily("pyarrow.parquet")
datasets = lazily("datasets")
hub = lazily("huggingface_hub")

TEXT, LIST, NUMBER, OTHER = "text", "list", "number", "other"
_BATCH = 512  # rows
_BUFFER = 1 << 20  # bytes of a Parquet column that are read at once
_SEEN = 200  # first rows of a CSV file, which decide the columns of numbers
_DELIMITERS = ",;\t|"
_SEPARATOR_LINE = re.compile(r'"?sep=([^"\w\r\n])"?[,;\t|]*', re.IGNORECASE)
_LARGEST_CELL = 100_000_000  # characters of a cell in a CSV file: a longer one has an unclosed quotation mark
_HUB_TIMEOUT = 10  # seconds
_STATE, _INFO = "state.json", "dataset_info.json"

# (number from 1, values by column), or the reason why the row cannot be used.
Row = tuple[int, "dict[str, Any] | str"]


class TableError(UnreadableError):
    """A table cannot be used; the message is the reason, without the name of the file."""


@dataclass(frozen=True)
class Table:
    """A table with the columns ``names``. ``kinds`` are the kinds of their cells, ``types`` their types for messages.

    ``rows(columns)`` yields the rows; it raises TableError, with the number of the last good row, where the file is
    damaged. ``note`` is a remark on how the file is read.
    """

    names: tuple[str, ...]
    kinds: Mapping[str, str]
    types: Mapping[str, str]
    rows: Callable[[Sequence[str]], Iterator[Row]]
    note: str = ""

    def of_kind(self, *kinds: str) -> list[str]:
        """Return the columns of these kinds, by default of all; names that two columns share are left out."""
        names = [name for name in self.names if not kinds or self.kinds[name] in kinds]
        count = Counter(self.names)
        return [name for name in names if count[name] == 1]

    def called(self, words: Iterable[str], *kinds: str) -> list[str]:
        """Return the columns of these kinds with the names ``words``, in order; case is ignored if none matches."""
        names = self.of_kind(*kinds)
        return [n for word in words for n in ([word] if word in names else [n for n in names if n.casefold() == word])]

    def text(self) -> str:
        """Return the columns and their types."""
        return ", ".join(f"{name} ({self.types[name]})" for name in self.names)

    def require(self, name: str, *kinds: str) -> str:
        """Return the name of a column. Raise TableError if there is none, or two, or if it holds something else."""
        if name not in self.names:
            raise TableError(f"there is no column {name!r}; the columns are {self.text()}")
        if self.names.count(name) > 1:
            raise TableError(f"{self.names.count(name)} columns are called {name!r}: rename them")
        if self.kinds[name] not in kinds:
            raise TableError(f"the column {name!r} holds {self.types[name]}, not {' or '.join(kinds)}")
        return name


def open_table(path: Path) -> Table:
    """Open a file, by its suffix, or a folder written by ``save_to_disk``. Raise TableError if it is not a table."""
    try:
        if path.is_dir():
            return _dataset(path)
        if path.exists() and not path.is_file():
            raise TableError("not a regular file")
        if path.stat().st_size == 0:
            raise TableError("empty file")
        readers = {".parquet": _parquet, ".csv": _csv, ".tsv": _csv}
        return readers.get(path.suffix.lower(), _arrow)(path)
    except NotTextError as error:
        raise TableError(str(error)) from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise TableError(f"not {path.suffix[1:]}, or cut off ({first_line(error)})") from error
    except OSError as error:
        raise TableError(f"cannot be read ({error.strerror or first_line(error)})") from error


def splits_of(folder: Path) -> tuple[str, ...] | None:
    """Return the splits of a folder written by ``DatasetDict.save_to_disk``; () for one of ``Dataset.save_to_disk``,
    None for any other path. Raise UsageError if its list of splits cannot be read, or names none.
    """
    try:
        if (folder / _STATE).is_file() and (folder / _INFO).is_file():
            return ()
        if not (folder / SPLITS_FILE).is_file():
            return None
        listed = json.loads((folder / SPLITS_FILE).read_text(encoding="utf-8"))["splits"]
        splits = tuple(name for name in listed if _inside(folder, name) and (folder / name).is_dir())
    except PermissionError:
        return None  # reported when the folder is read
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{folder / SPLITS_FILE} cannot be read: {first_line(error)}") from error
    if not splits:
        raise UsageError(f"{folder / SPLITS_FILE} names no folder inside {folder}: save the dataset again")
    return splits


def of_source(source: Source) -> tuple[Path, str, str]:
    """Return the path of a local source, the user's name of it without a column, and the column or "".

    Raise UsageError if it has several splits and none is named.
    """
    split, column = source.split_and_column(splits_of(source.path) or ())
    return source.path / split, _place(str(source.path), split), column


def open_hub(source: Source) -> tuple[Table, str, str]:
    """Return a dataset on the hub, the user's name of it without a column, and the column or "".

    Its files are stored in the cache of ``datasets``. Raise UsageError if it cannot be fetched.
    """
    try:
        if not hub.constants.HF_HUB_OFFLINE:
            hub.HfApi().dataset_info(source.hub, timeout=_HUB_TIMEOUT)  # ``datasets`` alone tries for half a minute
        splits = datasets.get_dataset_split_names(source.hub)
        split, column = source.split_and_column(splits)
        dataset = datasets.load_dataset(source.hub, split=split)
    except UsageError:
        raise
    except Exception as error:  # of the hub, its HTTP library or ``datasets``: all mean that there is no data
        problem = f"{source.hub} is no file or folder here, and as a dataset of the hub it cannot be fetched"
        raise UsageError(f"{problem}: {first_line(error)}") from error
    table = _of_schema(dataset.data.schema, lambda _: dataset.with_format("arrow").iter(_BATCH))
    return table, _place(source.hub, split), column


def _place(name: str, split: str) -> str:
    return f"{name}:{split}" if split else name


# --- Arrow and Parquet -----------------------------------------------------------------------------------------


def _of_schema(schema: Any, batches: Callable[[list[str]], Iterable[Any]]) -> Table:
    """Return the table of an Arrow schema; ``batches`` yields record batches with at least the given columns."""
    fields = {field.name: field.type for field in schema}
    kinds, types = {n: _kind(t) for n, t in fields.items()}, {n: str(t) for n, t in fields.items()}

    def rows(names: Sequence[str]) -> Iterator[Row]:
        number = 0
        try:
            for batch in batches(list(names)):
                for start in range(0, batch.num_rows, _BATCH):
                    for row in _rows_of(batch.slice(start, _BATCH), names):
                        number += 1
                        yield number, row
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            raise TableError(f"damaged or cut off after row {number:,} ({first_line(error)})") from error

    return Table(tuple(schema.names), kinds, types, rows)


def _kind(type_: Any) -> str:
    if isinstance(type_, pa.JsonType):
        return LIST  # a conversation, or tools
    if isinstance(type_, pa.BaseExtensionType):
        type_ = type_.storage_type
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return TEXT
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_list_view(type_):
        return LIST
    return NUMBER if pa.types.is_integer(type_) or pa.types.is_floating(type_) else OTHER


def _rows_of(batch: Any, names: Sequence[str]) -> list[dict[str, Any] | str]:
    columns = [batch.column(name) for name in names]
    try:
        for column in columns:
            column.validate(full=True)  # wrong offsets in a damaged file would crash the process
        values = [column.to_pylist(maps_as_pydicts="lossy") for column in columns]
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        if "utf" not in str(error).lower():
            raise
        if batch.num_rows == 1:
            return ["invalid UTF-8"]
        return [_rows_of(batch.slice(at, 1), names)[0] for at in range(batch.num_rows)]
    cells = [
        entries if _kind(column.type) in (TEXT, NUMBER) else [_plain(value, column.type) for value in entries]
        for entries, column in zip(values, columns, strict=True)
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]


def _plain(value: Any, type_: Any) -> Any:
    """Return a cell with decoded JSON values and without the null fields that Arrow adds to its structs."""
    if value is None:
        return None
    if isinstance(type_, pa.JsonType):
        return json_text(value)
    if pa.types.is_struct(type_):
        return {field.name: _plain(value[field.name], field.type) for field in type_ if value[field.name] is not None}
    if _kind(type_) == LIST:
        return [_plain(item, type_.value_type) for item in value]
    return value


def _parquet(path: Path) -> Table:
    def opened() -> Any:
        # Without pre-buffering only a part of each column is in memory, even if the file is one row group.
        return parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)

    def batches(names: list[str]) -> Iterator[Any]:
        with opened() as file:
            yield from file.iter_batches(batch_size=_BATCH, columns=names, use_threads=False)

    with opened() as file:
        return _of_schema(file.schema_arrow, batches)


def _arrow(*paths: Path) -> Table:
    """Return the table of Arrow files in the file or the stream format, one after the other."""

    def batches(names: list[str]) -> Iterator[Any]:
        for path in paths:
            reader, streamed = _reader(path, names)
            yield from reader if streamed else map(reader.get_batch, range(reader.num_record_batches))

    return _of_schema(_reader(paths[0])[0].schema, batches)


def _reader(path: Path, names: Sequence[str] | None = None) -> tuple[Any, bool]:
    """Return a reader, limited to the columns ``names`` if the format allows it, and whether it reads a stream."""
    with path.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"FEA1"):
        raise TableError("Feather version 1, which is not supported: write it again as version 2")
    source = pa.memory_map(str(path))
    if magic != b"ARROW1":
        return ipc.open_stream(source), True
    file = ipc.open_file(source)
    if names is not None:
        indices = [file.schema.get_field_index(name) for name in names]
        file = ipc.open_file(source, options=ipc.IpcReadOptions(included_fields=indices))
    return file, False


def _dataset(folder: Path) -> Table:
    """Return the table of a folder that ``Dataset.save_to_disk`` wrote. Its files must be in the folder itself."""
    try:
        listed = json.loads((folder / _STATE).read_text(encoding="utf-8"))["_data_files"]
        names = [str(entry["filename"]) for entry in listed]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TableError(f"{_STATE} is not what save_to_disk writes ({first_line(error)})") from error
    for name in names:
        if not _inside(folder, name):
            raise TableError(f"{_STATE} names the file {name!r} outside the folder")
        if not (folder / name).is_file():
            raise TableError(f"the file {name} is missing")
    if not names:
        raise TableError("a dataset without files")
    return _arrow(*(folder / name for name in names))


def _inside(folder: Path, name: str) -> bool:
    """Whether an entry of a folder is named by its plain name and is no link."""
    return Path(name).name == name and name not in ("", "..") and not (folder / name).is_symlink()


# --- CSV -------------------------------------------------------------------------------------------------------


def _csv(path: Path) -> Table:
    """Return the table of a CSV or TSV file with a line of column names, and above it perhaps one such as "sep=;"."""
    encoding, note = encoding_of(path)
    csv.field_size_limit(_LARGEST_CELL)

    def lines() -> Iterator[str]:
        with path.open(encoding=encoding, errors="replace", newline="") as file:
            while line := file.readline(_LARGEST_CELL):
                if len(line) == _LARGEST_CELL:
                    raise TableError(f"a line of over {_LARGEST_CELL:,} characters")
                yield line.lstrip(MARK)  # where files were joined

    named = _SEPARATOR_LINE.fullmatch(next(lines(), "").strip("\r\n"))  # for Excel
    above = int(named is not None)
    delimiter = named[1] if named else "\t" if path.suffix.lower() == ".tsv" else _delimiter(lines())

    def records() -> Iterator[list[str]]:
        reader = csv.reader(islice(lines(), above, None), delimiter=delimiter, strict=True)
        number = -1  # the line of column names
        try:
            for cells in reader:
                if cells:
                    number += 1
                    yield cells
        except csv.Error as error:
            where = f"row {number + 1:,} (line {reader.line_num + above:,})"
            raise TableError(f"{where} is no {path.suffix[1:].upper()}: {error}") from error

    names = tuple(name.strip() for name in next(records(), []))
    if not names:
        raise TableError("no line of column names")

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        at = {name: names.index(name) for name in columns}
        for number, cells in enumerate(islice(records(), 1, None), start=1):
            if len(cells) != len(names):
                yield number, "more or fewer cells than columns"
            else:
                yield number, {name: cells[index] or None for name, index in at.items()}

    sample = [cells for cells in islice(records(), 1, _SEEN) if len(cells) == len(names)]
    numeric = [all(_is_number(cells[i]) for cells in sample if cells[i].strip()) for i in range(len(names))]
    kinds = {name: NUMBER if sample and number else TEXT for name, number in zip(names, numeric, strict=True)}
    return Table(names, kinds, kinds, rows, note)


def _delimiter(lines: Iterable[str]) -> str:
    """Return the delimiter with which most of the first rows have as many cells as there are column names.

    Ties go to a delimiter without a following space, which a comma within a name has, then to the most columns.
    """
    first, size = list[str](), 0
    for line in islice(lines, _SEEN):
        first.append(line)
        size += len(line)
        if size > _BUFFER:
            break

    def fit(delimiter: str) -> tuple[float, bool, int]:
        records: list[list[str]] = []
        with contextlib.suppress(csv.Error):  # reported when the rows are read
            records.extend(filter(None, csv.reader(first, delimiter=delimiter)))
        names, *rows = records or [[]]
        if len(names) < 2:
            return (-1.0, False, 0)
        rows = rows[:-1] or rows  # the last one may go on
        share = sum(len(cells) == len(names) for cells in rows) / len(rows) if rows else 1.0
        return (share, not any(name.startswith(" ") for name in names), len(names))

    return max(_DELIMITERS, key=fit)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
