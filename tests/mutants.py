"""What share of faults put into the code do the tests notice?

    python -m tests.mutants --count 400 --seed 0 --output mutants.jsonl

A mutant is a file with one small change, such as < to <=; its tests run on it until the first failure. The working tree
stays as it is: an import hook gives the change to a child forked from this process, which has imported torch, but
nothing of the project. A test that starts Python anew meets the unchanged code. What the output has is not tried again.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from operator import attrgetter
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parent.parent
# Group, folder, modules, and their files of tests without test_, those that notice most in the least time first.
TESTS = [
    ("losses", "recovery/losses/divergences", "jsd kl skew", "losses/divergences"),
    ("losses", "recovery/losses", "dense", "losses/divergences"),
    ("losses", "recovery/losses", "sparse fused kernels terms spans", "losses/sparse losses/fused losses/spans"),
    ("losses", "recovery/losses", "objective config", "losses/loss_config losses/objective losses/router"),
    ("gate", "evals", "acceptance acceptance_rules measurement", "evals/acceptance_rules evals/verdict_levels"),
    ("gate", "evals", "beyond_constant statistics", "evals/statistics evals/domain_pmi evals/beyond_constant"),
    ("gate", "evals", "contrasts domain_pmi", "evals/domain_pmi evals/contrasts evals/acceptance_rules"),
    ("gate", "evals", "paired_tests", "evals/paired_tests evals/comparison"),
    ("resume", "recovery", "disk training/resume_state", "recovery/disk recovery/training"),
    ("resume", "recovery/training", "run_state loop update interfaces", "recovery/training"),
    ("resume", "pipelines/runtime", "stage", "pipelines/stage"),
    ("readers", "recovery/data/corpus", "markdown tables", "recovery/corpus_markdown recovery/tables"),
    ("readers", "recovery/data/corpus", "markdown_files", "recovery/corpus_markdown recovery/corpus_notebooks"),
    ("readers", "recovery/data/corpus", "html_files html_parts", "recovery/corpus_html recovery/corpus_pages"),
    ("readers", "recovery/data/corpus", "docx_files odt_files", "recovery/corpus_office recovery/corpus_books"),
    ("readers", "recovery/data/corpus", "pdf_layout pdf_pages", "recovery/corpus_office"),
    ("readers", "recovery/data/corpus", "xlsx_files pptx_files", "recovery/corpus_xlsx recovery/corpus_pptx"),
    ("readers", "recovery/data/corpus", "asciidoc_files asciidoc_inline", "recovery/corpus_asciidoc"),
    ("readers", "recovery/data/corpus", "encodings", "recovery/corpus_encodings"),
    ("readers", "recovery/data/corpus", "rst_files rst_markup", "recovery/corpus_rst"),
]
IMPORTED = "tests.conftest pytest scipy.stats peft datasets lm_eval.api.metrics alembic.command docutils.core httpx"
# What becomes what. An integer also becomes the next one, and what is returned None.
PAIRS = [("<", "<="), (">", ">="), ("==", "!="), ("is", "is not"), ("in", "not in"), ("and", "or"), ("True", "False")]
PAIRS += [("+", "-"), ("*", "/"), ("+=", "-="), ("*=", "/="), ("min", "max"), ("any", "all"), ("break", "continue")]
SWAPS = dict(PAIRS) | {new: old for old, new in PAIRS} | {"not": ""}
BETWEEN = "() .\n\\"  # what else is between operands
START, END = attrgetter("lineno", "col_offset"), attrgetter("end_lineno", "end_col_offset")


class Mutant(SourceFileLoader):
    """An import hook with the changed source of one file. Its key names it in every run on the same code."""

    def __init__(self, group: str, file: str, tests: tuple[str, ...], key: str, source: bytes) -> None:
        super().__init__(file.removesuffix(".py").replace("/", "."), str(ROOT / file))
        self.group, self.tests, self.key, self.source = group, tests, key, source

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, _: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one, but no assertions, idle arguments, or f-strings (no places before Python 3.12)."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Assert | ast.JoinedStr) and getattr(child, "arg", 0) not in ("strict", "frozen"):
            yield child
            yield from _nodes(child)


def _places(node: ast.AST) -> Iterator[tuple[int, int, int, int]]:
    """Yield from which line and column to which a node has text that may be changed, perhaps between brackets."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp | ast.AugAssign):
        sides = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        yield from ((*END(one), *START(other)) for one, other in itertools.pairwise(sides))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):  # -1 and +1 may be the same dimension
        yield *START(node), *START(node.operand)
    elif isinstance(node, ast.Attribute):
        yield *END(node.value), *END(node)
    elif isinstance(node, ast.Return) and node.value is not None:
        yield *START(node.value), *END(node.value)
    elif isinstance(node, ast.Constant | ast.Name | ast.Break | ast.Continue):
        yield *START(node), *END(node)


