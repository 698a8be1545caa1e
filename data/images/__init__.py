"""Pictures, each of a class."""
