"""Tasks of the miniature's world, one module per kind of example."""
