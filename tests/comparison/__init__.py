"""Comparisons of two runs; ``python -m tests.comparison.faults`` tries them on whole networks."""
