"""Names, and to how many girls and boys each was given."""
