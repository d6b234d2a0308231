"""Records how a loop uses its optimizers, alive or freed.

Checks by identity and version whether their steps get the right gradients.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.capture.names import named_parameters
from gradscope.capture.shards import version_of
from gradscope.records.loop import LoopOptimizer, LoopParameter
from gradscope.training.loop.held_parameters import HeldParameters
from gradscope.training.loop.rounds import inner
from gradscope.training.loop.script_lines import (
    ScriptLine,
    call_of,
    script_place,
    set_elsewhere,
    written_rate,
)
from gradscope.training.models import Models
from gradscope.training.optimizers import LastingParameters, ObservedOptimizer, Optimizers

State = tuple[int, int] | None


#: How often another parameter is chosen because the gradient of the present one is exactly zero,
#: as behind dead units.
_CHOICES = 3


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
        self._zero = False  # its gradient is exactly zero, though nothing cleared it
        self._choices = _CHOICES
        self._used: State = None  # what the last step left
        self._stale = False  # a backward adds to that
        self._cleared = False  # something was, since the last backward
        self.backwards = 0
        self.mixed: tuple[str | None, str | None] | None = None
        self._numbers: float | None = None  # their sum, where the script writes them itself
        self._before: State = None  # what was there before `zero_grad`, perhaps of others
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
            before = self._other[1]
            if self._note_writes():
                self._other = None
            elif before != line and self._called:
                self._adds = before, line
        if self._used is None:
            return
        now = self._state()
        if now == self._used:  # an optimizer may clear them itself
            self._stale = self._stale or self._holds_numbers()
            self._zero = not self._stale
        elif now is None:
            self._stale, self._used = False, None

    def clearing(self) -> None:
        """Note the start of ``zero_grad``, perhaps on other parameters."""
        self._note_writes()
        self._before = self._state()

    def _note_writes(self) -> bool:
        """Return True if the script has written to the gradients since another optimizer's step;
        then they are cleared."""
        if self._other is None or self._state() == self._other[0]:
            return False
        if self._stale:
            self._stale, self._used = False, None
        return True

    def cleared(self) -> None:
        """Note the end of ``zero_grad``, perhaps on other parameters."""
        now = self._state()
        self._other = self._adds = None
        self._clear = now
        if now is not None and now == self._before:  # its own gradients are as before
            return
        self._cleared = True
        if now != self._used:
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
        if self._zero and self._choices:
            self._zero, self._choices = False, self._choices - 1
            self._probe = self._new_probe(nonzero=True) or self._probe
        self._used, self._stale, self._cleared, self.backwards = self._state(), False, False, 0
        self._other = self._adds = None

    def _new_probe(self, *, nonzero: bool = False) -> tuple[int, int, int] | None:
        optimizer = self._optimizer()
        for group, settings in enumerate(() if optimizer is None else optimizer.param_groups):
            for place, parameter in enumerate(settings["params"]):
                gradient = parameter.grad
                if gradient is not None and (not nonzero or bool(gradient.detach().any())):
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


class OptimizerUse:
    """The observed use of an optimizer."""

    def __init__(self, optimizer: Optimizer, made: ScriptLine | None, number: int) -> None:
        self.made, self.number = made, number
        self.use, self.parameters = GradientUse(optimizer), HeldParameters()
        self.facts = frozenset[str]()
        self.backwards = 0  # after which its parameters had gradients, before its first step
        self.fresh = False  # the last backward is not among them yet
        self.reached: str | None = None  # where the first of these backwards is
        # Its last record: at the end of a script, an optimizer that a function made no longer
        # exists.
        self.record: LoopOptimizer | None = None
        self.held: dict[int, LoopParameter] = {}
        self.lasting = LastingParameters()
        self.name = ""
        self.unscaled = False
        self.rate = 0.0  # before a state is loaded
        self.restored: tuple[float, float] | None = None  # the rate before and after that
        self.restored_at: str | None = None
        self.anew = 0


class OptimizerUses:
    """The uses of all optimizers.

    Args:
        models: the trained models.
        optimizers: all optimizers.
    """

    def __init__(self, models: Models, optimizers: Optimizers) -> None:
        self._models, self._optimizers = models, optimizers
        self._of: weakref.WeakKeyDictionary[Optimizer, OptimizerUse] = weakref.WeakKeyDictionary()
        #: In the order in which they were made.
        self._latest: dict[str, OptimizerUse] = {}  # by the line that made it
        self._held_sets: set[int] = set()  # their hashes: scripts make optimizers in every step
        self.every: list[tuple[weakref.ref[Optimizer], OptimizerUse]] = []
        # Those that live. Ten loops run over them in every step: over a ``WeakKeyDictionary`` they
        # are slow.
        self._alive: list[tuple[weakref.ref[Optimizer], OptimizerUse]] = []

    def __iter__(self) -> Iterator[tuple[Optimizer, OptimizerUse]]:
        """Iterate over the live optimizers."""
        for reference, use in self._alive:
            optimizer = reference()
            if optimizer is not None:
                yield optimizer, use

    def __bool__(self) -> bool:
        return bool(self._of)

    def others(self, than: Optimizer | None = None) -> Iterator[OptimizerUse]:
        """Yield the uses of the other optimizers; fast if there is only one, because this runs in
        every step."""
        if len(self._of) > 1:
            yield from (use for optimizer, use in self if optimizer is not than)

    def __getitem__(self, optimizer: Optimizer) -> OptimizerUse:
        return self._of[optimizer]

    def get(self, optimizer: Optimizer) -> OptimizerUse | None:
        """Return the record of an optimizer's use; None if it is unknown."""
        return self._of.get(optimizer)

    def add(self, optimizer: Optimizer, made: ScriptLine | None, number: int) -> OptimizerUse:
        """Note an optimizer that was made on this line; ``number`` comes from ``Construction``."""
        mine = self._of.get(optimizer)
        if mine is None:
            mine = self._of[optimizer] = OptimizerUse(optimizer, made, number)
            self.every.append((weakref.ref(optimizer), mine))
            self._alive = [one for one in self._alive if one[0]() is not None] + self.every[-1:]
        return mine

    def begins(self, mine: OptimizerUse, known: ObservedOptimizer) -> bool:
        """Note an optimizer's first step; return True if the previous optimizer from the same line
        held other parameters.
        """
        mine.lasting = known.lasting
        line = str(mine.made)
        before = None if mine.made is None else self._latest.get(line)
        self._latest[line] = mine
        if before is None:
            return False
        same = set(map(id, before.lasting.each())) == set(map(id, known.held))
        if same and before.parameters.steps == 1:
            mine.anew = before.anew + 1
        return not same

    def begins_phase(self, mine: OptimizerUse) -> bool:
        """Return True at the first step of an optimizer with a new set of parameters, except for
        the first optimizer.
        """
        held = hash(frozenset(map(id, mine.lasting.each())))
        new, first = held not in self._held_sets, not self._held_sets
        self._held_sets.add(held)
        return new and not first

    def restoring(self, optimizer: Optimizer) -> None:
        """Note a state about to be loaded into an optimizer."""
        mine = self._of.get(optimizer)
        if mine is not None:
            mine.rate = rate_of(optimizer)

    def restored(self, optimizer: Optimizer) -> None:
        """Note that the optimizer's state was loaded."""
        mine = self._of.get(optimizer)
        if mine is not None:
            mine.restored = mine.rate, rate_of(optimizer)
            mine.restored_at = script_place()

    def line_of(self, name: str) -> str | None:
        """Return the line of the script that made an optimizer."""
        return next((str(m.made) for _, m in self.every if m.name == name and m.made), None)

    def count_unused(self, last_backward: str | None) -> None:
        """Count the last backward, if it gave gradients to optimizers that have made no step."""
        for optimizer, known in self:
            if _unused(optimizer, known):
                known.backwards += 1
                known.reached = known.reached or last_backward

    def held_by(
        self, reference: weakref.ref[Optimizer], mine: OptimizerUse
    ) -> Iterable[nn.Parameter]:
        """Return the living parameters of an optimizer, which may itself be freed."""
        optimizer = reference()
        if optimizer is not None:
            known = self._optimizers.known(optimizer)
            mine.name, mine.lasting = known.name, known.lasting
            return known.held
        return mine.lasting.alive()

    def graded(self) -> set[int]:
        """Return the ids of the living parameters that had a gradient in a step of one of their
        optimizers."""
        return {
            id(parameter)
            for reference, mine in self.every
            if mine.parameters.without is not None
            for parameter in self.held_by(reference, mine)
            if id(parameter) not in mine.parameters.without
        }

    def records(self) -> Iterator[LoopOptimizer]:
        """Yield the records of live optimizers, and of those that lived at the last record, in
        order of creation.
        """
        alive = [one for one in self._optimizers.alive() if inner(one) is one]
        counts = Counter(id(p) for one in alive for p in self._optimizers.known(one).held)
        names = self._named_parameters()
        for reference, mine in self.every:
            optimizer, of = reference(), mine.parameters
            if optimizer is None:
                if mine.record is not None:
                    yield replace(
                        mine.record,
                        steps=mine.record.steps and of.steps,
                        backwards=max(mine.record.backwards, mine.backwards + mine.fresh),
                        zero_rates=tuple(of.zero_rates),
                        peak=of.peak,
                        rate=of.rate,
                        rises=of.rises,
                        gone=of.gone,
                        mixed=mine.use.mixed,
                        trained=of.without == set(),
                        readings=of.readings,
                        scaled=of.scaled,
                    )
                continue
            known = self._optimizers.known(optimizer)
            mine.record = LoopOptimizer(
                name=known.name,
                kind=type(optimizer).__name__,
                location=None if mine.made is None else str(mine.made),
                set_at=set_elsewhere(known.name, mine.made),
                rate_at=_written_rate(optimizer, mine.made),
                steps=known.steps,
                parameters=len(known.held),
                zero_rates=tuple(of.zero_rates),
                sizes=tuple(len(group["params"]) for group in optimizer.param_groups),
                backwards=mine.backwards + _unused(optimizer, mine),
                reached=mine.reached,
                stepping=None if of.steps else _written_step(known.name, mine.made),
                shared=sum(counts[id(parameter)] > 1 for parameter in known.held),
                mixed=mine.use.mixed,
                peak=of.peak,
                rate=of.rate,
                rises=of.rises,
                gone=of.gone,
                held=tuple(
                    tuple(names[id(p)] for p in group["params"] if id(p) in names)
                    for group in optimizer.param_groups
                ),
                readings=of.readings,
                scaled=of.scaled,
                loaded_at=mine.restored_at,
                restored=mine.restored,
                trained=of.without == set(),
                anew=mine.anew,
                betas=_betas(optimizer),
                momentum=_momentum(optimizer),
                maximizes=any(group.get("maximize") is True for group in optimizer.param_groups),
            )
            yield mine.record

    def _named_parameters(self) -> dict[int, tuple[int, str]]:
        """Return by identity the model's number and the name of every parameter."""
        return {
            id(parameter): (model.id, named.name)
            for model in self._models
            for parameter, named in named_parameters(model.module).items()
        }


