"""Data of a cycle: corpus snapshots, document rows, augmentation, packages from registries."""
