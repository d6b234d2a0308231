"""Formats of what ``why`` answers: each has ``suffix`` and ``render(report, view)``."""
