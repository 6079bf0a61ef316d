"""A judgement of the gate for a pipeline: JUnit XML, and a summary in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any
from xml.etree import ElementTree

from db.cycle_evidence import rule_row
from db.records import INSTRUCTIONS
from evals.acceptance import Decision
from pipelines.evaluation.shipping import Shipping
from pipelines.reports.document import Heading, Paragraph, Table, printable, to_markdown

_WIDTH = 90  # characters of a prompt
SHOWN = 5  # items lost of a suite; all that are recorded are in the JSON
# An undecided rule is an error, not a skipped test: most servers count skipped tests as passed.
_OUTCOMES = {"fail": "failure", "undecided": "error"}


def to_junit(decision: Decision, number: int) -> bytes:
    """Return a cycle's judgement as JUnit XML with one test case per rule."""
    outcomes = [verdict.verdict for verdict in decision.verdicts]
    counts = {
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("fail")),
        "errors": str(outcomes.count("undecided")),
    }
    suites = ElementTree.Element("testsuites", {"name": "recover gate", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": f"gate of cycle {number}", **counts, "skipped": "0"})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("decision", decision.decision), ("reason", decision.reason), ("method", decision.method)):
        ElementTree.SubElement(properties, "property", name=name, value=printable(value))
    for verdict in decision.verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"gate.cycle-{number}", name=printable(verdict.rule), time="0"
        )
        reason = printable(verdict.reason)
        if verdict.verdict == "pass":
            ElementTree.SubElement(case, "system-out").text = reason
        else:
            outcome = ElementTree.SubElement(case, _OUTCOMES[verdict.verdict], type=verdict.verdict, message=reason)
            outcome.text = reason
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n"


def rule_lines(decision: Decision) -> list[str]:
    """Return a line for each rule."""
    rows = (rule_row(vars(verdict)) for verdict in decision.verdicts)
    return [f"{word:9} {rule}: {by}" for rule, word, _, by in rows]


def shipping_lines(shipping: Shipping) -> list[str]:
    """Return the judgement of an artifact in lines: the rules, the points lost, the questions and instructions lost."""
    artifact = shipping.artifact
    about = f"{artifact.checkpoint.name} ({artifact.words}), made from {artifact.source.name}"
    lines = [about, *rule_lines(shipping.decision), *map(points_line, shipping.compared)]
    for suite, lost in shipping.lost.items():
        kind = "prompts that lost an instruction" if suite in INSTRUCTIONS else "questions lost"
        lines.append(f"{kind}, {suite}: {len(lost)}")
        for one in lost[:SHOWN]:
            which = f" [{', '.join(one['instructions'])}]" if one["instructions"] else ""
            lines.append(f"  {shorten(one['prompt'], _WIDTH, placeholder=' ...')}{which}")
        lines += [f"  and {len(lost) - SHOWN} more (--json)"] if len(lost) > SHOWN else []
    return [
        *lines,
        *shipping.not_measured,
        f"{artifact.checkpoint.name}: {shipping.verdict}",
        f"({shipping.decision.method})",
    ]


def points_line(compared: Mapping[str, Any]) -> str:
    """Return how many points a suite lost, with the paired test."""
    change, low, high = (f"{100 * compared[key]:+.1f}" for key in ("difference", "low", "high"))
    line = f"points    {compared['name']}: {change} ({low} to {high}, 95%) on {compared['n']} paired items"
    if compared.get("lost") is not None:
        line += f", {compared['lost']} lost, {compared['won']} won"
    return line + (f", p = {compared['p_value']:.2g}" if compared.get("p_value") is not None else "")


def to_summary(decision: Decision, number: int, lines: Sequence[str] = ()) -> str:
    """Return a cycle's judgement as Markdown: decision, table of rules, and ``lines``."""
    rows = tuple(rule_row(vars(verdict)) for verdict in decision.verdicts)
    title, about = f"Cycle {number}: {decision.decision}", f"{decision.reason} ({decision.method})"
    table = Table(("rule", "verdict", "suite", "by"), rows, prose=True)
    return to_markdown([Heading(2, title), Paragraph(about), table, *map(Paragraph, lines)])
