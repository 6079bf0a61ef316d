"""Helper shared by the scripts that generate parts of pages."""

from __future__ import annotations

import re


def between(page: str, name: str, text: str) -> str:
    """Return the page with ``text`` between the two markers of that name. Raise SystemExit if the page lacks them."""
    marks = re.compile(rf"(<!-- {name} -->\n)(?:.*\n)*?(<!-- end of {name} -->)")
    if not marks.search(page):
        raise SystemExit(f"the page has no section {name}: add the markers <!-- {name} --> and <!-- end of {name} -->")
    return marks.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)
