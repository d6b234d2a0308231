"""What a record says of its own fields."""

from __future__ import annotations

#: Of a field that few records fill: JSON leaves it out where it has its default.
SPARSE = {"sparse": True}
