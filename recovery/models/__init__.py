"""Models: loading, chat templates, output heads, attention, sharding, checkpoints on disk."""
