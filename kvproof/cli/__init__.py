"""The command line: one file for each command, and nothing heavy imported before it is needed."""
