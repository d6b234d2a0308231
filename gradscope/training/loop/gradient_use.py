"""Checks by identity and version whether an optimizer's step gets the right gradients."""

from __future__ import annotations

import weakref

import torch
from torch.optim import Optimizer

from gradscope.capture.shards import version_of

State = tuple[int, int] | None


class GradientUse:
    """The gradients of one optimizer between two of its steps, represented by one of its parameters
    with a gradient.

    Facts of a step:

    - "uncleared": backward added to gradients that the step before has used already
    - "cleared": the gradients were cleared between the last backward and the step
    - "none": no parameter has a gradient, though backward was called
    - "again": there was no backward since the step before, and the gradients have not changed
    - "unreached": there was a backward, and it did not change the gradients
    - "mixed": another optimizer made a step on a loss that also gave gradients to these parameters,
      and a loss on another line then added to these gradients
    - "closure": the optimizer calls a function that computes them, perhaps several times, and uses
      each result

    Attributes:
        backwards: since the last step.
        mixed: the lines of the two backwards of a "mixed" step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._probe: tuple[int, int, int] | None = None  # its group, its place there, and its id
        self._used: State = None  # what the last step left
        self._stale = False  # a backward adds to that
        self._cleared = False  # something was, since the last backward
        self.backwards = 0
        self.mixed: tuple[str | None, str | None] | None = None
        self._numbers: float | None = None  # their sum, where the script writes them itself
        self._clear: State = None  # what clearing left
        self._other: tuple[State, str | None] | None = None  # what was there as another stepped
        self._called = False  # a model was, since then
        self._adds: tuple[str | None, str | None] | None = None

    @property
    def is_cleared(self) -> bool:
        """True if gradients were cleared since the last backward."""
        return self._cleared or (self.backwards == 0 and self._state() is None)

    def backward_begins(self, line: str | None) -> None:
        """Note a backward, which adds to the present gradients, and its line."""
        self.backwards += 1
        self._cleared = False
        if self._other is not None:
            state, before = self._other
            if self._state() != state:
                self._other = None
            elif before != line and self._called:
                self._adds = before, line
        if self._used is None:
            return
        now = self._state()
        if now == self._used:  # an optimizer may clear them by itself
            self._stale = self._stale or self._holds_numbers()
        elif now is None:
            self._stale, self._used = False, None

    def cleared(self) -> None:
        """Note a call of ``zero_grad``, perhaps on other parameters."""
        self._cleared, self._other, self._adds = True, None, None
        self._clear = self._state()
        if self._used is not None and self._state() != self._used:
            self._stale, self._used = False, None

    def other_stepped(self, line: str | None) -> None:
        """Note another optimizer's step, and the line of the last backward."""
        now = self._state()
        if self.backwards and now is not None and now not in (self._used, self._clear):
            self._other, self._called = (now, line), False

    def called(self) -> None:
        """Note a call with gradients: later backwards belong to another forward."""
        self._called = True

    def step_begins(self, *, closure: bool) -> frozenset[str]:
        """Return the facts of the step that begins, from the present gradients."""
        facts: set[str] = {"closure"} if closure else set()
        now, used = self._state(), self._used
        if now is None:
            self._probe = self._new_probe()
            self._stale = False
            if self._probe is None and self.backwards:
                facts.add("cleared" if self._cleared else "none")
        elif used is not None and now == used:
            if self.backwards:
                facts.add("unreached")
            else:
                facts.add("again")
                before, self._numbers = self._numbers, self._sum()
                if before is not None and before != self._numbers:
                    facts.discard("again")  # the script has written to them, past the version
        elif self._cleared and self.backwards and not self._holds_numbers():
            facts.add("cleared")
        elif self._stale:
            facts.add("uncleared")
        elif self._adds is not None and self._other is not None and now != self._other[0]:
            facts.add("mixed")
            self.mixed = self.mixed or self._adds
        return frozenset(facts)

    def step_ended(self) -> None:
        """Note that the optimizer has used the gradients."""
        if self.backwards:
            self._numbers = None
        self._used, self._stale, self._cleared, self.backwards = self._state(), False, False, 0
        self._other = self._adds = None

    def _new_probe(self) -> tuple[int, int, int] | None:
        optimizer = self._optimizer()
        for group, settings in enumerate(() if optimizer is None else optimizer.param_groups):
            for place, parameter in enumerate(settings["params"]):
                if parameter.grad is not None:
                    return group, place, id(parameter)
        return None

    def _state(self) -> State:
        gradient = self._gradient()
        return None if gradient is None else version_of(gradient)

    def _holds_numbers(self) -> bool:
        gradient = self._gradient()
        return gradient is not None and bool(gradient.detach().any())

    def _sum(self) -> float:
        gradient = self._gradient()
        return 0.0 if gradient is None else float(gradient.detach().double().sum())

    def _gradient(self) -> torch.Tensor | None:
        optimizer = None if self._probe is None else self._optimizer()
        if optimizer is None or self._probe is None:
            return None
        group, place, number = self._probe
        groups = optimizer.param_groups
        held = groups[group]["params"] if group < len(groups) else ()
        probe = held[place] if place < len(held) else None
        return None if probe is None or id(probe) != number else probe.grad
