"""The stages, in the order a person thinks of them."""

PART_OF = "recovery"
