"""Training: the training loop, one update of it, and the states from which a run resumes."""
