"""Inputs of one kind, one after the other: for the same seed the same ones."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from fuzz.attempts import Attempt
from fuzz.strategies import STRATEGIES


def each(kind: str, make: Callable[[Attempt], None], *, count: int, seed: int) -> None:
    """Call ``make`` with so many inputs of a kind."""

    @seeded(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(STRATEGIES[kind])
    def made(attempt: Attempt) -> None:
        make(attempt)

    made()
