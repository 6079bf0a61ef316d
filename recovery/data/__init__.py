"""Behaviour prompts, document corpora, questions about documents, and instruction checkers."""
