"""Import rules between the packages, checked on the source code.

`recovery` does not depend on the database, the dashboard does not import torch, and only the command line imports all
packages. The entry point is the only module of `recovery` that imports from another package.
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
# The command line may import the dashboard; the entry point, which claims the package names first, the command line.
CLI = "pipelines.cli"
ENTRY_POINT = "recovery.__main__"
# Installed only with an extra, so imported only where they are used.
OPTIONAL = {"pypdf", "docx", "gguf", "vllm", "psycopg"}
LONGEST_FUNCTION = 80


@dataclass(frozen=True)
class Import:
    """Target of one import statement, ``module`` or ``module.name``, and its position."""

    module: str
    name: str | None
    line: int
    nested: bool
    typing_only: bool


@cache
def sources() -> dict[str, Path]:
    """Return the file of every module of the project by module name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> tuple[Import, ...]:
    """Return every import of ``module``, with relative ones resolved."""
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
    """Whether ``module`` is part of the command line, which imports inside the command functions."""
    return module == CLI or module.startswith(f"{CLI}.")


def allowed(module: str, target: str) -> bool:
    """Whether ``module`` may import the module ``target`` of this project."""
    if is_cli(target):
        return is_cli(module) or module == ENTRY_POINT
    top = target.partition(".")[0]
    return top in MAY_IMPORT[module.partition(".")[0]] or (is_cli(module) and top == "dashboard")


def test_imports_go_in_the_allowed_directions_only() -> None:
    wrong = [
        f"{module}:{found.line} imports {found.module}"
        for module in sources()
        for found in imports(module)
        if found.module.partition(".")[0] in PACKAGES
        and not (allowed(module, found.module) and allowed(module, f"{found.module}.{found.name}"))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_command_line_imports_little_before_a_command_runs() -> None:
    light = r"(click|recovery\.(errors|workspace|losses\.config|__version__|_package_guard|_startup)|pipelines\.cli)\b"
    wrong = []
    for module in [*filter(is_cli, sources()), ENTRY_POINT]:
        for found in imports(module):
            target = f"{found.module}.{found.name}" if found.module in PACKAGES else found.module
            standard = target.partition(".")[0] in sys.stdlib_module_names
            if not (found.nested or found.typing_only or standard or re.match(light, target)):
                wrong.append(f"{module}:{found.line} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_no_function_imports_but_for_the_command_line_and_optional_packages() -> None:
    wrong = [
        f"{module}:{found.line} imports {found.module}"
        for module in sources()
        for found in imports(module)
        if found.nested and not (is_cli(module) or module == ENTRY_POINT)
        if found.module.partition(".")[0] not in OPTIONAL
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
    """Return one cycle of ``graph`` as a path that ends at its start, or None."""
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
