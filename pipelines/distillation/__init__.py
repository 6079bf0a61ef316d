"""Distillation: one stage for every method."""
