"""The runtime of every stage: session and life cycle, model loading, progress, signals."""
