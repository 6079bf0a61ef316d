"""Evaluation of checkpoints, figures of stored items (gap closed, K), and acceptance of cycles by rules."""
