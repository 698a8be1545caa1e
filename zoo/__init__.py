"""The same block in other shapes, and the simpler models that lead up to it."""
