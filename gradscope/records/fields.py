"""Metadata of record fields."""

from __future__ import annotations

#: Of a field that few records fill: JSON leaves it out where it has its default.
SPARSE = {"sparse": True}


def renamed(old: str, *, sparse: bool = False) -> dict[str, object]:
    """Metadata of a field that had another name: readers take both."""
    return {"old_name": old, **(SPARSE if sparse else {})}
