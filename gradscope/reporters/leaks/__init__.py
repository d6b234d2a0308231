"""Formats of what ``leaks`` found: each has ``suffix`` and ``render(report, view)``."""
