"""Build the documentation site in build/site: `make site`.

The pages are the Markdown files that GitHub shows. They are copied to build/site-pages with one change: a link that
leaves docs/ leads to a copy in the site, of a Markdown file under repository/, of any other file or folder, with
highlighted lines, under source/. zensical builds the site in strict mode; afterwards every link of the built pages
is followed to its file and its anchor. A broken one is printed, and the exit status is 1.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "site-pages"
SITE = ROOT / "build" / "site"
LINK = re.compile(r"(?P<head>\]\()(?P<target>[^)#\s]+)(?:#(?P<anchor>[^)\s]*))?\)")
CODE = re.compile(r"(^(?P<fence>```|~~~).*?^(?P=fence)\s*?$)", re.MULTILINE | re.DOTALL)


class Staging:
    """Copies pages and what they refer to; ``broken`` holds the links that lead nowhere."""

    def __init__(self) -> None:
        self.waiting = sorted(DOCS.rglob("*.md"))
        self.known = set(self.waiting)
        self.sources: set[Path] = set()
        self.broken: list[str] = []

    def run(self) -> None:
        """Write every page, every other file that one refers to, and the files of the folders."""
        shutil.rmtree(PAGES, ignore_errors=True)
        write(PAGES / "site.css", (DOCS / "site.css").read_text("utf-8"))
        while self.waiting:
            self.page(self.waiting.pop())
        for path in sorted(self.sources):
            self.source(path)

    def page(self, path: Path) -> None:
        """Write one Markdown file with its links rewritten, except in code blocks."""
        parts = CODE.split(path.read_text("utf-8"))  # text, code, its fence, text, ...
        parts[::3] = [LINK.sub(lambda found: self.link(path, found), part) for part in parts[::3]]
        write(staged(path), "".join(part for number, part in enumerate(parts) if number % 3 != 2))

    def link(self, page: Path, found: re.Match[str]) -> str:
        """Return one link of a page for the site, and note what it refers to."""
        target, anchor = found["target"], found["anchor"]
        if urlsplit(target).scheme:
            return found[0]
        path = Path(os.path.normpath(page.parent / unquote(target)))
        if not path.exists() or not path.is_relative_to(ROOT):
            self.broken.append(f"{page.relative_to(ROOT)}: {target} does not exist")
            return found[0]
        if path.suffix == ".md":
            if path not in self.known:
                self.known.add(path)
                self.waiting.append(path)
        else:
            self.add_source(path)
            anchor = re.sub(r"^L(\d+)$", r"L-\1", anchor) if anchor else anchor
        relative = os.path.relpath(staged(path), staged(page).parent)
        return f"{found['head']}{relative}{f'#{anchor}' if anchor else ''})"

    def add_source(self, path: Path) -> None:
        """Note a file or a folder, and the files in a folder."""
        self.sources.add(path)
        if path.is_dir():
            self.sources.update(tracked(path))

    def source(self, path: Path) -> None:
        """Write a folder as a list, a text file with numbered lines, a picture as it is."""
        if path.is_dir():
            items = [(os.path.relpath(staged(file), staged(path).parent), file) for file in tracked(path)]
            rows = [f'<li><a href="{link}">{html.escape(str(file.relative_to(path)))}</a></li>' for link, file in items]
            write(staged(path), frame(path, f"<ul>{''.join(rows)}</ul>"))
        elif is_picture(path):
            staged(path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, staged(path))
        else:
            try:
                lexer = get_lexer_for_filename(path.name)
            except ClassNotFound:
                lexer = TextLexer()
            formatter = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, noclasses=True)
            write(staged(path), frame(path, highlight(path.read_text("utf-8"), lexer, formatter)))


def tracked(folder: Path) -> list[Path]:
    """Return the text files of a folder that git tracks."""
    command = ["git", "ls-files", "-z", "--", str(folder)]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    shown = [name for name in names if name and not name.endswith((".safetensors", ".zip"))]
    return [ROOT / name for name in shown if not is_picture(ROOT / name)]


def is_picture(path: Path) -> bool:
    """Whether a file is copied as it is."""
    return path.suffix in {".png", ".svg"}


def staged(path: Path) -> Path:
    """Return the place of a file of the repository among the pages of the site."""
    if path.is_relative_to(DOCS) and (path.suffix == ".md" or is_picture(path)):
        return PAGES / path.relative_to(DOCS)
    inside = path.relative_to(ROOT)
    if path.suffix == ".md":
        return PAGES / "repository" / inside
    if path.is_dir():
        return PAGES / "source" / inside / "index.html"
    return PAGES / "source" / inside.parent / (inside.name if is_picture(path) else f"{inside.name}.html")


def frame(path: Path, body: str) -> str:
    """Return a plain HTML page that shows a file or a folder."""
    name = html.escape(str(path.relative_to(ROOT)))
    home = os.path.relpath(PAGES / "index.html", staged(path).parent)
    style = "body{margin:1.5rem;font:15px sans-serif}pre{font-size:13px;line-height:1.4}:target{background:#fd6}"
    head = f'<meta charset="utf-8"><title>{name}</title><style>{style}</style>'
    return f'<!doctype html><html lang="en">{head}<p><a href="{home}">Recovery</a> / {name}</p>{body}</html>\n'


def write(path: Path, text: str) -> None:
    """Write a text file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


class Anchors(HTMLParser):
    """The links of an HTML page and the ids that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect one element's link and id."""
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.ids.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield the links between the pages of a built site that lead to no file or no anchor."""
    pages = {page: Anchors(page.read_text("utf-8")) for page in sorted(site.rglob("*.html"))}
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#" or page.name == "404.html":
                continue
            target = page if not parts.path else Path(os.path.normpath(page.parent / unquote(parts.path)))
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{page.relative_to(site)}: {link} leads to no file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{page.relative_to(site)}: {link} leads to no anchor"


def main() -> int:
    """Copy the pages, build the site, follow its links; return the exit status."""
    staging = Staging()
    staging.run()
    if staging.broken:
        print(*staging.broken, sep="\n")
        return 1
    zensical = Path(sys.executable).parent / "zensical"
    built = subprocess.run([str(zensical), "build", "--clean", "--strict"], cwd=ROOT, check=False).returncode
    if built:
        return built
    broken = sorted(set(broken_links(SITE)))
    print(*broken, sep="\n", end="\n" if broken else "")
    count = len(list(SITE.rglob("*.html")))
    print(f"{count} pages in {SITE.relative_to(ROOT)}: {len(broken) or 'no'} broken links")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
