"""Documents of a corpus snapshot as packed rows of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.data.corpus_snapshot import CorpusSnapshot
from recovery.batching import Row, pack
from recovery.data.corpus import Document, document_rows
from recovery.lazy_import import lazily
from recovery.workspace import Checkpoint

transformers = lazily("transformers")


def rows_of(tokenizer: Any, length: int, *corpora: CorpusSnapshot) -> list[Row]:
    """Return the documents of some snapshots as packed rows of at most ``length`` tokens; all tokens are targets."""
    return text_rows(tokenizer, length, [document for corpus in corpora for document in corpus.documents])


def text_rows(tokenizer: Any, length: int, documents: Sequence[Document]) -> list[Row]:
    """Return documents as packed rows of at most ``length`` tokens; all tokens are targets."""
    if not documents:
        return []
    return pack([(ids, [True] * len(ids)) for ids in document_rows(list(documents), tokenizer, length)], length)


def row_length(student: Checkpoint, wanted: int) -> int:
    """Return ``wanted`` tokens, or the model's number of positions if that is lower."""
    config = transformers.AutoConfig.from_pretrained(student.weights).get_text_config()
    return min(wanted, int(getattr(config, "max_position_embeddings", None) or wanted))
