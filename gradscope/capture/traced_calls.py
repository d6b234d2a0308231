"""Makes records of calls from the events of probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from gradscope.capture.names import written_class
from gradscope.capture.parameters import parameter_count
from gradscope.capture.stats import Measured, resolve
from gradscope.capture.traced_probes import DIFFERENTIABLE, GRADIENT, INPUT, Probe
from gradscope.patterns import Named
from gradscope.records.modules import ModuleCall
from gradscope.records.tensors import TensorRecord, TensorStats

#: The note of a call that was recorded by a probe.
NOTE = "compiled"


@dataclass(slots=True, eq=False)
class Event:
    """An event of a probe: ``kind`` as in ``traced_probes``, without ``COMPILED``. ``found`` has
    the tensor's statistics, or only the sum of its elements in a step that is only checked for NaN.
    """

    probe: Probe
    path: str
    kind: int
    compiled: bool
    found: Measured | Tensor


@dataclass(slots=True, eq=False)
class TracedCall:
    """One call of a module: its events by their paths."""

    module: nn.Module
    inputs: dict[str, Event] = field(default_factory=dict)
    outputs: dict[str, Event] = field(default_factory=dict)
    gradients: dict[str, Event] = field(default_factory=dict)

    @property
    def first(self) -> Event:
        """The first event of the call."""
        return next(iter((self.inputs or self.outputs).values()))


def calls_of(events: Sequence[Event], names: Mapping[nn.Module, Named]) -> list[TracedCall]:
    """Return the calls of some modules in the order in which they began.

    The gradients of a module's calls arrive in the reverse order of the calls.
    """
    found: list[TracedCall] = []
    latest: dict[Probe, TracedCall] = {}
    waiting: dict[tuple[Probe, str], list[TracedCall]] = {}
    for event in events:
        probe, path, module = event.probe, event.path, event.probe.module()
        if module is None or module not in names:
            continue
        if event.kind == GRADIENT:
            calls = waiting.get((probe, path))
            if calls:
                calls.pop().gradients[path] = event
            continue
        call, given = latest.get(probe), event.kind == INPUT
        if call is None or (call.outputs and given) or path in _part(call, given=given):
            call = latest[probe] = TracedCall(module)
            found.append(call)
        _part(call, given=given)[path] = event
        if event.kind == DIFFERENTIABLE:
            waiting.setdefault((probe, path), []).append(call)
    return found


def _part(call: TracedCall, *, given: bool) -> dict[str, Event]:
    return call.inputs if given else call.outputs


def finished(
    calls: Sequence[TracedCall], names: Mapping[nn.Module, Named]
) -> tuple[ModuleCall, ...]:
    """Return the records of calls whose tensors were measured, with new numbers."""
    parts = [part for call in calls for part in (call.inputs, call.outputs, call.gradients)]
    measured = [e.found for part in parts for e in part.values() if not isinstance(e.found, Tensor)]
    done = resolve(measured)
    counts: dict[nn.Module, int] = {}
    records = []
    for order, call in enumerate(calls):
        module, named = call.module, names[call.module]
        number = counts[module] = counts.get(module, -1) + 1
        records.append(
            ModuleCall(
                name=named.name,
                type=written_class(module).__name__,
                call=number,
                order=order,
                aliases=named.aliases,
                training=module.training,
                notes=(NOTE,),
                inputs=tuple(_record(event, None, done) for event in call.inputs.values()),
                outputs=tuple(
                    _record(event, call.gradients.get(path), done)
                    for path, event in call.outputs.items()
                ),
                parameters=parameter_count(module),
            )
        )
    return tuple(records)


def _record(event: Event, gradient: Event | None, done: Mapping[int, TensorStats]) -> TensorRecord:
    given = None if gradient is None else done[id(gradient.found)]
    if gradient is not None and gradient.compiled and event.path and given is not None:
        # If a call has several results, a compiled backward has gradients of zeros for unused ones.
        given = None if given.zeros == given.numel else given
    return TensorRecord(
        event.path,
        done[id(event.found)],
        given,
        requires_grad=event.kind == DIFFERENTIABLE,
    )
