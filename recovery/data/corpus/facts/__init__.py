"""Rule-based extraction of facts from tables, option lists, version histories, definitions and stated defaults.

Read in this order: ``fact`` defines a fact, ``blocks`` parses tables, lists and paragraphs, ``tables`` and ``prose``
hold the extraction rules, the latter also those for other languages than English, ``templates`` verbalises facts,
``extraction`` has the rules of lists, collects all facts and drops ambiguous ones. No rule needs a model or depends on
the subject of the documents.
"""
