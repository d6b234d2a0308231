"""Finds the first module of a compiled model that made a NaN or Inf, from the events of its
probes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from gradscope.capture.names import written_class
from gradscope.capture.stats import resolve
from gradscope.capture.traced_probes import GRADIENT, INPUT, Event
from gradscope.explain.non_finite.reasons import FINITE, INF, KINDS, NAN
from gradscope.records.answers import NonFiniteOrigin


def first_non_finite_event(
    events: Sequence[Event], names: Mapping[nn.Module, str], where: str
) -> NonFiniteOrigin | None:
    """Return the module that produced the first NaN or Inf of a step; None if the probes saw none.

    Args:
        events: the events in the order in which they were seen.
        names: the names of the modules that count.
        where: "loss" for a loss with NaN or Inf; "gradients" if only they have it.
    """
    events = [event for event in events if event.probe.module() in names]
    if where == "loss":
        return _in_forward([event for event in events if event.kind != GRADIENT], names)
    return _in_backward(events, names)


def _in_forward(events: Sequence[Event], names: Mapping[nn.Module, str]) -> NonFiniteOrigin | None:
    # The infinities of a mask do not make a NaN: if there is a NaN, only NaN counts.
    levels = [_level(event) for event in events]
    worst = max(levels, default=FINITE)
    if worst == FINITE:
        return None
    number = levels.index(worst)
    made = _infinities_before(number, events, levels) if worst == NAN else None
    number = number if made is None else made
    event, worst = events[number], levels[number]
    name, text = names[_module(event)], _text(worst)
    if event.kind != INPUT:
        message = f"{_called(event, names)} returned {text} in forward; its inputs had none"
        return _origin("forward", name, f"{message}.", worst)
    parent = _parent(name, names)
    if parent is None:
        return _origin("input", None, f"the model received {text} as input.", worst)
    message = f"`{parent}`" if parent else "the model"
    message += f" computed {text} in forward; {_called(event, names)} received it"
    return _origin("forward", parent, f"{message}.", worst)


def _infinities_before(number: int, events: Sequence[Event], levels: Sequence[int]) -> int | None:
    """Return the first output with infinities, if the module that returned NaN received
    infinities."""
    probe = events[number].probe
    received = [
        level
        for event, level in zip(events[:number], levels, strict=False)
        if event.probe is probe and event.kind == INPUT
    ]
    if INF not in received:
        return None
    return next(
        (n for n in range(number) if levels[n] == INF and events[n].kind != INPUT),
        None,
    )


def _in_backward(events: Sequence[Event], names: Mapping[nn.Module, str]) -> NonFiniteOrigin | None:
    arrived = [event for event in events if event.kind == GRADIENT]
    bad = next((event for event in arrived if _level(event) != FINITE), None)
    if bad is None or bad is arrived[0]:  # what arrives first comes from the loss
        return None
    sender = _after(bad, events, names)
    if sender is None:
        return None
    worst = _level(bad)
    message = (
        f"{_called(sender, names)} sent back {_text(worst)} in backward, to {_called(bad, names)}"
    )
    return _origin("backward", names[_module(sender)], f"{message}.", worst)


def _after(bad: Event, events: Sequence[Event], names: Mapping[nn.Module, str]) -> Event | None:
    """Return the innermost module that used the output whose gradient is ``bad``.

    That is the next module that began in forward; if the output was used between modules, the next
    one that ended.
    """
    forward = [event for event in events if event.kind != GRADIENT]
    last = max(
        (
            number
            for number, event in enumerate(forward)
            if event.probe is bad.probe and event.kind != INPUT
        ),
        default=len(forward),
    )
    found: Event | None = None
    for event in forward[last + 1 :]:
        if found is None:
            found = event
        elif event.kind != INPUT or found.kind != INPUT:
            break
        elif names[_module(event)].startswith(f"{names[_module(found)]}."):
            found = event
    return found


def _module(event: Event) -> nn.Module:
    module = event.probe.module()
    assert module is not None  # the events were chosen by it
    return module


def _level(event: Event) -> int:
    """Return the level: NaN, Inf, or neither."""
    if isinstance(event.found, Tensor):
        total = float(event.found)
        return NAN if math.isnan(total) else INF if math.isinf(total) else FINITE
    stats = resolve([event.found])[id(event.found)]
    return NAN if stats.nan else INF if stats.inf else FINITE


def _parent(name: str, names: Mapping[nn.Module, str]) -> str | None:
    """Return the nearest probed module around a module; None for the outermost one."""
    known = set(names.values())
    while name:
        name = name.rpartition(".")[0]
        if name in known:
            return name
    return None


def _called(event: Event, names: Mapping[nn.Module, str]) -> str:
    module = _module(event)
    kind = written_class(module).__name__
    name = names[module]
    return f"`{name}` ({kind})" if name else f"the model ({kind})"


def _text(worst: int) -> str:
    return "NaN" if worst == NAN else "infinities"


def _origin(phase: str, name: str | None, message: str, worst: int) -> NonFiniteOrigin:
    return NonFiniteOrigin(
        kind=KINDS[worst], phase=phase, message=message, name=name or None, call=0
    )
