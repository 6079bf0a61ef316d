"""An experiment whose every text is hostile, and what is wrong with a page, a download or a report that shows it."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

from db import Tracker, cycle_evidence, decide, queries, reviews
from db.json_values import text
from tests.db import seeding
from tests.torture.hostile_files import NAMES, WILD

NAME = "hostile <script>alert(1)</script><img src=x onerror=alert(1)> \u202e'\"&{{7*7}} =1+1"
SUITE = "instruction_following"
LONGEST = 400  # characters of a name: an address with longer ones is refused
MODEL = WILD[0][:LONGEST]
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
_SCRIPTS = ("script", "img", "iframe", "object", "embed", "base", "meta", "link", "form")
_SAFE = re.compile(r"(?!//)(?![a-z][a-z0-9+.-]*:)", re.IGNORECASE)  # an address of this server: relative, no scheme
_OPENING, _CLOSING = "\u202a\u202b\u202d\u202e", "\u202c"
_ISOLATES, _ISOLATED = "\u2066\u2067\u2068", "\u2069"


def fill(address: Path | str) -> tuple[int, list[int]]:
    """Add the experiment :data:`NAME` to a tracker; return a cycle and the evaluations, all with hostile texts."""
    short = [wild[:LONGEST] for wild in WILD] + list(NAMES)
    with Tracker(address) as tracker:
        experiment = tracker.experiment(NAME, base_model=MODEL)
        cycle = tracker.cycle(experiment, 1, documents=short[3], corpus_hash="c" * 64)
        stages = [
            seeding.add_distillation(tracker, experiment, f"{number} {text(wild)}", spoil=wild, method=wild)
            for number, wild in enumerate(short[:4])
        ]
        ids, evaluations, parent = [], [], None
        for kind in ("base", "midtrained", "recovered"):
            name = kind if kind == "base" else f"cycle-1/{kind}"
            parent = tracker.add_checkpoint(
                experiment, name, kind, path=text(short[7]), content_hash=kind[0] * 64, parent_id=parent,
                cycle_id=None if kind == "base" else cycle, stage_id=stages[0] if kind == "recovered" else None,
            )  # fmt: skip
            ids.append(parent)
            evaluations.append(_evaluate(tracker, parent, kind))
        _train(tracker, experiment, cycle, short)
        for wild in short:
            tracker.event(experiment, wild, data={wild: wild})
        tracker.event(experiment, MODEL, kind=MODEL, level=MODEL)
        decide(tracker.database, cycle, "accepted", who=text(short[0])[:80], why=text(short[1]))
        _review(tracker, experiment, ids, evaluations)
    return cycle, evaluations


def _evaluate(tracker: Tracker, checkpoint: int, kind: str) -> int:
    """Record each text as item, prompt, response, instruction and verdict; the mid-trained checkpoint fails on all."""
    passed = kind != "midtrained"
    items = [
        {
            "id": f"{number} {wild[:LONGEST]}", "prompt": wild, "response": f"{wild}{kind}", "score": float(passed),
            "verdicts": {wild[:LONGEST]: passed}, "group": wild[:LONGEST],
        }
        for number, wild in enumerate((*WILD, *NAMES))
    ]  # fmt: skip
    tracker.add_evaluation(checkpoint, "general", value=0.9, stderr=0.01, n=100)
    details = {f"id/{wild[:LONGEST]}": {"value": 0.5, "stderr": 0.1, "n": 9} for wild in WILD}
    for one in items:
        one["extra"] = {"answers": [one["prompt"]], "tags": [one["group"]]}
    for suite in ("domain_knowledge", "open_book"):
        tracker.add_evaluation(checkpoint, suite, corpus=1, value=0.5, stderr=0.01, n=100, items=items)
    value = 0.95 if passed else 0.4
    return tracker.add_evaluation(checkpoint, SUITE, value=value, stderr=0.01, n=100, details=details, items=items)


def _train(tracker: Tracker, experiment: int, cycle: int, short: list[str]) -> None:
    """Record a stage that fails, with hostile settings and metrics, a gate's judgement and a certificate."""
    stage = tracker.start_stage(experiment, "midtrain", cycle_id=cycle, config=dict(pairwise(short)))
    stage.describe(details={"figures": {"jsd": {"title": MODEL, "unit": MODEL}}})
    for step in (1, 2):
        stage.log(step, {text(wild): random.random() for wild in short if wild.strip()} | {"jsd": 0.1})
    stage.fail(short[5] + short[0])
    one = {"rule": short[0], "verdict": short[8], "student": 0.5, "bound": 0.4, "estimate": 0.1, "low": 0, "high": 1}
    data = {"decision": "accept", "verdicts": [one | {"n": 9}], "method": short[1]}
    tracker.event(experiment, short[0], kind="gate", cycle_id=cycle, data=data)
    parts = [{"what": wild, "verdict": wild, "says": wild} for wild in short]
    data = {"names": short, "documents": short, "before": short[0], "after": short[1], "verdict": short[2]}
    data |= {"parts": parts, "not_proven": short[3]}
    tracker.event(experiment, short[0], kind=cycle_evidence.CERTIFICATE, cycle_id=cycle, data=data)


