"""The review dashboard; reads the tracker and nothing else."""

PART_OF = "recovery"
