"""Check the licences in a bill of materials: check_licences.py build/bom.json requirements/licences.toml.

A package passes if the allowed licences satisfy what it states (A OR B: one of the two; A AND B: both). Prints a line
for each package that does not, and exits with status 1; otherwise prints how many packages name which licence.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name


class LicenceError(Exception):
    """One line: why a package does not pass, and what to do."""


def tokens_of(expression: str) -> list[str]:
    """Return the brackets, operators and licences of a canonical expression; "A WITH B" is one licence."""
    return re.findall(r"[()]|[^\s()]+(?: WITH [^\s()]+)?", expression)


def satisfied(tokens: list[str], allowed: list[str]) -> bool:
    """Take tokens up to the end or the closing bracket; return whether these licences suffice. AND goes before OR."""
    result, term = False, True
    while tokens and (token := tokens.pop(0)) != ")":
        if token == "OR":
            result, term = result or term, True
        elif token != "AND":
            term = (satisfied(tokens, allowed) if token == "(" else token in allowed) and term
    return result or term


def read_rules(path: Path) -> dict[str, Any]:
    """Return the allowed licences, what other texts mean, the licences read by hand, and the exceptions."""
    rules = tomllib.loads(path.read_text("utf-8"))
    for table, keys in (("packages", {"version", "licence", "file"}), ("exceptions", {"licences", "reason"})):
        for name, entry in rules[table].items():
            if entry.keys() != keys or not all(entry.values()):
                raise ValueError(f"{table}.{name} needs {', '.join(sorted(keys))}, and nothing else")
    rules["packages"] = {canonicalize_name(name): entry for name, entry in rules["packages"].items()}
    for licence in [*rules["allowed"], *filter(None, rules["names"].values())]:
        if licence != (spelling := canonicalize_license_expression(licence)):
            raise ValueError(f"write {spelling}, not {licence}")
    return rules


def licence_of(component: dict[str, Any], rules: dict[str, Any]) -> str:
    """Return the canonical SPDX expression of a package: as read by hand, else as stated."""
    entries = [{**entry, **entry.get("license", {})} for entry in component.get("licenses", [])]
    texts = [entry.get("expression") or entry.get("id") or entry["name"] for entry in entries]
    stated = {rules["names"].get(text, text) for text in texts} - {""}
    if by_hand := rules["packages"].get(canonicalize_name(component["name"])):
        if by_hand["version"] != component["version"]:
            seen = f"{by_hand['licence']} was read in {by_hand['file']} of version {by_hand['version']}"
            raise LicenceError(f"{seen}: read it again, and correct [packages] of licences.toml")
        stated = {by_hand["licence"]}
    if not stated:
        found = " and ".join(texts) or "no licence"
        raise LicenceError(f"states {found}: add what its licence file says to [packages] of licences.toml")
    try:
        every = sorted({canonicalize_license_expression(text) for text in stated})
    except InvalidLicenseExpression as error:
        raise LicenceError(f"{error}: add its SPDX id to [names] of licences.toml, or read its licence file") from None
    # Several statements without an operator between them: all must be allowed.
    return every[0] if len(every) == 1 else " AND ".join(f"({one})" if " OR " in one else one for one in every)


def check(component: dict[str, Any], project: str, rules: dict[str, Any]) -> tuple[str, bool]:
    """Return a package's licence and whether it is an exception; LicenceError if it does not pass."""
    name = canonicalize_name(component["name"])
    if name == canonicalize_name(project):
        raise LicenceError("is the project itself, listed a second time: empty PYTHONPATH, then make bom")
    if local := re.search(r'file:/[^"]*', json.dumps(component.get("externalReferences", []))):
        raise LicenceError(f"{local[0]} must not be in the bill: install the package from an index, then make bom")
    licence = licence_of(component, rules)
    if satisfied(tokens_of(licence), rules["allowed"]):
        return licence, False
    more = [entry["licences"] for pattern, entry in rules["exceptions"].items() if fnmatchcase(name, pattern)]
    if satisfied(tokens_of(licence), sum(more, rules["allowed"])):
        return licence, True
    raise LicenceError(
        f"{licence} is not allowed: remove the package, or give a reason in [exceptions] of licences.toml"
    )


def main(bill_path: Path, rules_path: Path) -> str:
    """Check every package of a bill; return the counts, or end the program with a line for each problem."""
    counts: Counter[str] = Counter()
    exceptions, problems, path = 0, [], rules_path
    try:
        rules, path = read_rules(rules_path), bill_path
        bill = json.loads(bill_path.read_text("utf-8"))
        for component in bill["components"]:
            try:
                licence, is_exception = check(component, bill["metadata"]["component"]["name"], rules)
                counts.update({*tokens_of(licence)} - {"(", ")", "AND", "OR"})
                exceptions += is_exception
            except LicenceError as error:
                problems.append(f"{component['name']} {component['version']}: {error}")
        if not bill["components"]:
            raise ValueError("no package in it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems = [f"{path} cannot be used ({type(error).__name__}: {error}): correct it, or write it with make bom"]
    if problems:
        sys.exit("\n".join(problems))
    each = ", ".join(f"{licence} {counts[licence]}" for licence in sorted(counts, key=lambda one: (-counts[one], one)))
    return f"{bill_path}: {len(bill['components'])} packages, {exceptions} by exception; {each}"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: check_licences.py build/bom.json requirements/licences.toml")
    print(main(Path(sys.argv[1]), Path(sys.argv[2])))
