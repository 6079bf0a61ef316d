"""Documents: from a folder of files to clean text, and from text to rows of tokens.

Read in this order: ``folder`` walks and reports, ``readers`` turn one file into text, ``holdout`` sets some text
aside, ``rows`` turns documents into token rows. ``sentences`` and ``gaps`` find what a question can be made of.
"""

from recovery.corpus.documents import Corpus, Document, ReadReport, Skipped
from recovery.corpus.folder import EmptyCorpusError, read_corpus
from recovery.corpus.rows import document_rows, end_of_document_id, training_texts
from recovery.corpus.text import normalise, text_hash

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
