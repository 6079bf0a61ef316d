"""The pipelines of all stages and commands."""

PART_OF = "recovery"
