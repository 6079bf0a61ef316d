"""Evidence bundles: one file with everything that a judgement of the gate rests on, verified without a workspace.

A bundle is a zip file of JSON: ``manifest.json`` (the SHA-256 of every other file), ``cycle.json`` (checkpoints,
corpora, decisions, stages with settings and versions), ``judgement.json`` (rules, verdicts, and which evaluations each
checkpoint of a rule refers to), ``evaluations.json`` (the figures) and ``evaluations/ID.jsonl`` (one item a line).

Its files are not compressed, and nothing in it depends on when or where it is written: the same contents are the same
bytes. So every changed byte is found, those of the zip format's own fields too, and no small file expands to a large
one. The hashes show that a file is intact, not who wrote it: compare its own SHA-256 with the one printed when it was
written. This module imports no torch.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from db import queries, reviews
from db.json_values import json_safe
from evals.acceptance import Decision, judge_all
from evals.acceptance_rules import parse_rule
from evals.beyond_constant import NEEDED
from evals.domain_pmi import CELLS
from evals.measurement import Measurement, evidence_of, measurement
from pipelines.evaluation.acceptance import share_of
from pipelines.reports.document import printable
from recovery import __version__
from recovery.errors import RecoveryError, UsageError, first_line
from recovery.types import Score

FORMAT, VERSION = "recovery-evidence", 1
MANIFEST = "manifest.json"
MOST_BYTES, MOST_FILES = 256 * 2**20, 10_000
_NAME = re.compile(r"[a-z]{1,20}(/[0-9]{1,18})?\.jsonl?")
# Other releases of numpy and scipy may round differently.
_RELATIVE, _ABSOLUTE = 1e-6, 1e-9
# What zipfile, json and a look into values of another form raise; RuntimeError includes NotImplementedError (an
# unknown compression) and RecursionError.
_MALFORMED = (
    zipfile.BadZipFile, struct.error, EOFError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError,
    RuntimeError,
)  # fmt: skip


def sha256(content: str | bytes) -> str:
    """Return the SHA-256 of bytes, or of a text in UTF-8, as 64 hexadecimal digits."""
    return hashlib.sha256(content.encode("utf-8", "replace") if isinstance(content, str) else content).hexdigest()


def to_json(value: Any) -> bytes:
    """Return a value as one line of JSON; equal values give equal bytes."""
    return (json.dumps(value, sort_keys=True, allow_nan=False) + "\n").encode()


def pack(files: Mapping[str, Any], items: Mapping[int, Iterable[Mapping[str, Any]]]) -> bytes:
    """Return a bundle of JSON ``files`` by name and of the items of evaluations by id, with its manifest.

    Raises UsageError if it is larger than :data:`MOST_BYTES`.
    """
    contents = {name: to_json(value) for name, value in files.items()}
    contents |= {items_file(number): b"".join(map(to_json, rows)) for number, rows in items.items()}
    hashes = {name: sha256(content) for name, content in contents.items()}
    manifest = {"format": FORMAT, "version": VERSION, "recovery": __version__, "files": hashes}
    data = _zipped({MANIFEST: to_json(manifest)} | contents)
    if len(data) > MOST_BYTES:
        raise UsageError(f"the bundle would have {len(data):,} bytes, more than {MOST_BYTES:,}: omit --responses")
    return data


def items_file(evaluation: int | str) -> str:
    """Return the name of the file with an evaluation's items."""
    return f"evaluations/{evaluation}.jsonl"


def measured(lines: bytes, recorded: Score | None) -> Measurement:
    """Return an evaluation as the gate reads it, from its items in a bundle; ``recorded`` is used without items.

    Raises UsageError if the text of a prompt or a response does not have the hash that is given with it.
    """
    rows = []
    for line in lines.splitlines():
        item = _parsed(line)
        texts = {"prompt": queries.asked(item["prompt"]), "response": item["response"]} if "response" in item else {}
        for name, text in texts.items():
            if sha256(text) != item[f"{name}_sha256"]:
                raise UsageError(f"the {name} of item {item['item']!r} does not have the SHA-256 given with it")
        if "votes" in item and not math.isclose(item["score"], share_of(item["votes"]) or 0.0, abs_tol=_ABSOLUTE):
            raise UsageError(f"the score of item {item['item']!r} is not the mean of its votes")
        key = f"{item['item']}\x1f{item['prompt_sha256']}"
        extra = {name: item[name] for name in ("headline", *NEEDED, *CELLS) if name in item}
        rows.append((key, item["score"], item["group"], item["verdicts"], extra))
    return replace(measurement(rows), score=recorded)


