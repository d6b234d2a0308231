"""The NaN detector: checks each step for NaN and Inf, and finds their origin."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gradscope.capture.graph import Edge, Span
from gradscope.explain.non_finite.graph_replay import explain_singular_derivatives
from gradscope.explain.non_finite.reasons import FINITE, KINDS, NAN, level
from gradscope.explain.shared.frames import shown
from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.modules import ModuleCall
from gradscope.training.discovery import variable_value
from gradscope.training.extra_passes import NoCollectives, no_collectives
from gradscope.training.loop.script_lines import assignments_read_at, singular_line
from gradscope.training.nan_detector.first_module import (
    first_non_finite_module,
    given,
    returned_finite,
    unlocated,
)
from gradscope.training.nan_detector.loss_operations import (
    LossLines,
    SingularPlans,
    explain_loss,
    loss_part,
)
from gradscope.training.nan_detector.recorded_calls import MarkedEdge, RecordedCall, nodes_of
from gradscope.training.nan_detector.replayed_calls import rerun, rerun_results
from gradscope.training.nan_detector.side_effects import SideEffects

Models = Callable[[], Sequence[tuple[str, nn.Module]]]

#: How the message of a tensor from before the loss begins.
_BEFORE = "a tensor made before the run "
_DEVIATION = re.compile(r"\b(std|var)\(")

#: Steps in a row whose loss is checked: after them a NaN is in the weights, and tells no more.
_IN_A_ROW = 4

#: The question of ``in_backward``, inlined because each step asks it three times.
_TASK, _NO_TASK = torch._C._current_graph_task_id, -1


class NanDetector:
    """Keeps the state for a replay of a step's calls, until the step ends.

    It runs in the thread that trains, and changes nothing of the script.

    Args:
        models: the models that are trained now, with their names.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._calls: list[RecordedCall] = []
        self._side_effects: dict[tuple[int, bool], SideEffects] = {}
        self._lines = LossLines()
        self._plans = SingularPlans()
        self._loss: list[NonFiniteOrigin] = []
        self._worst = FINITE
        self._in_a_row = 0
        self._external = FINITE
        self._alone: NoCollectives | None = None
        #: Whether all calls of the last step with a NaN or Inf were replayed eagerly.
        self.replayed = False
        #: While a call is replayed its hooks run too: those of gradscope ignore that.
        self.busy = False

    @property
    def calls(self) -> Sequence[RecordedCall]:
        """The calls of this step so far."""
        return self._calls

    def call_began(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note the start of an outermost call of a trained model, with gradients enabled."""
        if self.busy or _TASK() != _NO_TASK:
            return
        side_effects = self._side_effects.get((id(module), module.training))
        if side_effects is None or side_effects.module() is not module:
            side_effects = self._learn(module)
        self._calls.append(RecordedCall(name, module, args, kwargs, side_effects))

    def call_ended(self, module: nn.Module, output: Any) -> RecordedCall | None:
        """Note the return of a call; return its record, if it has one."""
        if self.busy or _TASK() != _NO_TASK:
            return None
        for call in reversed(self._calls):
            if call.module is module and call.end < 0:
                call.ended(output)
                return call
        return None

    def backward_begins(
        self,
        roots: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor] = (),
        loss: float | None = None,
    ) -> str | None:
        """Note the start of a backward, with its graph; return "nan" or "inf" if a root has one.

        Args:
            roots: the tensors that backward starts from.
            gradients: the output gradients that were passed for the roots.
            loss: the value of the root, if it is a single one with one element.
        """
        if self.busy or _TASK() != _NO_TASK:
            return None
        for call in reversed(self._calls):
            if call.in_graph:
                break
            call.in_graph = True
            for result, _ in call.results:
                tensor = result()
                if tensor is not None and tensor._backward_hooks:
                    call.listen_last()
        worst = FINITE
        if loss is None or not math.isfinite(loss):
            worst = max(map(level, roots), default=FINITE)
        if worst == FINITE:
            node, calls = roots[0].grad_fn, self._calls
            made = node._sequence_nr() - calls[-1].end if node is not None and calls else -1
            self._plans.keep(roots, made, self._spans)
            for gradient in gradients:
                self._external = max(self._external, level(gradient))
            return None
        if self._in_a_row < _IN_A_ROW and not self._loss:
            with self._looking():
                known = self._known(roots)
                found = explain_loss(roots, self._spans(), known, self._lines)
                self._loss += map(_with_variable, found)
        self._worst = max(self._worst, worst)
        return KINDS[worst]

    def locate(
        self, *, where: str, seen: Callable[[], Sequence[ModuleCall]] | None = None
    ) -> tuple[NonFiniteOrigin, ...]:
        """Return the origins of the NaN or Inf in this step, oldest first; called before the
        optimizer's step.

        If none is found, return one record with everything that is known.

        Args:
            where: "loss" for a root with NaN or Inf; "gradients" if only they have it.
            seen: the calls inside the models, in a sampled step.
        """
        with self._looking():
            calls = [call for call in self._calls if call.returned]
            found = self._in_forward(calls) if where == "loss" else self._in_backward(calls)
            worst = self._worst or NAN
            repeats = all(call.repeats for call in calls)
            self.replayed = repeats and bool(calls)
            inside = () if seen is None or found or repeats else seen()
            first = first_non_finite_module(inside, where, worst)
            if first is not None:
                return (first,)
            # The inputs of the loss are known only from calls that were repeated or observed.
            if not found and where == "loss" and (repeats or returned_finite(inside)):
                found = tuple(self._loss)
            return found or (unlocated(where, worst, calls),)

    def step_ended(self) -> None:
        """Release everything after the optimizer made its step or skipped it.

        Calls that still wait for a backward, such as a generator's output in its critic's step, are
        kept for one more step.
        """
        calls, self._calls = self._calls, []
        for call in calls:
            if not (call.carried or any(call.nodes.values())) and call.is_held:
                call.carried = True
                self._calls.append(call)
            else:
                call.release()
        if self._plans.held:
            self._plans.held.clear()
        if self._worst or self._in_a_row:
            self._in_a_row = self._in_a_row + 1 if self._worst else 0
            self._worst, self._loss = FINITE, []
        self._external = FINITE

    def close(self) -> None:
        """Stop observing: no hook stays, not even in a graph that stays alive."""
        for call in self._calls:
            call.release()
        self._calls = []
        self._plans.held.clear()

    def sampled_lines(self, roots: Sequence[torch.Tensor]) -> None:
        """Learn the lines in a step that keeps stacks, at the beginning of its backward."""
        part = loss_part(roots, self._spans())
        self._lines.learn(part)
        self._plans.learn(part, self._made(roots))

    @contextmanager
    def replaying(self) -> Iterator[list[RecordedCall]]:
        """Yield the calls of this step that got gradients, ready for a replay."""
        with self._looking():
            yield [call for call in self._calls if call.returned and call.arrived]

    @contextmanager
    def overlooking(self) -> Iterator[None]:
        """Ignore gradients that arrive in the block: they are not the script's."""
        before = [(one, len(one)) for call in self._calls for one in call.nodes.values()]
        try:
            yield
        finally:
            for arrived, count in before:
                del arrived[count:]

    def _in_forward(self, calls: Sequence[RecordedCall]) -> tuple[NonFiniteOrigin, ...]:
        """Return the first call that produces the NaN or Inf; calls with finite results are
        skipped."""
        for call in calls:
            if call.level != FINITE and (found := self._run(call, backward=False)):
                return tuple(_with_variable(one, call) for one in found)
        return ()

    def _in_backward(self, calls: Sequence[RecordedCall]) -> tuple[NonFiniteOrigin, ...]:
        """Return the latest call that produces the NaN or Inf from finite gradients; else the
        operations of the loss that do."""
        if self._external:
            return (given(self._external),)
        for call in reversed(calls):
            if call.given_finite and (found := self._run(call, backward=True)):
                return found
        return explain_singular_derivatives(self._plans.nodes(self._lines))

    def _known(self, roots: Sequence[torch.Tensor]) -> dict[Edge, torch.Tensor]:
        """Return the outputs of calls, by the edges at which the loss used them."""
        known: dict[MarkedEdge, torch.Tensor] = {}
        for call in self._calls:
            results = (call.alive() or rerun_results(call)) if call.returned else None
            if results is None or len(results) != len(call.results):
                continue
            call.level = max(map(level, results), default=FINITE)
            for (_, edge), result in zip(call.results, results, strict=True):
                if edge is not None:
                    known[edge] = result.detach()
        nodes = nodes_of({mark for mark, _ in known}, roots)
        return {(nodes[mark], n): value for (mark, n), value in known.items() if mark in nodes}

    def _run(self, call: RecordedCall, *, backward: bool) -> tuple[NonFiniteOrigin, ...]:
        found = rerun(call, alone=len(self._models()) <= 1, backward=backward)
        call.refused = self._alone is not None and self._alone.refused
        return found

    def _made(self, roots: Sequence[torch.Tensor]) -> int:
        """Return the number of nodes created since the last call returned."""
        node = roots[0].grad_fn if roots else None
        return node._sequence_nr() - self._calls[-1].end if node and self._calls else -1

    def _spans(self) -> list[Span]:
        return [call.span for call in self._calls]

    def _learn(self, module: nn.Module) -> SideEffects:
        """Learn the side effects of a model that was not called before in this mode."""
        self._side_effects = {
            key: h for key, h in self._side_effects.items() if h.module() is not None
        }
        side_effects = self._side_effects[id(module), module.training] = SideEffects(module)
        return side_effects

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self.busy = True
        try:
            with no_collectives() as self._alone:
                yield
        finally:
            self.busy = False


def _with_variable(origin: NonFiniteOrigin, call: RecordedCall | None = None) -> NonFiniteOrigin:
    """Return an origin from before a model's call or the loss with the script's variable that holds
    the NaN, and the line that set it.

    Args:
        call: the call whose input it is; None if the loss used it first.
    """
    place = origin.location
    if call is not None and call.line is not None:
        place = f"{shown(call.line[0])}:{call.line[1]}"
    if origin.phase != "input" or place is None:
        return origin
    if call is None and not origin.message.startswith(_BEFORE):
        return origin
    for name, line, text in assignments_read_at(place):
        value = variable_value(name)
        if not isinstance(value, torch.Tensor) or value.requires_grad or level(value) == FINITE:
            continue
        if call is not None:
            message = f"{origin.message} `{name}` is set at {line} (`{text}`)."
            within = singular_line(text)
            if within is not None:
                line, operation = within
                message += f" There, `{operation}` at {line} is NaN or Inf for some finite numbers."
            return replace(origin, message=message, location=line)
        message = f"`{name}`, set at {line} (`{text}`), {origin.message[len(_BEFORE) :]}"
        if value.numel() == 1 and _DEVIATION.search(text):
            message = f"{message} The standard deviation of a single value is NaN."
            advice = "Skip the division for one value, or use `std(correction=0)` with an eps."
            return replace(origin, message=message, location=line, advice=advice)
        return replace(origin, message=message, location=line)
    return origin
