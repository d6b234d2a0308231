"""Observes random numbers: repeated seeds, and draws of distributions without a gradient."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.records.loop_figures import Draw, LoopFact
from gradscope.training.loop.script_lines import script_place

#: Class of the distribution, and the size of the last axis of what it gives.
_Key = tuple[str, int]


def distributions() -> Iterator[type]:
    """Yield the classes of ``torch.distributions``."""
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
    """The line of the first sample, the number of steps with a sample, and the last such step."""

    line: str | None
    steps: int = 0
    latest: int = -1


class Draws:
    """Counts samples of distributions that pass no gradient.

    With a score function (``log_prob`` of a sample) no gradient through the sample is needed, so
    distributions whose ``log_prob`` is used are left out. So are those with ``rsample`` for the
    loss and ``sample`` for display.
    """

    def __init__(self) -> None:
        self._drawn: dict[_Key, _Drawn] = {}
        self._latest: tuple[RememberedTensor, _Key] | None = None
        self._scored: set[_Key] = set()
        self._used: set[_Key] = set()

    def drew(self, distribution: Any, drawn: object, step: int, *, inside: bool) -> None:
        """Note a result of ``sample``; ``inside``: it was drawn during a model's call with
        gradients."""
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
            known = self._drawn[key] = _Drawn(script_place())
        if known.latest != step:
            known.steps, known.latest = known.steps + 1, step
        if inside:
            self._used.add(key)
        elif key not in self._used:
            self._latest = remembered(drawn), key

    def given(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note the inputs of a model's call with gradients: a sample may be among them."""
        if self._latest is not None:
            drawn, key = self._latest
            if any(one is drawn() for one in tensors):
                self._latest = None
                self._used.add(key)

    @property
    def waits(self) -> bool:
        """True if a drawn sample may still become a model's input."""
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


@dataclass(slots=True)
class _Seed:
    """The first line that set the seed, the number of steps that set it, and the last such step."""

    line: str | None
    steps: int = 0
    latest: int = -1


class Seeds:
    """Counts the steps in which ``torch.manual_seed`` was called with each seed.

    A new seed for each step, or a seed for each epoch, does not count.
    """

    #: More seeds than these are one for each step.
    MOST = 16

    def __init__(self) -> None:
        self._seeds: dict[int, _Seed] = {}

    def seeded(self, seed: object, step: int) -> None:
        """Note a call of ``torch.manual_seed`` after step ``step``."""
        if not isinstance(seed, int) or (seed not in self._seeds and len(self._seeds) >= self.MOST):
            return
        known = self._seeds.get(seed)
        if known is None:
            known = self._seeds[seed] = _Seed(None)
        if known.latest != step:
            known.steps, known.latest = known.steps + 1, step
        if step and known.line is None:  # the first may be the script's own start
            known.line = script_place()

    def facts(self) -> Iterator[LoopFact]:
        """Yield the facts on seeds, each with the number of its steps."""
        for seed, one in self._seeds.items():
            if one.steps > 1:
                figures = (float(seed),)
                yield LoopFact("seeded", count=one.steps, figures=figures, location=one.line)
