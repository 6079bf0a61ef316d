"""How the built-in miniature was made: its tasks, the suites of its folder, and its training from scratch."""
