"""A file for each kind of error, found by its name."""
