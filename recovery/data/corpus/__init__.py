"""Document corpora: from a folder of files to clean text, and from text to rows of tokens.

Read in this order: ``documents`` says what a corpus is, ``folder`` walks a folder, ``readers`` convert one file to
text, ``holdout`` selects held-out text, ``rows`` tokenises documents into rows. ``sentences`` and ``cloze`` find
sentences and gaps to build questions from, and ``languages`` has the wordings of questions. Nothing is imported here:
what trains on rows needs no reader of files.
"""
