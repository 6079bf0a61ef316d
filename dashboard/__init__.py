"""Review dashboard; reads the tracker only."""

PART_OF = "recovery"
