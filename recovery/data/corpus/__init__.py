"""Document corpora: from a folder of files to clean text, and from text to rows of tokens.

Read in this order: ``folder`` walks a folder, ``readers`` convert one file to text, ``holdout`` selects held-out text,
``rows`` tokenises documents into rows. ``sentences`` and ``cloze`` find sentences and gaps to build questions from, and
``languages`` has the wordings of questions.
"""

from recovery.data.corpus.documents import Corpus, Document, ReadReport, Skipped, sampled
from recovery.data.corpus.folder import EmptyCorpusError, read_corpus
from recovery.data.corpus.rows import document_rows, end_of_document_id
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
    "sampled",
    "text_hash",
]
