"""Training: the training loop, resumable states, collapse detection."""
