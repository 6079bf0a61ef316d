"""Rollout engines, which sample completions."""
