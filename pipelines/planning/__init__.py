"""Memory and time estimates for a configuration, without loading weights; full or LoRA, and what does not fit."""
