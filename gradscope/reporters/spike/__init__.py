"""Formats of what ``spike`` says: each has ``suffix`` and ``render(report, view)``."""
