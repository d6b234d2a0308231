"""Finds replay buffers whose items share an array: an environment returned its own state, and
changes it in place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch

from gradscope.records.loop_figures import LoopFact
from gradscope.training.discovery import names_of, script_lists
from gradscope.training.loop.script_lines import main_file, written

#: The samples in which the script's lists are searched.
_SAMPLES = (3, 6, 9)
#: A shorter list says little; so many of its items are compared.
_FEWEST, _MOST = 16, 2048
#: A transition has a state, an action, a reward and the next state.
_FIELDS = 4


class SharedArrays:
    """Searches the lists in the script's variables for tuples that share arrays."""

    def __init__(self) -> None:
        self._found: dict[str, LoopFact] = {}

    def read(self, sample: int) -> None:
        """Search in a sampled step, if it is time to."""
        if sample not in _SAMPLES:
            return
        known = set[int]()  # in this search: a function may call a list by another name
        for name, items in script_lists():
            if len(items) >= _FEWEST and id(items) not in known and name not in self._found:
                known.add(id(items))
                kept = list(items)[:_MOST]
                for words, array in _shared(kept):
                    lines = _lines_of(array)
                    if lines is not None:
                        given, written_at = lines
                        self._found[name] = LoopFact(
                            "shared-array",
                            name,
                            count=len(kept),
                            words=(written_at, *words),
                            location=given or written_at,
                        )
                        break

    def facts(self) -> Iterator[LoopFact]:
        """Yield a fact for each list: the line that writes into the array, and the names of the
        fields that are one array, if these are two of each item."""
        yield from self._found.values()


def _shared(items: Sequence[Any]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the fields of transitions that are one array in all items, or two of which are one
    array in each."""
    first = items[0]
    width = len(first) if isinstance(first, tuple | list) else 0
    if width < _FIELDS or not any(isinstance(one, int | float | np.generic) for one in first):
        return
    if not all(isinstance(one, tuple | list) and len(one) == width for one in items):
        return
    fields = list(zip(*items, strict=True))
    arrays = [i for i in range(width) if isinstance(first[i], np.ndarray | torch.Tensor)]
    for i in arrays:
        if all(one is first[i] for one in fields[i]):
            yield (), first[i]
    names = getattr(first, "_fields", None) or [str(i + 1) for i in range(width)]
    for i, j in combinations(arrays, 2):
        if all(one is other for one, other in zip(fields[i], fields[j], strict=True)):
            yield (str(names[i]), str(names[j])), items[-1][i]


def _lines_of(array: object) -> tuple[str | None, str] | None:
    """Return the line that returns an array by one of its names, and the one that writes into it:
    ``return self.state``, ``self.state += move``; None if the text writes nowhere."""
    file = main_file()
    if file is None:
        return None
    for name in sorted({re.escape(one.rpartition(".")[2]) for one in names_of(array)}):
        for pattern in (rf"\.{name}\s*[-+*/]=", rf"\.{name}\s*\[[^\]]*\]\s*[-+*/]?=[^=]"):
            line = written(pattern, file)
            if line is not None:
                return written(rf"\breturn\b.*\.{name}(?!\w|\.|\()", file), line
    return None
