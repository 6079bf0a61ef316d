"""Document corpora: from a folder of files to clean text, and from text to rows of tokens.

Read in this order: ``folder`` walks a folder, ``readers`` convert one file to text, ``holdout`` selects held-out text,
``rows`` tokenises documents into rows. ``sentences`` and ``cloze`` find sentences and gaps to build questions from.
"""

from recovery.data.corpus.documents import Corpus, Document, ReadReport, Skipped
from recovery.data.corpus.folder import EmptyCorpusError, read_corpus
from recovery.data.corpus.rows import document_rows, end_of_document_id, training_texts
from recovery.data.corpus.text import normalise, text_hash

__all__ = [
    "Corpus",
    "Document",
    "EmptyCorpusError",
    "ReadReport",
    "Skipped",
    "document_rows",
    "end_of_document_id",
    "normalise",
    "read_corpus",
    "text_hash",
    "training_texts",
]
