"""Who may import whom, read from the source itself.

The directions are what keeps the parts apart: the science knows no database, the dashboard no torch, and only the
command line knows them all.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("recovery", "evals", "pipelines", "db", "dashboard")
MAY_IMPORT = {
    "db": {"db"},
    "recovery": {"recovery"},
    "evals": {"evals", "recovery"},
    "pipelines": {"pipelines", "recovery", "evals", "db"},
    "dashboard": {"dashboard", "db"},
}
# Installed only with an extra, so imported only where they are used.
OPTIONAL = {"pypdf", "docx", "gguf", "vllm", "psycopg"}
LONGEST_FUNCTION = 80


@dataclass(frozen=True)
class Import:
    """One import statement's target: ``module`` or ``module.name``, and where it stands."""

    module: str
    name: str | None
    line: int
    nested: bool
    typing_only: bool


@cache
def sources() -> dict[str, Path]:
    """Module name -> file, for every module of the project."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> tuple[Import, ...]:
    """Every import of ``module``, relative ones resolved."""
    path = sources()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return tuple(_walk(ast.parse(path.read_text()), package, nested=False, typing_only=False))


def _walk(node: ast.AST, package: str, *, nested: bool, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, None, child.lineno, nested, typing_only)
        elif isinstance(child, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - child.level] if child.level else []
            module = ".".join([*base, *([child.module] if child.module else [])])
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, nested, typing_only)
        else:
            inside = nested or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = typing_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
            yield from _walk(child, package, nested=inside, typing_only=typing)


def is_cli(module: str) -> bool:
    """Whether ``module`` is part of the command line, which may import everything inside its functions."""
    return module == "recovery.cli" or module.startswith("recovery.cli.") or module == "recovery.__main__"


def test_imports_go_in_the_allowed_directions_only() -> None:
    wrong = []
    for module in sources():
        top = module.partition(".")[0]
        for found in imports(module):
            target = found.module.partition(".")[0]
            if (
                target not in PACKAGES
                or target in MAY_IMPORT[top]
                or (is_cli(module) and (found.nested or found.typing_only))
            ):
                continue
            wrong.append(f"{module}:{found.line} imports {found.module}")
    assert not wrong, "\n".join(wrong)


def test_the_science_does_not_know_the_command_line() -> None:
    wrong = [
        f"{module}:{found.line}"
        for module in sources()
        for found in imports(module)
        if found.module.startswith("recovery.cli") and not is_cli(module)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_command_line_imports_little_before_a_command_runs() -> None:
    light = {"click", "recovery", *sys.stdlib_module_names}
    wrong = []
    for module in filter(is_cli, sources()):
        for found in imports(module):
            project = f"{found.module}.{found.name}" if found.module == "recovery" else found.module
            known = re.match(r"recovery(\.(cli|errors|workspace|__version__|_packages|_startup)\b|$)", project)
            if not (found.nested or found.typing_only) and (
                found.module.partition(".")[0] not in light or (project.startswith("recovery") and not known)
            ):
                wrong.append(f"{module}:{found.line} imports {project}")
    assert not wrong, "\n".join(wrong)


def test_no_function_imports_but_for_the_command_line_and_optional_packages() -> None:
    wrong = [
        f"{module}:{found.line} imports {found.module}"
        for module in sources()
        for found in imports(module)
        if found.nested and not is_cli(module) and found.module.partition(".")[0] not in OPTIONAL
    ]
    assert not wrong, "\n".join(wrong)


def test_optional_packages_are_never_imported_at_the_top() -> None:
    wrong = [
        f"{module}:{found.line} imports {found.module}"
        for module in sources()
        for found in imports(module)
        if found.module.partition(".")[0] in OPTIONAL and not (found.nested or found.typing_only)
    ]
    assert not wrong, "\n".join(wrong)


def test_there_is_no_import_circle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in sources()}
    for module, targets in graph.items():
        for found in imports(module):
            if found.nested or found.typing_only:
                continue
            target = f"{found.module}.{found.name}"
            target = target if target in graph else found.module
            if target in graph and target != module:
                targets.add(target)
    circle = _circle(graph)
    assert circle is None, " -> ".join(circle or [])


def _circle(graph: dict[str, set[str]]) -> list[str] | None:
    """One circle of ``graph`` as a path that ends where it began, or None."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        done.add(node)
        return next((found for target in sorted(graph[node]) if (found := visit(target, [*path, node]))), None)

    return next((found for node in graph if (found := visit(node, []))), None)


def test_a_circle_would_be_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert _circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_every_foreign_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["vllm"], *extras["docs"], *extras["gguf"], *extras["postgres"]]
    names = {re.split(r"[\[<>=!~ ]", line)[0].lower().replace("_", "-") for line in declared}
    owners = importlib.metadata.packages_distributions()
    wrong = []
    for module in sources():
        for found in imports(module):
            top = found.module.partition(".")[0]
            if top in PACKAGES or top in sys.stdlib_module_names or top in OPTIONAL:
                continue
            if not names & {owner.lower().replace("_", "-") for owner in owners.get(top, [top])}:
                wrong.append(f"{module}:{found.line} imports {top}, which pyproject.toml does not name")
    assert not wrong, "\n".join(wrong)


def test_functions_fit_a_screen() -> None:
    wrong = []
    for module, path in sources().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    wrong.append(f"{module}.{node.name} has {length} lines")
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is() -> None:
    trees = {module: ast.parse(path.read_text()) for module, path in sources().items()}
    wrong = [module for module, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", ["db", "dashboard.app"])
def test_the_tracker_and_the_dashboard_load_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert finished.returncode == 0, finished.stderr
