"""Formats of the list of a model's layers."""
