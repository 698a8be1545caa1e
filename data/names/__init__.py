"""Names: short documents, one character a token."""
