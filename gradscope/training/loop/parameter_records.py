"""Makes the records of parameters with a fact that held at every step so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType

from torch import nn

from gradscope.capture.facts import of_library
from gradscope.capture.hooks import is_own
from gradscope.capture.names import named_parameters
from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.capture.stats import head_of
from gradscope.explain.shared.frames import in_library, shown
from gradscope.records.loop import LoopParameter
from gradscope.training.loop.construction import Construction, Made
from gradscope.training.loop.held_parameters import HeldParameters
from gradscope.training.loop.model_uses import ModelUses
from gradscope.training.loop.optimizer_uses import OptimizerUses
from gradscope.training.loop.rounds import inner
from gradscope.training.models import Models


class ParameterRecords:
    """Makes the records.

    Args:
        models: the trained models.
        uses: facts on the optimizers.
        model_uses: facts on the models.
        construction: the lines that made parameters.
    """

    def __init__(
        self,
        models: Models,
        uses: OptimizerUses,
        model_uses: ModelUses,
        construction: Construction,
    ) -> None:
        self._models, self._uses = models, uses
        self._model_uses, self._construction = model_uses, construction
        self._last_unheld: dict[int, LoopParameter] = {}
        # Gradients of parameters that no optimizer held, as they were when another phase began.
        self._left: dict[int, tuple[RememberedTensor, int]] = {}

    def phase_begins(self) -> None:
        """Note the first step of an optimizer for a new set of parameters.

        A parameter that gets no gradient from now on belonged to the previous phase.
        """
        held = {id(one) for _, mine in self._uses.every for one in mine.lasting.alive()}
        self._last_unheld.clear()
        self._left = {
            id(parameter): (remembered(parameter.grad), parameter.grad._version)
            for model in self._models
            for parameter in model.module.parameters()
            if parameter.grad is not None and id(parameter) not in held
        }

    def _is_left(self, parameter: nn.Parameter) -> bool:
        """Return True if a parameter got no gradient since the present phase began."""
        left, gradient = self._left.get(id(parameter)), parameter.grad
        if left is None or gradient is None:
            return False
        of, version = left
        # If two gradients swapped their contents, the version proves nothing.
        return gradient is of() and (of.swapped or gradient._version == version)

    def records(self) -> Iterator[LoopParameter]:
        """Yield parameters with a fact; for dead optimizers and models, the last one known."""
        graded = self._uses.graded()  # else one that stepped in another phase would say "none"
        found = dict(self._alive(graded))
        for reference, mine in self._uses.every:
            if reference() is not None:
                held = [id(parameter) for parameter in self._uses.held_by(reference, mine)]
                mine.held = {number: found[number] for number in held if number in found}
                continue
            for number, one in mine.held.items():
                kept = _still(one, number, mine.parameters, graded)
                if kept is not None:
                    found.setdefault(number, kept)
        models = {self._models.name(model) for model in self._models}
        for number, one in self._last_unheld.items():
            if one.model not in models:
                found.setdefault(number, one)
        self._last_unheld = {n: one for n, one in found.items() if not one.optimizers}
        yield from found.values()

    def _alive(self, graded: set[int]) -> Iterator[tuple[int, LoopParameter]]:
        names: dict[int, tuple[str, str]] = {}
        models: dict[int, nn.Module] = {}
        places: dict[int, Callable[[str], Made | None]] = {}
        alive: dict[int, nn.Parameter] = {}
        ran: set[int] = set()
        for model in self._models:
            for parameter, named in named_parameters(model.module).items():
                alive[id(parameter)] = parameter
                names[id(parameter)] = named.name, self._models.name(model)
                models[id(parameter)] = model.module
                if model.id in self._model_uses.called or parameter.grad is not None:
                    ran.add(id(parameter))
        facts: dict[int, set[str]] = {}
        holders: dict[int, list[str]] = {}
        inners: dict[int, set[int]] = {}  # without wrappers, which hold the same parameters
        steps: dict[int, int] = {}
        since: dict[int, int] = {}
        for reference, mine in self._uses.every:
            here = set()
            optimizer = reference()
            core = id(mine if optimizer is None else inner(optimizer))
            for parameter in self._uses.held_by(reference, mine):
                number = id(parameter)
                here.add(number)
                alive[number] = parameter
                holders.setdefault(number, []).append(mine.name)
                inners.setdefault(number, set()).add(core)
                if number not in ran and self._model_uses.called:
                    facts.setdefault(number, set()).add("orphan")
            of = mine.parameters
            # Of a model that no longer runs, the gradients of another phase say nothing.
            for number in (here & (of.without or set())) - (graded & ran):
                known = {"no-gradient", "removed"} if number in of.removed else {"no-gradient"}
                facts.setdefault(number, set()).update(known)
                steps[number] = of.steps
            for number in here & of.zeros():
                facts.setdefault(number, set()).add("zero-gradient")
                steps[number] = of.readings_since(number)
                since[number] = of.zero[number][1]
            for number in here & of.moved.keys():
                facts.setdefault(number, set()).add("moved")
                steps[number] = of.moved[number]
        idle = self._model_uses.idle()
        first = [mine.number for _, mine in self._uses.every]
        for number, parameter in alive.items():
            found = facts.setdefault(number, set())
            trains = parameter.requires_grad and number in ran
            if trains and number not in holders and not self._is_left(parameter):
                found.add("unheld")
            if len(inners.get(number, ())) > 1:
                found.add("held-twice")
            if not parameter.requires_grad:
                found.add("untrained")
            if not found - {"untrained"}:
                continue
            if parameter.grad is not None:
                found.add("graded")
            if number in idle:
                found.add("idle")
            name, of_model = names.get(number, ("", ""))
            made = None
            if number in models:
                within = models[number]
                place = places.get(id(within))
                if place is None:
                    place = places[id(within)] = self._construction.places(within)
                made = place(name)
            if "no-gradient" in found and number in models and of_library(models[number], name):
                found.add("library")
            yield (
                number,
                LoopParameter(
                    name=name,
                    model=of_model,
                    shape=head_of(parameter).shape,
                    facts=frozenset(found),
                    optimizers=tuple(holders.get(number, ())),
                    steps=steps.get(number, 0),
                    since=since.get(number, 1),
                    made=None if made is None else made.line,
                    late=made is not None and any(n < made.number for n in first),
                    hook=_hook_at(parameter) if "zero-gradient" in found else None,
                ),
            )


def _hook_at(parameter: nn.Parameter) -> str | None:
    """Return the line of the script's hook on the gradient, if there is only one."""
    hooks = [one for one in (parameter._backward_hooks or {}).values() if not is_own(one)]
    if len(hooks) != 1 or type(hooks[0]) is not FunctionType:
        return None
    code = hooks[0].__code__
    if in_library(code.co_filename):
        return None
    return f"{shown(code.co_filename)}:{code.co_firstlineno}"


def _still(
    one: LoopParameter, number: int, of: HeldParameters, graded: set[int]
) -> LoopParameter | None:
    """Return the facts of a parameter that still held at its optimizer's last step.

    ``graded`` are the parameters with a gradient in a step of any optimizer.
    """
    facts, steps = set(one.facts), one.steps
    if "no-gradient" in facts:
        steps = of.steps
        other_phase = number in graded and "orphan" not in facts
        if other_phase or number not in (of.without or ()):
            facts -= {"no-gradient", "removed"}
    if "zero-gradient" in facts:
        if number in of.zeros():
            steps = of.readings_since(number)
        else:
            facts.discard("zero-gradient")
    if number in of.moved:
        facts.add("moved")
        steps = of.moved[number]
    return replace(one, facts=frozenset(facts), steps=steps) if facts - {"untrained"} else None
