"""requirements/check_licences.py, which `make bom` runs: what passes, what does not, and what it says about it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "requirements" / "check_licences.py"
LICENCES = ROOT / "requirements" / "licences.toml"
spec = importlib.util.spec_from_file_location("check_licences", SCRIPT)
assert spec is not None and spec.loader is not None
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

RULES = """
allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-3-Clause"]

[names]
"BSD License" = ""
"Apache 2.0" = "Apache-2.0"

[packages]
read-by-hand = { version = "1.0", licence = "BSD-3-Clause", file = "LICENSE" }

[exceptions."cuda-*"]
licences = ["LicenseRef-CUDA"]
reason = "Only where a GPU is."
"""
GPL = "is not allowed: remove the package, or give a reason in [exceptions] of licences.toml"


def component(*stated: str, name: str = "harbour", url: str | None = None) -> dict[str, Any]:
    """A package of a bill: an expression if it has an operator, else SPDX ids, or names where they hold a space."""
    licences: list[dict[str, Any]] = [{"license": {"name" if " " in text else "id": text}} for text in stated]
    if len(stated) == 1 and any(word in stated[0] for word in (" OR ", " AND ", " WITH ")):
        licences = [{"expression": stated[0], "acknowledgement": "declared"}]
    found: dict[str, Any] = {"name": name, "version": "1.0", "type": "library"}
    if licences:
        found["licenses"] = licences
    if url:
        found["externalReferences"] = [{"type": "distribution", "url": url}]
    return found


def check(folder: Path, *components: dict[str, Any], rules: str = RULES) -> tuple[bool, str]:
    """Check a bill of these packages; return whether it passes, and what the script says."""
    bill = {"bomFormat": "CycloneDX", "metadata": {"component": {"name": "recovery"}}, "components": components}
    (folder / "bom.json").write_text(json.dumps(bill))
    (folder / "licences.toml").write_text(rules)
    return run(folder / "bom.json", folder / "licences.toml")


def run(bill: Path, rules: Path) -> tuple[bool, str]:
    """Run the script's main function, in this process."""
    try:
        return True, script.main(bill, rules)
    except SystemExit as ended:
        return False, str(ended)


def test_what_passes_is_counted(tmp_path: Path) -> None:
    passing = [
        component("MIT"),
        component("mit OR GPL-3.0-only"),
        component("GPL-3.0-only OR MIT"),
        component("MIT OR GPL-3.0-only AND GPL-2.0-only"),  # AND goes before OR
        component("(GPL-3.0-only AND GPL-2.0-only) OR (MIT AND (GPL-3.0-only OR BSD-3-Clause))"),
        component("Apache-2.0 WITH LLVM-exception AND MIT"),
        component("Apache 2.0"),
        component("BSD-3-Clause", "BSD License"),
        component(name="Read_by.Hand"),
        component("LicenseRef-CUDA AND MIT", name="cuda-kernels"),
    ]
    passes, said = check(tmp_path, *passing)
    counts = (
        "MIT 7, GPL-3.0-only 4, BSD-3-Clause 3, GPL-2.0-only 2, Apache-2.0 1, Apache-2.0 WITH LLVM-exception 1, "
        "LicenseRef-CUDA 1"
    )
    assert (passes, said) == (True, f"{tmp_path / 'bom.json'}: 10 packages, 1 by exception; {counts}")


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (["GPL-3.0-only"], f"GPL-3.0-only {GPL}"),
        (["MIT AND GPL-3.0-only"], f"MIT AND GPL-3.0-only {GPL}"),
        (["(MIT OR GPL-3.0-only) AND GPL-2.0-only"], f"(MIT OR GPL-3.0-only) AND GPL-2.0-only {GPL}"),
        (["GPL-3.0-only WITH GCC-exception-3.1"], f"GPL-3.0-only WITH GCC-exception-3.1 {GPL}"),
        (["BSD-3-Clause WITH LLVM-exception"], f"BSD-3-Clause WITH LLVM-exception {GPL}"),
        (["MIT", "GPL-3.0-only"], f"GPL-3.0-only AND MIT {GPL}"),
        (["LicenseRef-CUDA"], f"LicenseRef-CUDA {GPL}"),
        ([], "states no licence: add what its licence file says to [packages] of licences.toml"),
        (["BSD License"], "states BSD License: add what its licence file says to [packages] of licences.toml"),
        (
            ["As you like"],
            "Invalid license expression: 'As you like': add its SPDX id to [names] of licences.toml, or read its "
            "licence file",
        ),
    ],
)
def test_what_does_not_pass_is_one_line_each(tmp_path: Path, stated: list[str], said: str) -> None:
    done = check(tmp_path, component("MIT"), component(*stated), component(*stated, name="pier"))
    assert done == (False, f"harbour 1.0: {said}\npier 1.0: {said}")


