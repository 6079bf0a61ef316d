"""Recovery: teach a model new documents, and give it back the behaviour it lost on the way."""

PART_OF = "recovery"
__version__ = "0.1.0"
