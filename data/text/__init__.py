"""Your own text."""
