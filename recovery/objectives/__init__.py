"""Objectives: how far a student is from its teacher, and the gradient that closes the gap."""
