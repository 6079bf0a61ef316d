"""Mid-training: a cycle's documents, their plan, the stage."""
