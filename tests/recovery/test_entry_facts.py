"""Facts from what a reference says of a setting or a function in lines of their own: defaults, types and versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.blocks import ListItem, blocks
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.folder import read_corpus

SETTINGS = """Settings
========

``USE_TZ``
----------

Default: ``True``

Whether dates know their time zone.

.. versionchanged:: 5.0

   In older versions, the default value is ``False``.

``CACHES``
----------

Default::

    {"default": {}}

.. setting:: CACHES-TIMEOUT

``TIMEOUT``
~~~~~~~~~~~

Default: ``300`` (in seconds). A value of ``0`` disables it.

``DATABASES``
-------------

``TIMEOUT``
~~~~~~~~~~~

Default: 30.

worker_hijack
-------------

:Default: Disabled
:Type: bool

.. versionadded:: 2.1

``LOGGING``
-----------

Default: A logging configuration dictionary.

``THEME``
---------

Default: See :ref:`themes`.

``OLD_NAME``
------------

.. deprecated:: 3.1
   Use :setting:`NEW_NAME` instead.

About versions
--------------

.. versionadded:: 1.4
   ``FIRST`` and ``SECOND``

.. versionadded:: 1.5
"""
FUNCTIONS = """Client
======

.. class:: Dock(name, depth=5)

   A dock.

   :param str name: The name.
   :param int depth: The depth in metres. Defaults to 5.

   .. versionadded:: 2.2

   .. method:: moor(ropes=2)

      Moor a ship.

      :param ropes: How many ropes hold it (default 2).

      .. versionchanged:: 2.3
         Added the ``knots`` parameter.

   .. deprecated:: 3.0

.. confval:: limit
   :type: int
   :default: 9

   The limit.

.. option:: -s <n>, --speed <n>

   How fast it goes.

   Default: 4

   .. versionremoved:: 4.1
"""


CHANGE = "In which version did this change to"
HISTORY = "According to the version history of"


def found(tmp_path: Path, text: str, name: str) -> dict[str, str]:
    (tmp_path / name).write_text(text)
    return {fact.questions[0]: fact.value for fact in facts_of(read_corpus(tmp_path, held_out=0).documents)}


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ('What is the default value of the `USE_TZ` setting (see "Settings")?', "True"),
        ("What is the default value of the `TIMEOUT` setting of `CACHES`?", "300"),
        ("What is the default value of the `TIMEOUT` setting of `DATABASES`?", "30"),
        ('What is the default value of the `worker_hijack` setting (see "Settings")?', "Disabled"),
        ('What is the type of the `worker_hijack` setting (see "Settings")?', "bool"),
        ("In which version was `worker_hijack` introduced?", "2.1"),
        ("In which version was `OLD_NAME` deprecated?", "3.1"),
        ("What should you use instead of `OLD_NAME`?", "NEW_NAME"),
        (f'{CHANGE} `USE_TZ` come: "In older versions, the default value is `False`"?', "5.0"),
        (f'{HISTORY} "Settings", in which version were `FIRST` and `SECOND` introduced?', "1.4"),
    ],
)
def test_settings_that_are_sections_give_facts(tmp_path: Path, question: str, answer: str) -> None:
    assert found(tmp_path, SETTINGS, "settings.rst").get(question) == answer


def test_no_value_is_made_of_a_sentence_or_of_a_note_about_no_name(tmp_path: Path) -> None:
    facts = found(tmp_path, SETTINGS, "settings.rst")
    assert not any(word in question for question in facts for word in ("LOGGING", "THEME", "About versions"))
    assert "1.5" not in facts.values()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("In which version was `Dock()` introduced?", "2.2"),
        ("In which version was `Dock()` deprecated?", "3.0"),
        ("What is the default value of the `depth` parameter of `Dock()`?", "5"),
        ("What is the default value of the `ropes` parameter of `moor()`?", "2"),
        (f"{HISTORY} `Dock.moor()`, in which version was the `knots` parameter added?", "2.3"),
        ('What is the default value of `limit` (see "Client")?', "9"),
        ('What is the type of `limit` (see "Client")?', "int"),
        ('What is the default value of `--speed` (see "Client")?', "4"),
        ("In which version was `--speed` removed?", "4.1"),
    ],
)
def test_functions_and_options_give_facts(tmp_path: Path, question: str, answer: str) -> None:
    assert found(tmp_path, FUNCTIONS, "client.rst").get(question) == answer


@pytest.mark.parametrize(
    ("text", "question", "answer"),
    [
        (
            '## Options\n\n#### `audit-level`\n\n* Default: "low"\n* Type: String\n\nThe level.',
            "What is the default value of the `audit-level` option of `npm.config`?",
            "low",
        ),
        (
            "## `bodyLimit`\n\n**Changed in version 2.4:** The `exact` mode was added.",
            f'{HISTORY} "bodyLimit in npm.config", in which version was the `exact` mode added?',
            "2.4",
        ),
        (
            "## `bodyLimit`\n\n> New in version 2.3",
            "In which version was `bodyLimit` in `npm.config` introduced?",
            "2.3",
        ),
        (
            "## Settings\n\n#### sockets\n\n* Default: 50\n* Type: Number\n\n#### more\n\n> New in version 2.3",
            "What is the default value of the `sockets` setting of `npm.config`?",
            "50",
        ),
    ],
)
def test_markdown_of_this_form_gives_them_too(text: str, question: str, answer: str) -> None:
    facts = facts_of([Document("a.md", "npm.config", f"# npm.config\n\n{text}\n", "a.md")])
    assert {fact.questions[0]: fact.value for fact in facts}.get(question) == answer


def test_a_paragraph_behind_a_nested_list_is_of_the_outer_item() -> None:
    text = "- `one`: First.\n\n  Options:\n\n  - `a`: Its a.\n\n    More of a.\n\n  Default: 3\n\n- `two`: Second.\n"
    items = [block for block in blocks(Document("a.md", "A", text, "a.md")) if isinstance(block, ListItem)]
    assert [item.parts for item in items] == [
        ("`one`: First.", "Options:", "Default: 3"),
        ("`a`: Its a.", "More of a."),
        ("`two`: Second.",),
    ]
    assert [(item.within, item.intro) for item in items] == [("", ""), ("`one`: First.", "Options:"), ("", "")]
