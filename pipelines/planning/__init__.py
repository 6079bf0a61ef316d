"""Memory and time estimates for a configuration, without loading weights."""
