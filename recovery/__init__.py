"""Recovery: mid-train an instruct model on documents and restore its behaviour by on-policy distillation."""

PART_OF = "recovery"
__version__ = "0.1.0"
