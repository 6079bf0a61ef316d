"""The command line: one thin file a command, each importing its pipeline inside the command function."""
