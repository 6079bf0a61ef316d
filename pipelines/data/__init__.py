"""Data of a cycle: its documents with their questions and probes, snapshots, newer versions, rows, augmentation."""
