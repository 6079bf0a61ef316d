"""Document corpora: from a folder of files to clean text.

Read in this order: ``documents`` says what a corpus is, ``folder`` walks a folder, ``readers`` convert one file to
text, ``holdout`` selects held-out text. ``sentences`` and ``cloze`` find sentences and gaps to build questions from,
and ``languages`` has the wordings of questions. Nothing is imported here: who trains on a corpus needs no reader of
files.
"""
