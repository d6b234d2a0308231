"""Checks of a map's trustworthiness: one per file, each gives a dict of plain values per image.

To add a check, add a file with a function of the subject and the maps [N, H, W].
"""

from __future__ import annotations

#: Result of a check for one image's map: numbers and sentences for the record.
CheckResults = dict[str, "float | str | list[tuple[str, float | None]] | None"]

__all__ = ["CheckResults"]
