"""The names passed to ``why``, and the answers for healthy and frozen parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from gradscope.api.explaining import HEALTHY, MISSING, ZERO
from gradscope.capture.names import named_modules, named_parameters
from gradscope.patterns import Named, Pattern, matching
from gradscope.records.answers import Answer
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.typeset.numbers import number, plural


@dataclass(frozen=True, slots=True)
class Selection:
    """Parameters and modules by their first names.

    Attributes:
        parameters: requested by name or by a pattern.
        modules: requested by name, with the parameters in each.
        frozen: parameters that the config's ``freeze`` patterns select; ``frozen_at`` is its line.
    """

    parameters: tuple[str, ...] = ()
    modules: tuple[tuple[str, tuple[str, ...]], ...] = ()
    frozen: frozenset[str] = frozenset()
    frozen_at: str | None = None

    @property
    def all(self) -> frozenset[str]:
        """Return every selected parameter, by name or inside a module."""
        inside = (name for _, names in self.modules for name in names)
        return frozenset((*self.parameters, *inside))

    @property
    def any(self) -> bool:
        """True if names select a parameter or a module."""
        return bool(self.parameters or self.modules)


def select(
    model: nn.Module, names: Sequence[str], freeze: Sequence[str], frozen_at: str | None
) -> Selection:
    """Select parameters and modules by names and patterns.

    A pattern that matches parameters selects these; one that matches modules only selects modules.
    A plain name selects whatever has that name.

    Raises:
        LayerError: a name or a pattern that matches nothing; the message suggests a close one.
    """
    parameters = list(named_parameters(model).values())
    modules = {named.name: module for module, named in named_modules(model).items()}
    frozen: frozenset[str] = frozenset()
    if freeze:
        frozen = frozenset(n.name for n in matching(list(freeze), parameters, what="parameter"))
    if not names:
        return Selection((), (), frozen, frozen_at)
    candidates = [*parameters, *named_modules(model).values()]
    chosen = {id(named) for named in matching(list(names), candidates, what="parameter or layer")}
    own = [named.name for named in parameters if id(named) in chosen]
    patterns = [p for p in map(Pattern, names) if not p.negated]
    for_modules = [p for p in patterns if _means_modules(p, parameters)]
    layers = [
        named.name
        for named in candidates[len(parameters) :]
        if id(named) in chosen and any(p.matches(named) for p in for_modules)
    ]
    named = {p: each.name for p, each in named_parameters(model).items()}
    inside = tuple(
        (name, tuple(dict.fromkeys(named[p] for p in modules[name].parameters())))
        for name in layers
    )
    return Selection(tuple(own), inside, frozen, frozen_at)


def _means_modules(pattern: Pattern, parameters: Sequence[Named]) -> bool:
    """Return True if the pattern selects modules rather than parameters."""
    plain = "*" not in pattern.text and not pattern.text.startswith("re:")
    return plain or not any(pattern.matches(named) for named in parameters)


def replies(
    selection: Selection,
    parameters: Sequence[ParameterStats],
    calls: Sequence[ModuleCall],
    causes: Sequence[Answer],
) -> Iterator[Answer]:
    """Yield the answers for requested names without a cause in ``causes``."""
    states = {p.name: p for p in parameters}
    done = {name for answer in causes for name in answer.upstream}
    frozen = [
        name
        for name in states
        if name in selection.all and not states[name].requires_grad and name not in done
    ]
    yield from _frozen(selection, frozen)
    for name in selection.parameters:
        if name in states and name not in done and name not in frozen:
            yield _healthy(name, states[name])
    for name, inside in selection.modules:
        trains = [states[p] for p in inside if p in states and p not in frozen]
        if not inside:
            yield _without_parameters(name, [call for call in calls if call.name == name])
        elif trains and not any(p.name in done for p in trains):
            yield _module(name, trains)


def _frozen(selection: Selection, names: Sequence[str]) -> Iterator[Answer]:
    by_config = [name for name in names if name in selection.frozen]
    by_code = [name for name in names if name not in selection.frozen]
    for upstream, location, reason, advice in (
        (by_config, selection.frozen_at, "by the config's `freeze`", "change `freeze`"),
        (by_code, None, "set by the model's code", "set it to True before training"),
    ):
        if upstream:
            at = f" at {location}" if location else ""
            yield Answer(
                upstream[0],
                "parameter",
                MISSING,
                f"requires_grad is False: {reason}{at}.",
                cause="frozen",
                location=location,
                upstream=tuple(upstream),
                advice=f"{advice}, if {'it' if len(upstream) == 1 else 'these'} should train",
            )


def _healthy(name: str, parameter: ParameterStats) -> Answer:
    gradient = parameter.gradient
    norm = None if gradient is None else gradient.norm
    message = "it gets a gradient" + ("" if norm is None else f" of norm {number(norm)}")
    zeros = None if gradient is None else gradient.zeros
    if gradient is not None and zeros and gradient.numel:
        message += f"; {zeros} of its {gradient.numel} elements are zero"
    return Answer(name, "parameter", HEALTHY, f"{message}.", upstream=(name,))


def _module(name: str, parameters: Sequence[ParameterStats]) -> Answer:
    norms = [p.gradient.norm for p in parameters if p.gradient and p.gradient.norm is not None]
    message = (
        f"{'all ' if len(parameters) > 1 else ''}{plural(len(parameters), 'parameter')} of it "
    )
    message += f"{'get' if len(parameters) > 1 else 'gets'} a gradient"
    message += f" of norm {number(math.hypot(*norms))}" if norms else ""
    upstream = tuple(p.name for p in parameters)
    return Answer(name, "module", HEALTHY, f"{message}.", module=name, upstream=upstream)


def _without_parameters(name: str, calls: Sequence[ModuleCall]) -> Answer:
    """Answer for a module without parameters: does a gradient reach its output?"""
    if not calls:
        return Answer(
            name,
            "module",
            MISSING,
            f"`{name or 'the model'}` never ran.",
            cause="not-called",
            module=name,
            advice="call it in `forward`, or remove it",
        )
    gradients = [out.gradient for call in calls for out in call.outputs if out.gradient]
    if not gradients:
        message = "its output gets no gradient; it has no parameters."
        return Answer(name, "module", MISSING, message, module=name, call=calls[0].call)
    norm = math.hypot(*(g.norm for g in gradients if g.norm is not None))
    if norm == 0:
        message = "its output gradient is zero; it has no parameters."
        return Answer(name, "module", ZERO, message, module=name, call=calls[0].call)
    message = f"its output gradient has norm {number(norm)}; it has no parameters."
    return Answer(name, "module", HEALTHY, message, module=name)


def disagreements(selection: Selection, parameters: Sequence[ParameterStats]) -> Iterator[Answer]:
    """Yield answers for parameters that should be frozen, but are not."""
    thawed = [p.name for p in parameters if p.requires_grad and p.name in selection.frozen]
    if thawed:
        at = f" at {selection.frozen_at}" if selection.frozen_at else ""
        yield Answer(
            thawed[0],
            "parameter",
            HEALTHY,
            f"the config's `freeze` selects it{at}, but after forward requires_grad is True.",
            cause="frozen",
            location=selection.frozen_at,
            upstream=tuple(thawed),
            advice="look for `requires_grad_(True)` in the model's code",
        )
    misspelt: dict[str, list[str]] = {}
    for parameter in parameters:
        for flag in parameter.misspelt if parameter.requires_grad else ():
            misspelt.setdefault(flag, []).append(parameter.name)
    for flag, names in misspelt.items():
        yield Answer(
            names[0],
            "parameter",
            HEALTHY,
            f"`{flag}` was set on it; PyTorch ignores that, so it still trains.",
            cause="misspelt",
            upstream=tuple(names),
            advice="write `requires_grad`",
        )


def problems_first(answers: Sequence[Answer], order: Mapping[str, int]) -> tuple[Answer, ...]:
    """Sort answers in the order of the model, problems before healthy ones."""
    worst = {state: i for i, state in enumerate(("non-finite", MISSING, ZERO, HEALTHY))}
    return tuple(
        sorted(
            answers,
            key=lambda a: (
                a.state == HEALTHY and a.cause is None,
                a.cause == "frozen" and a.state == MISSING,
                worst[a.state],
                order.get(a.name, len(order)),
            ),
        )
    )
