"""Objects of a class that are alive, whoever holds them."""

from __future__ import annotations

import gc
from typing import TypeVar

T = TypeVar("T")


def live_objects(kind: type[T]) -> list[T]:
    """Every object of a class or of one derived from it that the garbage collector knows.

    Objects are not asked: ``isinstance`` wants their ``__class__``, and some make things for it.
    """
    kinds = _derived(kind)
    return [found for found in gc.get_objects() if type(found) in kinds]


def _derived(kind: type) -> set[type]:
    return {kind}.union(*map(_derived, type.__subclasses__(kind)))
