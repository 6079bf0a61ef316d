"""Write docs/architecture.md's picture, file map and links to lines from the source itself: `make docs`.

The picture shows the packages and their folders in layers: each is above everything that it imports. With --check
nothing is written and the exit status says whether page and picture are up to date.
"""

from __future__ import annotations

import argparse
import ast
import html
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from _pages import between

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "images" / "architecture.svg"
PACKAGES = ("pipelines", "evals", "dashboard", "recovery", "db")
ENTRY_POINT = "recovery/__main__.py"  # imports upward, on purpose
_LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\(\.\./(?P<file>[\w/]+\.py)(?:#L\d+)?\)")
_WIDTH, _ROW, _GAP, _TITLE = 1180, 30, 8, 26


def modules() -> dict[str, Path]:
    """Every module of the project by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: Iterable[str]) -> set[str]:
    """The modules that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & set(known)


def unit(path: Path, depth: int) -> str:
    """The file or folder that stands for a module at a depth: "pipelines", "pipelines/runtime"."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:depth])


def layers(depth: int, within: str | None = None) -> list[list[str]]:
    """Files and folders by layer, the lowest first; each is above all it imports. Raises SystemExit on a circle."""
    known = modules()
    imports: dict[str, set[str]] = {}
    for path in known.values():
        here = unit(path, depth)
        if path.name == "__init__.py" and path.parent == ROOT / (within or ""):
            continue
        if (within and not here.startswith(f"{within}/")) or path == ROOT / ENTRY_POINT:
            continue
        targets = {unit(known[name], depth) for name in imported(path, known)} - {here}
        imports.setdefault(here, set()).update(targets)
    level: dict[str, int] = {}
    left = dict(imports)
    while left:
        ready = [name for name, targets in left.items() if not (targets & left.keys())]
        if not ready:
            raise SystemExit(f"these import each other in a circle: {', '.join(sorted(left))}")
        for name in ready:
            level[name] = 1 + max((level.get(target, 0) for target in left[name]), default=0)
        for name in ready:
            del left[name]
    return [sorted(name for name, at in level.items() if at == layer) for layer in range(1, max(level.values()) + 1)]


def first_line(path: Path) -> str:
    """The first sentence of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").strip().rstrip(".")


def file_map() -> str:
    """One table for each package: file or folder, what it holds; folders list their files."""
    lines = []
    for package in PACKAGES:
        lines += [f"### {package}/", "", first_line(ROOT / package / "__init__.py") + ".", ""]
        lines += ["| layer | where | what |", "|---|---|---|"]
        levels = layers(2, package)
        if package == "recovery":
            levels[-1].append(ENTRY_POINT)
        for number in range(len(levels), 0, -1):
            for name in sorted(levels[number - 1], key=lambda one: (one.endswith(".py"), one)):
                lines.append(f"| {number} | {_cell(name)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def _cell(name: str) -> str:
    path = ROOT / name
    if path.is_file():
        return f"[`{path.name}`](../{name}) | {first_line(path)}"
    inside = sorted(one.name for one in path.iterdir() if one.suffix == ".py" and one.name != "__init__.py")
    inside += sorted(f"{one.name}/" for one in path.iterdir() if (one / "__init__.py").is_file())
    shown = ", ".join(f"`{one.removesuffix('.py')}`" for one in inside)
    return f"[`{path.name}/`](../{name}) | {first_line(path / '__init__.py')}: {shown}"


def picture() -> str:
    """The packages in layers as SVG, each with the layers inside it."""
    bands: list[str] = []
    top = 10
    for names in reversed(layers(1)):
        width = (_WIDTH - _GAP * (len(names) - 1)) / len(names)
        inner = {name: [level for level in reversed(layers(2, name)) if level] for name in names}
        height = _TITLE + max(len(levels) for levels in inner.values()) * _ROW + 14
        for number, name in enumerate(names):
            bands += _band(name, inner[name], number * (width + _GAP), top, width, height)
        top += height + 24
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 0 {_WIDTH + 20} {top}" '
            f'font-family="system-ui, sans-serif" font-size="13">',
            f'<rect x="-10" width="{_WIDTH + 20}" height="{top}" fill="#ffffff"/>',
            *bands,
            "</svg>",
            "",
        ]
    )


def _band(name: str, levels: list[list[str]], left: float, top: float, width: float, height: float) -> list[str]:
    shapes = [
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}" rx="8" fill="#f3f6fb" '
        f'stroke="#8fa3bf"/>',
        f'<text x="{left + 12:.0f}" y="{top + 19:.0f}" font-weight="600" fill="#1d2b3f">{name}/</text>',
    ]
    at = top + _TITLE
    for level in levels:
        each = (width - 24 - 6 * (len(level) - 1)) / len(level)
        for number, one in enumerate(level):
            x = left + 12 + number * (each + 6)
            folder = not one.endswith(".py")
            label = html.escape(_short(one, each, folder))
            shapes += [
                f'<rect x="{x:.0f}" y="{at:.0f}" width="{each:.0f}" height="{_ROW - 6}" rx="4" stroke="#b7c6da" '
                f'fill="{"#dbe7f6" if folder else "#ffffff"}"><title>{html.escape(one)}</title></rect>',
                f'<text x="{x + each / 2:.0f}" y="{at + 16:.0f}" text-anchor="middle" font-size="11" '
                f'fill="#1d2b3f">{label}</text>',
            ]
        at += _ROW
    return shapes


def _short(name: str, width: float, folder: bool) -> str:
    label = name.rpartition("/")[2].removesuffix(".py") + ("/" if folder else "")
    fits = max(3, int(width / 7))
    return label if len(label) <= fits else label[: fits - 1] + "…"


def with_lines(page: str) -> str:
    """The page with every link [`name`](../file.py) leading to the line where that name is defined.

    Raises SystemExit where a file does not define the name.
    """

    def link(found: re.Match[str]) -> str:
        line = _line_of(ROOT / found["file"], found["name"])
        return f"[`{found['name']}`](../{found['file']}#L{line})" if line else found[0].split("#")[0].rstrip(")") + ")"

    return _LINK.sub(link, page)


def _line_of(path: Path, name: str) -> int | None:
    if name == path.name:
        return None
    body: Iterable[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    line = None
    for part in name.split("."):
        node = next((one for one in body if part in _names(one)), None)
        if node is None:
            raise SystemExit(f"docs/architecture.md: {path.relative_to(ROOT)} does not define {name}")
        line, body = node.lineno, getattr(node, "body", [])
    return line


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {one.id for one in targets if isinstance(one, ast.Name)}


def written() -> Mapping[Path, str]:
    """Page and picture as they should be."""
    page = between(PAGE.read_text(encoding="utf-8"), "files", file_map())
    return {PAGE: with_lines(page), PICTURE: picture()}


def main() -> int:
    """Write, or with --check compare; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="Write nothing; fail where something is out of date.")
    check = parser.parse_args().check
    stale = [path for path, text in written().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is out of date: make docs" if check else f"wrote {path.relative_to(ROOT)}")
        if not check:
            path.write_text(written()[path], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
