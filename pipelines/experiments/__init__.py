"""Experiments: several arms on the same documents, cycles and seeds, and the page of their results."""
