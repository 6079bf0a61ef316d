"""Import rules between the packages, checked on the source code.

`recovery` does not depend on the database, the dashboard does not import torch, and only the command line imports all
packages. The entry point is the only module of `recovery` that imports from another package.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
OPTIONAL = {
    "cyllama",
    "xllamacpp",
    "pypdfium2",
    "pypdf",
    "gguf",
    "bitsandbytes",
    "vllm",
    "psycopg",
    "wandb",
    "mlflow",
    "trackio",
    "swanlab",
    "inspect_ai",
    "triton",
}
# Modules that need an optional package at their top, and are themselves imported where they are used.
ON_DEMAND = {"recovery.losses.triton_kernels"}
# Functions that import the module they are given the name of.
IMPORTERS = {"import_module", "lazily", "__import__"}
LONGEST_FUNCTION = 80


@dataclass(frozen=True)
class Import:
    """Target of one import, ``module`` or ``module.name``, and its position.

    ``by_name`` marks a call with the module's name as a string; ``lazily`` counts as nested wherever it is called.
    """

    module: str
    name: str | None
    line: int
    nested: bool
    typing_only: bool
    by_name: bool = False


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
def tree(module: str) -> ast.Module:
    """Return the parsed source of ``module``."""
    return ast.parse(sources()[module].read_text())


@cache
def imports(module: str) -> tuple[Import, ...]:
    """Return every import of ``module``, with relative ones resolved."""
    package = module if sources()[module].name == "__init__.py" else module.rpartition(".")[0]
    return tuple(_walk([tree(module)], package, nested=False, typing_only=False))


def imports_of(source: str, package: str) -> tuple[Import, ...]:
    """Return every import of the source of a module in ``package``."""
    return tuple(_walk([ast.parse(source)], package, nested=False, typing_only=False))


def _walk(nodes: Iterable[ast.AST], package: str, *, nested: bool, typing_only: bool) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno, nested, typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, nested, typing_only)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _walk(node.body, package, nested=nested, typing_only=True)
            yield from _walk(node.orelse, package, nested=nested, typing_only=typing_only)
        else:
            if isinstance(node, ast.Call) and (name := _imported_by(node)):
                lazy = nested or ast.unparse(node.func).endswith("lazily")
                yield Import(importlib.util.resolve_name(name, package), None, node.lineno, lazy, typing_only, True)
            inside = nested or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(ast.iter_child_nodes(node), package, nested=inside, typing_only=typing_only)


def _imported_by(call: ast.Call) -> str:
    """Return the name of the module that a call imports, or "" if it imports none or computes its name."""
    if ast.unparse(call.func).rpartition(".")[2] not in IMPORTERS:
        return ""
    given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "name")]
    return next((one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)), "")


def test_every_form_of_import_is_seen() -> None:
    source = """
import a.b
from ..c import d
if TYPE_CHECKING:
    import e
elif sys:
    import f
else:
    import g
if not TYPE_CHECKING:
    import h
h, i = lazily("h"), importlib.import_module(name="i.j")
k = import_module(computed), lazily(f"{computed}.l")
def function():
    from . import m
    return importlib.import_module(".n", __package__).use
"""
    nested, typing_only = {"nested": True, "typing_only": False}, {"nested": False, "typing_only": True}
    top = {"nested": False, "typing_only": False}
    assert imports_of(source, "here.inner") == (
        Import("a.b", None, 2, **top),
        Import("here.c", "d", 3, **top),
        Import("e", None, 5, **typing_only),
        Import("f", None, 7, **top),
        Import("g", None, 9, **top),
        Import("h", None, 11, **top),
        Import("h", None, 12, **nested, by_name=True),
        Import("i.j", None, 12, **top, by_name=True),
        Import("here.inner", "m", 15, **nested),
        Import("here.inner.n", None, 16, **nested, by_name=True),
    )


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
    ours = r"recovery\.(config|errors|methods|settings|text_files|workspace|__version__|_package_guard|_startup)"
    light = rf"(click|{ours}|pipelines\.cli)\b"
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
        if found.nested and not (found.by_name or is_cli(module) or module == ENTRY_POINT)
        if found.module.partition(".")[0] not in OPTIONAL
        and not {found.module, f"{found.module}.{found.name}"} & ON_DEMAND
    ]
    assert not wrong, "\n".join(wrong)


def test_optional_packages_are_never_imported_at_the_top() -> None:
    wrong = [
        f"{module}:{found.line} imports {found.module}"
        for module in sources()
        for found in imports(module)
        if module not in ON_DEMAND
        and (found.module.partition(".")[0] in OPTIONAL or {found.module, f"{found.module}.{found.name}"} & ON_DEMAND)
        and not (found.nested or found.typing_only)
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
    declared = [
        *project["dependencies"],
        *extras["vllm"],
        *extras["docs"],
        *extras["gguf"],
        *extras["quantized"],
        *extras["postgres"],
    ]
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
    for module in sources():
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    wrong.append(f"{module}.{node.name} has {length} lines")
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is() -> None:
    wrong = [module for module in sources() if tree(module).body and not ast.get_docstring(tree(module))]
    assert not wrong, "\n".join(wrong)


# In an order in which each says whether it is the one that loads torch.
WITHOUT_TORCH = ("db", "recovery.losses.config", "recovery.data.prompts", "recovery.data.document_questions",
                 "evals.probes", "pipelines.evaluation.importing", "pipelines.prune", "dashboard.app")  # fmt: skip


def test_what_runs_no_model_loads_no_torch() -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {WITHOUT_TORCH}:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(name)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert finished.returncode == 0, finished.stderr