def rate_of(optimizer: Optimizer) -> float:
    """Return the learning rate of its first group; 0 without one."""
    return float(optimizer.param_groups[0].get("lr") or 0.0) if optimizer.param_groups else 0.0


def _betas(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the betas of its first group, if these are two numbers."""
    betas = optimizer.param_groups[0].get("betas") if optimizer.param_groups else None
    numbers = isinstance(betas, tuple | list) and all(isinstance(b, int | float) for b in betas)
    return tuple(map(float, betas)) if numbers and betas is not None and len(betas) == 2 else ()


def _momentum(optimizer: Optimizer) -> float:
    """Return the momentum of its first group; 0 without one, with dampening, and for an optimizer
    of the script: there it may be the rate of a mean."""
    if not isinstance(optimizer, torch.optim.SGD | torch.optim.RMSprop):
        return 0.0
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    momentum = group.get("momentum")
    return float(momentum) if isinstance(momentum, float) and not group.get("dampening") else 0.0


def _written_step(name: str, made: ScriptLine | None) -> str | None:
    """Return the line that calls an optimizer's step, in the file that made the optimizer."""
    return None if made is None else call_of(name, "step", made.file)


def _unused(optimizer: Optimizer, known: OptimizerUse) -> bool:
    """Return True if the last backward gave gradients to an optimizer that has made no step."""
    if known.parameters.steps or not known.fresh:
        return False
    return any(p.grad is not None for g in optimizer.param_groups for p in g["params"])


def _written_rate(optimizer: Optimizer, made: ScriptLine | None) -> str | None:
    """Return the line of the number that an optimizer got as its learning rate, if it is known."""
    defaults = getattr(optimizer, "defaults", None)
    rate = defaults.get("lr") if isinstance(defaults, dict) else None
    return written_rate(made, rate) if made is not None and isinstance(rate, int | float) else None
