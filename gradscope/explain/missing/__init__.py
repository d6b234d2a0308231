"""Cause of a parameter's missing gradient: a second forward that follows the parameter's data."""
