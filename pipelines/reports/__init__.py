"""Reports: a cycle's report, a model card, the cost of a checkpoint."""
