"""Explains an exception: its kind, the conflicting operands, the smallest fix."""
