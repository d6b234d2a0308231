"""Measurements, not tests: ratios of whole processes or steps, taken side by side in one run."""
