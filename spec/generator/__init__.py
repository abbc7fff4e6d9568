"""The generator: reads a declaration and writes the Python of `core/`, which nobody edits."""
