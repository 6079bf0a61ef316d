"""What is measured: instruction following, knowledge, retention, and the statistics that compare them."""

PART_OF = "recovery"
