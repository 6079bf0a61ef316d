"""What the scripts that write parts of pages share."""

from __future__ import annotations

import re


def between(page: str, name: str, text: str) -> str:
    """The page with ``text`` between the two markers of that name. Ends the script where it has no such markers."""
    marks = re.compile(rf"(<!-- {name} -->\n)(?:.*\n)*?(<!-- end of {name} -->)")
    if not marks.search(page):
        raise SystemExit(f"the page has no place for {name}: it begins at <!-- {name} -->")
    return marks.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)
