"""Evaluation of checkpoints, and acceptance of cycles by rules."""