def _review(tracker: Tracker, experiment: int, ids: list[int], evaluations: list[int]) -> None:
    """Vote on every response and label every lost answer, with hostile names and notes."""
    database, who = tracker.database, ("=1+1", "<b>Bo", "\u202eeve", "-2+3")
    review = reviews.open_review(database, ids[0], ids[1], SUITE, reviews.DIFFERING)
    pairs = reviews.pairs(database, evaluations[0], evaluations[1], reviews.DIFFERING)
    for number, pair in enumerate(pairs):
        reviews.vote(database, review, pair, who[number % len(who)], (reviews.FIRST, reviews.TIE)[number % 2])
    for pair, wild in zip(reviews.pairs(database, *evaluations[:2], reviews.LOST), WILD, strict=False):
        reviews.add_label(database, pair, who[0], "other", wild)


class _Reader(HTMLParser):
    """Collects what would run or load something, and texts that change the direction of what comes after them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.directions = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Check one element."""
        if tag in _SCRIPTS and not (tag == "form" and (dict(attrs).get("action") or "").isalpha()):
            self.faults.append(f"<{tag}>")
        for name, value in attrs:
            if name.startswith("on") or name in ("srcdoc", "formaction"):
                self.faults.append(f"{tag} {name}={value!r:.80}")
            if name in ("href", "src", "action", "xlink:href") and not _SAFE.match((value or "").strip()):
                self.faults.append(f"{tag} {name}={value!r:.80}")
            if name == "style" and re.search(r"url\(|expression|@import", value or "", re.IGNORECASE):
                self.faults.append(f"{tag} {name}={value!r:.80}")

    def handle_data(self, data: str) -> None:
        """Count the texts that change the direction of what comes after them."""
        self.directions += open_directions(data) > 0


def open_directions(data: str) -> int:
    """Return how many changes of direction a text leaves open."""
    overrides = isolates = 0
    for one in data:
        overrides += (one in _OPENING) - (one in _CLOSING and overrides > 0)
        isolates += (one in _ISOLATES) - (one in _ISOLATED and isolates > 0)
    return overrides + isolates


def unsafe(kind: str, value: Any) -> list[str]:
    """Return what is wrong with what a page shows, from the type of its component and its value."""
    if isinstance(value, dict) and value.get("__type__") == "update":
        value = value.get("value")
    if kind == "html" and isinstance(value, str):
        return unsafe_html(value)
    return unsafe_figure(value["plot"]) if kind == "plot" and isinstance(value, dict) and "plot" in value else []


def unsafe_html(html: str) -> list[str]:
    """Return what is wrong with HTML that a page shows."""
    read = _Reader(html)
    faults = read.faults + ["a text changes the direction of what comes after it"] * (read.directions > 0)
    if "\x00" in html or any("\ud800" <= one <= "\udfff" for one in html):
        faults.append("a character that no page may hold")
    return faults


def unsafe_report(html: str) -> list[str]:
    """Return what is wrong with a report as HTML, whose charts are scripts that it may have."""
    body = re.sub(r'<figure class="chart">.*?</figure>', "", html[html.find("<body") :], flags=re.DOTALL)
    return _Reader(body).faults + re.findall(r"<script>alert|<img src=x|<svg/onload", html)


def unsafe_figure(described: str) -> list[str]:
    """Return what is wrong with a figure: Plotly shows some HTML in its texts, and follows links in them."""
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            for key, one in value.items():
                if key != "meta":  # never drawn
                    look(one)
        elif isinstance(value, list):
            for one in value:
                look(one)
        elif isinstance(value, str) and re.search(r"<(?!/?(?:b|br|i|extra|span|sub|sup)\b)[a-z!/]", value, re.I):
            found.append(f"a figure's text {value[:80]!r}")

    look(json.loads(described))
    return found


def unsafe_csv(sheet: str) -> list[str]:
    """Return the cells of a sheet that a spreadsheet would compute, and rows that hostile texts broke."""
    csv.field_size_limit(1 << 24)
    head, *rows = csv.reader(io.StringIO(sheet))
    faults = [f"a row of {len(row)} cells, not {len(head)}: {row!s:.80}" for row in rows if len(row) != len(head)]
    cells = [cell for row in rows for cell in row if cell.startswith(_FORMULA)]
    return faults + [f"a formula: {cell[:60]!r}" for cell in cells if not re.fullmatch(r"-\d[\d.e-]*", cell)]


def stored(address: Path | str, evaluation: int) -> list[dict[str, Any]]:
    """Return the item, prompt and response of each sample, as the tracker holds them."""
    with Tracker(address) as tracker:
        samples = queries.samples(tracker.database, evaluation, limit=1000).samples
    return [{"item": one.item, "prompt": one.prompt, "response": one.response} for one in samples]