def verify(path: Path) -> Iterator[str]:
    """Check a bundle and compute its figures and verdicts again; yield one line per check that succeeded.

    Raises UsageError, in one line, at the first difference or if the file is not a bundle of this version.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"larger than {MOST_BYTES:,} bytes, the most that a bundle may have")
        yield from map(printable, checks(path.read_bytes()))
    except (RecoveryError, OSError) as error:
        raise UsageError(f"{path}: {printable(first_line(error))}") from error


def checks(data: bytes) -> Iterator[str]:
    """As :func:`verify`, for the bytes of a bundle."""
    try:
        yield from _checks(data)
    except _MALFORMED as error:
        raise UsageError(
            f"not a complete evidence bundle: cut short, changed or of another form "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error


def _checks(data: bytes) -> Iterator[str]:
    files = _unpacked(data)
    written = _parsed(files[MANIFEST])["recovery"]
    yield f"file: {len(data):,} bytes, SHA-256 {sha256(data)}"
    yield f"manifest: {len(files) - 1} files with the SHA-256 of each, written by Recovery {written}"
    measurements: dict[str, Measurement] = {}
    evaluations = _parsed(files["evaluations.json"])
    by = "" if written == __version__ else f" by Recovery {__version__}; Recovery {written} wrote it"
    for number, facts in evaluations.items():
        one = measured(files[items_file(number)], facts["score"] and Score(**facts["score"]))
        _same(facts["score"], one.headline, f"the score of {facts['suite']!r} of {facts['checkpoint']!r}", by)
        measurements[number] = one
    items = sum(len(one.items) for one in measurements.values())
    without = sum(not one.items for one in measurements.values())
    stated = f"; {without} stored without items" if without else ""
    yield f"figures: {len(measurements) - without} scores computed from {items:,} items{stated}"
    yield from _sides(_parsed(files["cycle.json"]))
    judgement = _parsed(files["judgement.json"])
    decision, stored = _judged(judgement, evaluations, measurements), judgement["decision"]
    for number, verdict in enumerate(decision.verdicts):
        _same(stored["verdicts"][number], verdict, f"the verdict on {verdict.rule!r}", by)
        yield f"rule: {verdict.rule}: {verdict.verdict}"
    _same(stored, decision, "the decision", by)
    yield f"decision on cycle {judgement['cycle']}: {decision.decision}: {decision.reason}"


def _sides(cycle: Mapping[str, Any]) -> Iterator[str]:
    """Check that every vote was cast on the side that its seed gives; bundles without votes have none to check."""
    votes, labels = cycle.get("votes", []), cycle.get("labels", [])
    for vote in votes:
        if vote["on_left"] != reviews.shown_left(vote["seed"], vote["reviewer"], vote["item"]):
            raise UsageError(f"the vote of {vote['reviewer']!r} on {vote['item']!r} is not on the side of its seed")
    if votes or labels:
        who = len({one["reviewer"] for one in [*votes, *labels]})
        yield f"review: {len(votes)} votes, each on the side of its seed, and {len(labels)} labels; reviewers: {who}"


def _judged(judgement: Mapping[str, Any], evaluations: Mapping[str, Any], items: Mapping[str, Measurement]) -> Decision:
    """Judge again by the rules of a judgement."""
    parts = {
        checkpoint: {
            suite: {evaluations[str(number)]["suite"]: items[str(number)] for number in numbers}
            for suite, numbers in suites.items()
        }
        for checkpoint, suites in judgement["evaluations"].items()
    }
    stored = judgement["decision"]
    rules = [parse_rule(verdict["rule"]) for verdict in stored["verdicts"]]
    return judge_all(rules, evidence_of(parts, judgement["cycle"]), alpha=stored["alpha"], looks=stored["looks"])


def _same(stored: Any, computed: Any, where: str, by: str) -> None:
    """Raise UsageError that names the first difference between a stored value and the one computed again."""
    computed = json_safe(computed)
    if isinstance(stored, dict) and isinstance(computed, dict) and stored.keys() == computed.keys():
        for name in stored:
            _same(stored[name], computed[name], f"{where}, {name}", by)
    elif isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
        for number, (one, other) in enumerate(zip(stored, computed, strict=True), start=1):
            _same(one, other, f"{where}, {number}", by)
    elif isinstance(stored, float) and isinstance(computed, float):
        if not math.isclose(stored, computed, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
            _differ(stored, computed, where, by)
    elif stored != computed:
        _differ(stored, computed, where, by)


def _differ(stored: Any, computed: Any, where: str, by: str) -> NoReturn:
    one, other = (text if len(text := repr(value)) <= 200 else f"{text[:200]}..." for value in (stored, computed))
    raise UsageError(f"{where}: {one} in the bundle, {other} computed from its items{by}")


def _parsed(content: bytes) -> Any:
    return json.loads(content, parse_constant=_no_number)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _unpacked(data: bytes) -> dict[str, bytes]:
    """Return the files of a bundle, each with the hash of the manifest. Nothing is written to the disk."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        stored = all(one.compress_type == zipfile.ZIP_STORED and one.file_size == one.compress_size for one in entries)
        if not stored or sum(one.file_size for one in entries) > len(data) or len(entries) > MOST_FILES:
            raise UsageError("its contents are compressed or too many, which no bundle has: it is not unpacked")
        manifest = _parsed(archive.read(MANIFEST))
        if manifest["format"] != FORMAT or manifest["version"] != VERSION:
            raise UsageError(
                f"a bundle of version {manifest['version']!r}, and this Recovery ({__version__}) reads version "
                f"{VERSION}: verify it with the one that wrote it ({manifest.get('recovery')!r})"
            )
        hashes, names = manifest["files"], Counter(one.filename for one in entries)
        wrong = [name for name, count in names.items() if count > 1 or not _NAME.fullmatch(name)]
        wrong += sorted(names.keys() ^ {MANIFEST, *hashes})
        if wrong:
            raise UsageError(f"it has an unexpected file, or lacks one: {wrong[0]!r}")
        files = {name: archive.read(name) for name in names}
    for name, expected in hashes.items():
        if sha256(files[name]) != expected:
            raise UsageError(f"{name} has the SHA-256 {sha256(files[name])}, not {expected!r} as in the manifest")
    if _zipped(files) != data:
        raise UsageError("the zip format's own fields were changed, or bytes added, after it was written")
    return files


def _zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a zip file whose bytes depend on the names and contents alone."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files, key=lambda name: (name != MANIFEST, name)):
            entry = zipfile.ZipInfo(name)  # dated 1980
            entry.create_system = 3
            archive.writestr(entry, files[name])
    return buffer.getvalue()
