"""Count the words of the documentation that are written by hand: ``python docs/count_words.py``.

Not counted: pages that are wholly generated from records (``GENERATED``), what lies between the markers of a generated
part (``<!-- NAME -->`` to ``<!-- end of NAME -->``), the log and the change log. A word is what stands between spaces.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 40_000
PAGES = (
    "README.md CONTRIBUTING.md docs/**/*.md benchmarks/README.md examples/*/README.md requirements/README.md".split()
)
GENERATED = {"real.md", "horizon.md", "studies.md", "results.md", "reliability.md"}
PART = re.compile(r"<!-- (?P<name>[\w ]+) -->.*?<!-- end of (?P=name) -->", re.DOTALL)


def counts() -> dict[str, int]:
    """Return the number of words written by hand of each page, by its path, the longest first."""
    paths = [path.relative_to(ROOT) for pattern in PAGES for path in ROOT.glob(pattern)]
    left_out = {("docs", name) for name in ("log", "log.md", *GENERATED)}
    kept = [path for path in paths if path.parts[:2] not in left_out]
    found = {str(path): len(PART.sub("", (ROOT / path).read_text(encoding="utf-8")).split()) for path in kept}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    found = counts()
    print(*(f"{words:6,}  {path}" for path, words in found.items()), sep="\n")
    print(f"{sum(found.values()):6,}  of at most {LIMIT:,}")
