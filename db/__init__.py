"""The tracker."""

PART_OF = "recovery"
