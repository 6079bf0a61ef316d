"""What is measured."""

PART_OF = "recovery"
