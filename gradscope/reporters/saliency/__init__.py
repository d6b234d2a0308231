"""Formats of a saliency report, and the list of the methods."""
