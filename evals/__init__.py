"""Evaluation suites (instruction following, knowledge, retention, drift) and the statistics that compare scores."""

PART_OF = "recovery"
