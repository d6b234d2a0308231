"""Samples of distributions that cut the graph: ``sample()`` where there is ``rsample()``."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gradscope.records.loop_figures import Draw
from gradscope.training.loop.script_lines import script_line

#: Class of the distribution, and the size of the last axis of what it gives.
_Key = tuple[str, int]


def distributions() -> Iterator[type]:
    """The classes of ``torch.distributions``."""
    module = sys.modules.get("torch.distributions.distribution")
    base = getattr(module, "Distribution", None)
    found: list[type] = [base] if isinstance(base, type) else []
    for kind in found:  # it grows
        derived: list[type] = kind.__subclasses__()
        found += [one for one in derived if one not in found]
        if kind.__module__.startswith("torch.distributions."):
            yield kind


@dataclass(slots=True)
class _Drawn:
    """The line of the first, in how many steps there was one, and the last of these."""

    line: str | None
    steps: int = 0
    latest: int = -1


class Draws:
    """Counts them.

    A score function (``log_prob`` of what was drawn) needs no gradient through it, so that a kind
    of distribution whose ``log_prob`` is used is left out; so is one that gives ``rsample`` to the
    loss, and ``sample`` to the reader.
    """

    def __init__(self) -> None:
        self._drawn: dict[_Key, _Drawn] = {}
        self._latest: tuple[weakref.ref[torch.Tensor], _Key] | None = None
        self._scored: set[_Key] = set()
        self._used: set[_Key] = set()

    def drew(self, distribution: Any, drawn: object, step: int, *, inside: bool) -> None:
        """Note a return of ``sample``; ``inside``: while a model ran, with gradients."""
        if not torch.is_grad_enabled() or not isinstance(drawn, torch.Tensor):
            return
        if not drawn.dim() or drawn.numel() < 2:  # one action: it is scored with others
            return
        if drawn.requires_grad or not getattr(distribution, "has_rsample", False):
            return
        own = vars(distribution).values()
        if not any(isinstance(one, torch.Tensor) and one.requires_grad for one in own):
            return
        key = _key(distribution, drawn)
        known = self._drawn.get(key)
        if known is None:
            line = script_line()
            known = self._drawn[key] = _Drawn(None if line is None else str(line))
        if known.latest != step:
            known.steps, known.latest = known.steps + 1, step
        if inside:
            self._used.add(key)
        elif key not in self._used:
            self._latest = weakref.ref(drawn), key

    def given(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note the inputs of a model's call with gradients: a sample may be among them."""
        if self._latest is not None:
            drawn, key = self._latest
            if any(one is drawn() for one in tensors):
                self._latest = None
                self._used.add(key)

    @property
    def waits(self) -> bool:
        """True if there is a sample that a model may get."""
        return self._latest is not None

    def scored(self, distribution: Any, value: object) -> None:
        """Note a call of ``log_prob``, or a return of ``rsample``, with gradients."""
        if isinstance(value, torch.Tensor) and value.dim() and torch.is_grad_enabled():
            self._scored.add(_key(distribution, value))

    def records(self) -> tuple[Draw, ...]:
        """Return the draws without a later call of ``log_prob``."""
        return tuple(
            Draw(kind=key[0], steps=one.steps, location=one.line, used=key in self._used)
            for key, one in self._drawn.items()
            if key not in self._scored
        )


def _key(distribution: object, value: torch.Tensor) -> _Key:
    return type(distribution).__name__, value.shape[-1]
