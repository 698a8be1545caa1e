"""The Odyssey in Samuel Butler's prose."""
