"""Jupyter notebooks and MDX pages as Markdown."""

from __future__ import annotations

import json

from tests.corpus_reading import read, skipped


def test_notebooks_give_their_markdown_and_code_without_outputs(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Tides\n", "\n", "It turns twice. ![map](data:image/png;base64,AA)"]},
        {"cell_type": "code", "source": "# a comment\nprint(1)", "outputs": [{"text": ["1"]}]},
        {"cell_type": "raw", "source": "<b>no text</b>", "metadata": {}},
        {"cell_type": "code", "source": ""},
    ]  # fmt: skip
    about = {"kernelspec": {"language": "R", "name": "ir"}}
    (found,) = read(tmp_path, a__ipynb=json.dumps({"cells": cells, "metadata": about, "nbformat": 4})).documents
    assert found.title == "Tides"
    assert found.text == "# Tides\n\nIt turns twice. map\n\n```r\n# a comment\nprint(1)\n```"


def test_notebooks_of_version_3_have_worksheets_and_headings(tmp_path):
    cells = [
        {"cell_type": "heading", "level": 2, "source": ["Tides"]},
        {"cell_type": "code", "language": "python", "input": ["x = 1\n", "y = 2"], "outputs": []},
    ]
    old = json.dumps({"worksheets": [{"cells": cells}], "metadata": {"name": ""}, "nbformat": 3})
    corpus = read(tmp_path, a__ipynb=old, b__ipynb="{", c__ipynb="[1]", d__ipynb='{"a": 1}', e__ipynb='{"cells": []}')
    assert corpus.documents[0].text == "## Tides\n\n```python\nx = 1\ny = 2\n```"
    assert skipped(corpus) == {
        "b.ipynb": "not a notebook: no valid JSON",
        "c.ipynb": "not a notebook: no object with cells",
        "d.ipynb": "not a notebook: no list of cells",
        "e.ipynb": "no text in the notebook",
    }


MDX = """---
title: Tides
---
import { Card } from '../card'
export const height = {
  low: 1,
}

{/* not shown */}
The tide <b>turns</b> twice a day{" "}at 6:00, and `<Card>` is code.

<Card title="When to sail" on={() => { if (a > b) go() }}>
    Sail at high water.

    ```js
    import x from 'y'
      const a = <Card title="no">
    ```

    - North dock
      - Deep water
</Card>

<Note>Pay the master.</Note>

Depth is 3 < 4 metres.
import duties are paid at the gate.
"""


def test_mdx_is_markdown_without_modules_and_tags_but_with_the_content_of_components(tmp_path):
    (found,) = read(tmp_path, a__mdx=MDX).documents
    assert found.title == "Tides"
    assert found.text == (
        "# Tides\n\nThe tide turns twice a day at 6:00, and `<Card>` is code.\n\n"
        "When to sail\n\nSail at high water.\n\n"
        "```js\nimport x from 'y'\n  const a = <Card title=\"no\">\n```\n\n- North dock\n  - Deep water\n\n"
        "Pay the master.\n\nDepth is 3 < 4 metres.\nimport duties are paid at the gate."
    )


def test_a_sign_of_comparison_begins_no_tag(tmp_path):
    text = (
        "Keep the latency < 5 ms.\n\n## Ports\n\nThe gateway listens on port 7443.\n\n> The <b>quota</b> is <>40</>.\n"
    )
    (found,) = read(tmp_path, a__mdx=text).documents
    assert "latency < 5 ms." in found.text and "port 7443" in found.text and "> The quota is 40." in found.text


def test_mdx_with_tags_that_never_end_takes_linear_time(tmp_path):
    hostile = "The tide turns twice a day.\n\n" + "<Card {" * 30_000 + "`" * 30_000 + "{/*" * 30_000
    assert "tide turns" in read(tmp_path, a__mdx=hostile).documents[0].text
