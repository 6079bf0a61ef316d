"""Losses: divergences between student and teacher, policy gradients, and their closed-form gradients."""