def test_a_licence_read_by_hand_is_read_again_in_another_version(tmp_path: Path) -> None:
    done = check(tmp_path, component("MIT", name="read-by-hand") | {"version": "1.1"})
    said = "BSD-3-Clause was read in LICENSE of version 1.0: read it again, and correct [packages] of licences.toml"
    assert done == (False, f"read-by-hand 1.1: {said}")


def test_folders_of_the_machine_and_the_project_itself_are_not_in_a_bill(tmp_path: Path) -> None:
    index = component("MIT", url="https://example.org/harbour.whl")
    folder = component("MIT", name="pier", url="file:///srv/wheels/pier.whl")
    passes, said = check(tmp_path, index, folder, component("Apache-2.0", name="Recovery"))
    assert not passes and said.splitlines() == [
        "pier 1.0: file:///srv/wheels/pier.whl must not be in the bill: "
        "install the package from an index, then make bom",
        "Recovery 1.0: is the project itself, listed a second time: empty PYTHONPATH, then make bom",
    ]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (RULES.replace('reason = "Only where a GPU is."', 'reason = ""'), "exceptions.cuda-* needs licences, reason"),
        (RULES.replace(', file = "LICENSE"', ""), "packages.read-by-hand needs file, licence, version"),
        (RULES.replace('"MIT"', '"mit"'), "write MIT, not mit"),
        (RULES.replace('"MIT"', '"MTI"'), "Unknown license: 'mti'"),
        (RULES.replace("allowed", "alowed"), "KeyError: 'allowed'"),
        ("allowed = [", "TOMLDecodeError"),
    ],
)
def test_unusable_rules_are_one_line(tmp_path: Path, rules: str, said: str) -> None:
    passes, line = check(tmp_path, component("MIT"), rules=rules)
    assert not passes and said in line and len(line.splitlines()) == 1
    assert line.startswith(f"{tmp_path / 'licences.toml'} cannot be used (") and "): correct it" in line


@pytest.mark.parametrize("text", [None, "", "[]", '{"components": [{}]}', '{"components": []}', "\0"])
def test_an_unusable_bill_is_one_line(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "bom.json").write_text(text)
    passes, line = run(tmp_path / "bom.json", LICENCES)
    assert not passes and line.startswith(f"{tmp_path / 'bom.json'} cannot be used (") and len(line.splitlines()) == 1


@pytest.mark.parametrize(("licence", "status"), [("MIT", 0), ("AGPL-3.0-only", 1)])
def test_as_a_program_it_fails_where_a_package_does(tmp_path: Path, licence: str, status: int) -> None:
    said = check(tmp_path, component(licence))[1] + "\n"
    command = [sys.executable, str(SCRIPT), str(tmp_path / "bom.json"), str(tmp_path / "licences.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout, done.stderr) == ((1, "", said) if status else (0, said, ""))


def test_the_licences_of_this_project_allow_no_strong_copyleft_and_are_read_in_the_locked_versions() -> None:
    rules = script.read_rules(LICENCES)
    strong = re.compile(r"(A?GPL|SSPL|EUPL|OSL)-[^ ]*$")
    assert not list(filter(strong.match, rules["allowed"]))
    lock = (ROOT / "requirements" / "lock.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    for name, entry in rules["packages"].items():
        # The others are requirements of torch's build for GPUs, which are not in the lock.
        assert entry["version"] == locked.get(name, entry["version"]), f"{name}: read {entry['file']} again"
