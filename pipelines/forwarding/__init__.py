"""Copies of the tracker's records in other trackers: Weights & Biases, MLflow, Trackio, SwanLab."""
