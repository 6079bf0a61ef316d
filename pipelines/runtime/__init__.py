"""The runtime of every stage: session and life cycle, names of checkpoints, model loading, progress, signals."""
