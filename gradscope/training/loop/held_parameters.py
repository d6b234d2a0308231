"""Collects facts on an optimizer's parameters that held in every step so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

#: Two factors that are the same, but for rounding.
_SAME = 1e-3

#: Number of zeros in a row that is no chance, whatever was before.
_MANY = 64


class HeldParameters:
    """Facts on the parameters of one optimizer, by their ids: the optimizer keeps them alive.

    Attributes:
        without: parameters without a gradient at any of its steps; None before the first.
        thawed: True if one of them got a gradient at a later step.
        removed: those of them that backward did give one, as far as gradients were read.
        zero: parameters whose gradient was exactly zero when last read, with the first such reading
            and its step.
        moved: frozen parameters that have a gradient, so that the optimizer moves them, with the
            number of such steps.
        zero_rates: by group, the number of steps with a learning rate of 0.
        steps: the number of steps.
        readings: the number of steps whose gradients were read.
        scaled: the number of steps read with a gradient scaler's factor in the gradients.
        peak: the highest learning rate of the first group so far; ``rate``: the latest.
        rises: True if the last change raised the rate and is recent, compared with the longest time
            between two changes.
        gone: the first step at which the rate was below a hundredth of the highest; 0 if it is not.
    """

    def __init__(self) -> None:
        self.without: set[int] | None = None
        self.thawed = False
        self.removed: set[int] = set()
        self.zero: dict[int, tuple[int, int]] = {}
        self.moved: dict[int, int] = {}
        self.zero_rates: list[int] = []
        self.steps = self.readings = self.scaled = 0
        self.peak = self.rate = 0.0
        self.gone = 0
        self._changed = self._gap = 0  # the step of the last change, and the longest without one
        self._rose = False
        self._frozen: list[tuple[nn.Parameter, int]] = []

    def step_begins(
        self,
        held: Collection[nn.Parameter],
        groups: Sequence[Mapping[str, Any]],
        *,
        cleared: bool,
    ) -> None:
        """Note the gradients that the optimizer is about to use; ``cleared`` ones prove nothing."""
        self.steps += 1
        if cleared:
            pass
        elif self.without is None:
            self.without = {id(p) for p in held if p.grad is None}
        elif self.without:
            without, count = self.without, len(self.without)
            without.difference_update([id(p) for p in held if p.grad is not None])
            self.thawed = self.thawed or len(without) < count
        self._frozen = []
        for parameter in held:
            if not parameter.requires_grad and parameter.grad is not None:
                self._frozen.append((parameter, parameter._version))
        rates = self.zero_rates
        for number, group in enumerate(groups):
            if number == len(rates):
                rates.append(0)
            rate = group.get("lr")
            if rate is not None and not rate:
                rates[number] += 1
        rate = groups[0].get("lr") if groups else None
        if rate is not None:
            self._rate(float(rate))

    @property
    def rises(self) -> bool:
        """True if the learning rate rises at regular steps, the latest of them recent."""
        return self._rose and self.steps - self._changed <= 1.5 * self._gap

    def _rate(self, rate: float) -> None:
        if rate != self.rate and self.steps > 1:
            self._rose = rate > self.rate
            self._gap = max(self._gap, self.steps - max(self._changed, 1))
            self._changed = self.steps
        self.rate = rate
        if rate > self.peak:
            self.peak = rate
        if rate >= self.peak / 100:
            self.gone = 0
        elif not self.gone:
            self.gone = self.steps

    def step_ended(self) -> None:
        """Note the end of a step."""
        for parameter, version in self._frozen:
            if parameter._version != version:
                self.moved[id(parameter)] = self.moved.get(id(parameter), 0) + 1
        self._frozen = []  # it keeps no parameter alive

    def read(
        self, norms: Mapping[nn.Parameter, float], held: Iterable[nn.Parameter], step: int
    ) -> None:
        """Note the norms of the gradients after backward, in this step of the run."""
        if not norms:
            return
        self.readings += 1
        before, now = self.zero, dict[int, tuple[int, int]]()
        if not before and 0.0 not in norms.values():  # as in nearly every step
            return
        for parameter in held:
            if norms.get(parameter, 0.0 if id(parameter) in before else None) == 0.0:
                now[id(parameter)] = before.get(id(parameter), (self.readings, step))
        self.zero = now

    def backward_gave(self, parameters: Iterable[nn.Parameter]) -> None:
        """Note the parameters that have a gradient after a backward."""
        if self.without:
            self.removed |= self.without.intersection(map(id, parameters))

    def zeros(self) -> set[int]:
        """Return the parameters whose gradient was zero in the last readings: in half of all, or in
        64. Shorter stretches are normal, for example for experts that the data choose.
        """
        return {
            one
            for one, (since, _) in self.zero.items()
            if self.readings - since + 1 >= min(_MANY, (self.readings + 1) / 2)
        }

    def readings_since(self, parameter: int) -> int:
        """Return in how many of the last readings a parameter's gradient was zero."""
        return self.readings - self.zero[parameter][0] + 1

    def are_scaled(self, before: float | None, after: float | None, scale: float | None) -> bool:
        """Return True if the gradients that the optimizer gets contain a gradient scaler's
        factor.

        Args:
            before: the norm of the loss's gradients, without the factor.
            after: the norm of the gradients that the optimizer gets.
            scale: the factor; None without one.
        """
        if not before or not after or scale is None or scale <= 1:
            return False
        scaled = abs(after / before / scale - 1) < _SAME
        self.scaled += scaled
        return scaled
