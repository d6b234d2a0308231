"""Finds the cause of a missing gradient, by a second forward that follows the parameter's data."""
