"""Explains parameters that are missing in the loss's graph: one cause and one place for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType

import torch
from torch import nn

from gradscope.capture.names import parameters_by_name
from gradscope.explain.missing.cut_messages import answer, uncalled
from gradscope.explain.missing.dataflow_tracer import Tracer
from gradscope.explain.missing.values import Cut, Flow, find_cuts
from gradscope.explain.shared.tracing_modes import Guarding, functions_traced, unguarded
from gradscope.records.answers import Answer


class MissingTrace:
    """Follows the data of parameters through every operation, also without a gradient path.

    Args:
        model: the model that owns the parameters.
        missing: names of the parameters that got no gradient.
        last: the code of the function that starts the traced code: the frames around it are not
            the user's.
        lent: True for a script's own run: ``.item()`` returns plain numbers, which are followed
            by identity only.
        guarding: wraps the hooks, so that they never raise.
    """

    def __init__(
        self,
        model: nn.Module,
        missing: Sequence[str],
        last: CodeType,
        *,
        lent: bool = False,
        guarding: Guarding = unguarded,
    ) -> None:
        owned = parameters_by_name(model)
        names: dict[nn.Parameter, list[str]] = {}
        for name in missing:
            names.setdefault(owned[name], []).append(name)
        self._model, self._missing, self._guarding = model, tuple(missing), guarding
        self._listed = list(names.values())
        self._tracer = Tracer(model, list(names), last, numbers=not lent)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Trace every computation in the block."""
        tracer = self._tracer
        with functions_traced(self._model, tracer.calls, tracer.run, self._guarding):
            yield

    def value_of(self, loss: torch.Tensor) -> int | None:
        """Return the number of a loss's value; None if no followed data went into it."""
        return self._tracer.observed.value_of(loss)

    def reached(self, losses: Sequence[int | None]) -> tuple[str, ...]:
        """Return the names of the parameters in the graph of a loss."""
        live = 0
        for number in losses:
            live |= 0 if number is None else self._tracer.observed.flow.values[number].live
        return self._names(live)

    def among(self, parameters: Collection[nn.Parameter]) -> tuple[str, ...]:
        """Return the names of the followed parameters that are among these."""
        bits = self._tracer.observed.bits
        mask = 0
        for parameter in parameters:
            mask |= bits.get(id(parameter), 0)
        return self._names(mask)

    @property
    def length(self) -> int:
        """The number of values so far."""
        return len(self._tracer.observed.flow.values)

    def cuts_before(
        self, length: int, losses: Sequence[int | None], names: Collection[str]
    ) -> tuple[Answer, ...]:
        """Return the answers for some parameters, from these losses and the first values.

        There is none for a parameter in the graph of one of these losses.
        """
        observed = self._tracer.observed
        flow = Flow(observed.flow.values[:length])
        loss = flow.joined([one for one in losses if one is not None])
        sources = {
            1 << i: observed.source[1 << i]
            for i, listed in enumerate(self._listed)
            if listed[0] in names and observed.source.get(1 << i, length) < length
        }
        found = find_cuts(flow, sources, loss, full=True)
        return tuple(_merged([(cut, self._names(cut.mask)) for cut in found], None))

    def _names(self, mask: int) -> tuple[str, ...]:
        return _named(mask, self._listed)

    def answers(
        self,
        losses: Sequence[int | None],
        *,
        complete: bool = True,
        start: str | None = None,
        silent: Collection[str] | None = None,
    ) -> tuple[Answer, ...]:
        """Return one answer per cause and place, sorted by their first names.

        There is no answer for an unused parameter of a scripted module, because scripted code
        cannot be traced. There is none for a parameter in a loss's graph either.

        Args:
            losses: the values from which backward started.
            complete: True if the run came to its end; otherwise only facts that cannot change
                any more count.
            start, silent: as for ``explain_missing``.
        """
        flow = self._tracer.observed.flow
        loss = flow.joined([one for one in losses if one is not None])
        found = find_cuts(flow, self._tracer.observed.source, loss, complete, silent)
        answers = [(cut, self._names(cut.mask)) for cut in found]
        explained = _merged(answers, start)
        if complete:
            decided = flow.values[loss].live if loss is not None else 0
            for cut in found:
                decided |= cut.mask
            rest = (group for i, group in enumerate(self._listed) if not decided >> i & 1)
            called = self._tracer.calls.called
            explained += uncalled(self._model, [name for group in rest for name in group], called)
        order = {name: i for i, name in enumerate(self._missing)}
        return tuple(sorted(explained, key=lambda one: order[one.name]))


def explain_missing(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    missing: Sequence[str],
    *,
    start: str | None = None,
    silent: Collection[str] | None = None,
) -> tuple[Answer, ...]:
    """Explain parameters that require a gradient and got none from the loss.

    Runs the model again under a ``MissingTrace``, which is slow. Use it only after a problem was
    found.

    Args:
        model: the model that owns the parameters.
        forward: runs the model and the loss, and returns the loss. If it raises, the answers so
            far are returned.
        missing: names of the parameters.
        start: the output whose sum ``forward`` returns, if it is not the loss.
        silent: the graph's nodes that passed no gradient on, such as ``ClipBackward``; None if
            backward was not traced, so that any autograd function may be one.

    Returns:
        As ``MissingTrace.answers``.
    """
    if not missing:
        return ()
    trace = MissingTrace(model, missing, _run.__code__)
    loss, complete = _run(trace, forward)
    return trace.answers([loss], complete=complete, start=start, silent=silent)


def _run(trace: MissingTrace, forward: Callable[[], torch.Tensor]) -> tuple[int | None, bool]:
    """Return the value of the loss, and True if the run completed."""
    with trace.active():
        try:
            loss = forward()
        except Exception:
            # The run that the user asked for has raised it already, and explained it.
            return None, False
    return trace.value_of(loss), True


def _named(mask: int, listed: list[list[str]]) -> tuple[str, ...]:
    return tuple(name for i, names in enumerate(listed) if mask >> i & 1 for name in names)


def _merged(answers: list[tuple[Cut, tuple[str, ...]]], start: str | None) -> list[Answer]:
    """Merge answers, to one for each cause and place."""
    sites: dict[object, tuple[Cut, list[str]]] = {}
    for cut, upstream in answers:
        key: object = cut.value.site
        reason = cut.value.reason
        if cut.cause == "no-grad" and reason:
            # All parts of one such block have one answer: its beginning.
            at = (cut.value.site.file, cut.value.site.line)
            key = (reason, None if reason.rpartition(":")[2].isdigit() else at)
        sites.setdefault((cut.cause, key), (cut, []))[1].extend(upstream)
    return [answer(cut, upstream, start) for cut, upstream in sites.values()]