def mutants(group: str, file: str, tests: tuple[str, ...]) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    source = (ROOT / file).read_bytes()
    lines = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    for node in _nodes(ast.parse(source)):
        for line, column, last, end in _places(node):
            start = lines[line - 1] + column
            old = source[start : lines[last - 1] + end].decode()
            if isinstance(node, ast.Return):
                new = "None"
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                new = str(node.value + 1)
            else:
                start, old = start + len(old) - len(old.lstrip(BETWEEN)), old.strip(BETWEEN)
                new = SWAPS.get(" ".join(old.split()), old)
            if new != old:
                at, stop, words = bisect.bisect(lines, start), start + len(old.encode()), " ".join(old.split())[:50]
                key = f"{file}:{at}:{start - lines[at - 1] + 1} {words} to {new or 'nothing'}"
                yield Mutant(group, file, tests, key, source[:start] + new.encode() + source[stop:])


def drawn(count: int, seed: int) -> list[Mutant]:
    """Return mutants of all groups in turn; those of a smaller count are the first of those of a larger one."""
    found: dict[str, list[Mutant]] = {}
    for group, folder, modules, names in TESTS:
        tests = tuple(f"tests/{name.replace('/', '/test_')}.py" for name in names.split())
        for module in modules.split():
            found.setdefault(group, []).extend(mutants(group, f"{folder}/{module}.py", tests))
    mixed = [sorted(each, key=lambda one: random.Random(f"{seed} {one.key}").random()) for each in found.values()]
    return [mutant for row in itertools.zip_longest(*mixed) for mutant in row if mutant][: max(count, 0)]


def _child(tests: tuple[str, ...], mutant: Mutant | None, seconds: int, folder: str) -> None:
    """Run tests in this process, which ends with pytest's status."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))  # a loop that never ends may keep what it makes
    for stream in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    os.environ["TMPDIR"] = os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.tempdir = folder
    sys.meta_path[:0] = [mutant] if mutant else []
    options = ["-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--basetemp={folder}/tests"]
    os._exit(importlib.import_module("pytest").main([*options, *tests]))


def attempt(tests: tuple[str, ...], mutant: Mutant | None = None, seconds: float = 3600) -> tuple[str, float]:
    """Return "survived", "killed" or "timeout", and the seconds of processor time, which no other process prolongs."""
    before = sum(os.times()[2:4])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # some tests read as another user
        arguments = (tests, mutant, int(seconds), folder)
        child = multiprocessing.get_context("fork").Process(target=_child, args=arguments)
        child.start()
        assert child.pid is not None
        try:
            child.join(10 * seconds)  # unless it only waits, the system ends it before that
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and what its tests started
        child.join()
    outcome = "killed" if child.exitcode else "survived"
    return "timeout" if child.exitcode == -signal.SIGKILL else outcome, sum(os.times()[2:4]) - before


def main() -> None:
    """Try the mutants that are not in the output yet, and print what came of all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Which faults do the tests notice?")
    parser.add_argument("--count", type=int, default=400, help="mutants of all groups together; default: 400")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines, one for each mutant")
    given = parser.parse_args()
    try:
        given.output.touch()
        known = {at["mutant"]: at["outcome"] for at in map(json.loads, given.output.open())}
        wanted = drawn(given.count, given.seed)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    for name in IMPORTED.split():  # the settings of all tests, and what takes long to import: once, before the forks
        importlib.import_module(name)
    limits: dict[tuple[str, ...], float] = {}
    for mutant in (mutant for mutant in wanted if mutant.key not in known):
        if mutant.tests not in limits:
            outcome, took = attempt(mutant.tests)
            if outcome != "survived":
                sys.exit(f"these do not pass on the code as it is: {' '.join(mutant.tests)}")
            limits[mutant.tests] = max(10, 5 * took)
        known[mutant.key], took = attempt(mutant.tests, mutant, limits[mutant.tests])
        with given.output.open("a") as stream:
            print(json.dumps({"mutant": mutant.key, "outcome": known[mutant.key], "seconds": round(took)}), file=stream)
    print(f"\n{'group':10}{'mutants':>8}{'killed':>8}{'share':>8}")
    for group in dict.fromkeys(mutant.group for mutant in wanted):
        lived = [known[mutant.key] == "survived" for mutant in wanted if mutant.group == group]
        print(f"{group:10}{len(lived):8}{len(lived) - sum(lived):8}{1 - sum(lived) / len(lived):8.0%}")
    print("\nsurvivors", *sorted(mutant.key for mutant in wanted if known[mutant.key] == "survived"), sep="\n")


if __name__ == "__main__":
    main()
