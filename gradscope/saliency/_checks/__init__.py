"""Checks how far a map can be trusted: one check per file, which returns a dict of plain values per
image.

A check is a function of the subject and the maps [N, H, W].
"""

from __future__ import annotations

#: Result of a check for one image's map: numbers and sentences for the record.
CheckResults = dict[str, "float | str | list[tuple[str, float | None]] | None"]

__all__ = ["CheckResults"]
