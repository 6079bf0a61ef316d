"""The command line: one module per command; each imports its pipeline inside the command function."""
