"""Chooses rows to read: evenly spaced, with the first and the last."""

from __future__ import annotations


def evenly(count: int, most: int) -> list[int]:
    """Return at most ``most`` numbers from 0 to ``count`` - 1, always with the last."""
    if count <= most:
        return list(range(count))
    if most <= 1:
        return [count - 1]
    return [i * (count - 1) // (most - 1) for i in range(most)]
