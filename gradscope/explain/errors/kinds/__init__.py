"""One file per kind of error, found by its name."""
