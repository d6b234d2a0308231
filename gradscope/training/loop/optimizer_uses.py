"""Records how a loop uses its optimizers, alive or freed."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import nn
from torch.optim import Optimizer

from gradscope.capture.names import named_parameters
from gradscope.records.loop import LoopOptimizer, LoopParameter
from gradscope.training.loop.gradient_use import GradientUse
from gradscope.training.loop.held_parameters import HeldParameters
from gradscope.training.loop.schedulers import inner
from gradscope.training.loop.script_lines import ScriptLine, call_of, script_place
from gradscope.training.models import Models
from gradscope.training.optimizers import LastingParameters, ObservedOptimizer, Optimizers


class OptimizerUse:
    """The observed use of an optimizer."""

    def __init__(self, optimizer: Optimizer, made: ScriptLine | None, number: int) -> None:
        self.made, self.number = made, number
        self.use, self.parameters = GradientUse(optimizer), HeldParameters()
        self.facts = frozenset[str]()
        self.backwards = 0  # after which its parameters had gradients, before its first step
        self.fresh = False  # the last backward is not among them yet
        self.reached: str | None = None  # where the first of these backwards is
        # The last record of it: at the end of a script it may be gone, as what a function
        # made is when the function has returned.
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

    def __iter__(self) -> Iterator[tuple[Optimizer, OptimizerUse]]:
        """Iterate over the live optimizers."""
        return iter(list(self._of.items()))

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


def _written_step(name: str, made: ScriptLine | None) -> str | None:
    """Return the line that calls an optimizer's step, in the file that made the optimizer."""
    return None if made is None else call_of(name, "step", made.file)


def _unused(optimizer: Optimizer, known: OptimizerUse) -> bool:
    """Return True if the last backward gave gradients to an optimizer that has made no step."""
    if known.parameters.steps or not known.fresh:
        return False
    return any(p.grad is not None for g in optimizer.param_groups for p in g["params"])
