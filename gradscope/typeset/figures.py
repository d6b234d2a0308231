"""Figures by name, in words."""

from __future__ import annotations

from collections.abc import Mapping

from gradscope.typeset.numbers import count, number


def figure_words(figures: Mapping[str, object]) -> list[str]:
    """``knn_accuracy: 0.99`` as ``k-NN accuracy 0.9900``, one for each figure."""
    return [
        f"{name.replace('_', ' ').replace('knn', 'k-NN')} {_shown(value)}"
        for name, value in figures.items()
    ]


def _shown(value: object) -> str:
    if isinstance(value, int):
        return count(value)
    return number(value) if isinstance(value, float) else str(value)
