"""The miniature: a small fictional world and a language model trained on it, for complete runs in minutes on a CPU.

    materialise(folder)                write the shipped model as a Hugging Face folder
    write_corpora(folder, count, seed) write corpora of the world as folders of Markdown

Model and files have the usual formats: no other part of the project treats them specially. How the model was trained,
and its suites generated, is in examples/miniature.
"""

from __future__ import annotations

from recovery.miniature.corpora import write_corpora
from recovery.miniature.package import materialise

__all__ = ["materialise", "write_corpora"]
