"""Facts that documents state plainly: in tables, lists of options, version histories, definitions, defaults.

Read in this order: ``record`` is a fact, ``blocks`` finds the tables, lists and paragraphs of a document, ``tables``,
``lists`` and ``prose`` hold the rules, ``wording`` puts facts into words, ``gather`` collects and drops what is
ambiguous. No rule needs a model, and none knows what the documents are about.
"""

from recovery.corpus.facts.enumerated import enumerations
from recovery.corpus.facts.gather import facts_of, pick_facts
from recovery.corpus.facts.record import Fact, Stated

__all__ = ["Fact", "Stated", "enumerations", "facts_of", "pick_facts"]
