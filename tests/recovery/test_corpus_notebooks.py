"""Jupyter notebooks and MDX pages as Markdown."""

from __future__ import annotations

import json

import pytest

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


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("import Tabs from '@theme/Tabs';\nimport \"./a.css\"\n\nIt turns.", "It turns."),
        ("export const toc = [\n  {a: 1},\n\n  {b: 2},\n]\nIt turns.", "It turns."),
        ("export default function P({ children }) {\n  return <Page>{children}</Page>\n}\n\nIt turns.", "It turns."),
        ("<Tabs>\n  <TabItem label=\"North\">\n\n    It turns.\n\n    ```sh\n    # a\n    ```\n\n  </TabItem>\n</Tabs>",
         "North\n\nIt turns.\n\n```sh\n# a\n```"),
        ("Press <Kbd>C</Kbd> or\n<Kbd>D</Kbd>{' '}now. {/* not shown */}End.", "Press C or\nD now. End."),
        ("Edit <App>`a`</App><Pages>`b`</Pages>.", "Edit `a` `b`."),
        ("It turns.\n\n<Image\n  alt=\"A > map\"\n  src={a > b ? c : d}\n/>\n\nEnd.", "It turns.\n\nA > map\n\nEnd."),
        ("<aside>\n💡 It turns.\n\n</aside>\nEnd.", "💡 It turns.\n\nEnd."),
        ("a\n<aside>\n<img src=\"/i.svg\" alt=\"x\" width=\"40px\" />\n\nIt turns.\n</aside>", "a\n\nIt turns."),
        ("<aside>💡 It turns.</aside>\n\nEnd.", "💡 It turns.\n\nEnd."),
    ],
)  # fmt: skip
def test_markdown_loses_the_tags_of_components_and_callouts_not_their_text(tmp_path, written, text):
    assert read(tmp_path, a__md=written).documents[0].text == text


@pytest.mark.parametrize(
    "text",
    [
        'A List<String> and a Map<String, List<Integer>> of <Name> or Vec<T> { x } is {"a"}.',
        '<div align="center">The <b>tide</b> turns.</div>\n\n<Name> is yours.',
        "import duties are paid.\nexport default settings to a file.",
        "import 'duties' from the port by sea.",
        "export const is a form of words.",
        "Use `<Card>x</Card>` and `import a from 'b'`.\n\n```js\nimport a from 'b'\n<Card>x</Card>\n```",
        'The file:\n\n    <Project Sdk="x">\n      <Target>y</Target>\n    </Project>\n\nEnd.',
        "a < B and c > D, <Type> <T>, if x <Y and z> W.",
    ],
)
def test_what_only_looks_like_mdx_stays_in_markdown(tmp_path, text):
    assert read(tmp_path, a__md=text).documents[0].text == text
