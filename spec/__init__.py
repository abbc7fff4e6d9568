"""What must be true: the declaration language, and the scheduler declared in it."""
