"""Traces single steps of the script: to find why parameters get no gradient, or zeros; and with
``--deep FROM:TO``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.errors import first_line
from gradscope.explain.missing.explain_missing import MissingTrace
from gradscope.explain.non_finite.explain_non_finite import ScriptStepTracer
from gradscope.explain.shared.tracing_modes import Handler, lent
from gradscope.explain.zero.explain_zero import ZeroTrace
from gradscope.records.answers import Answer
from gradscope.records.loop import LoopCause, LoopRecord
from gradscope.training.guard import Guard
from gradscope.training.launch import Script
from gradscope.training.models import Model, Models

#: Number of traces in a run, and of steps in each, at most.
_MOST, _LONGEST = 3, 8
#: A fact seen at fewer steps is not traced.
_STEPS = 5
#: The fact of a parameter that asks for a trace, and the state that a trace explains.
_STATES = {"no-gradient": "missing", "zero-gradient": "zero"}
#: The other facts that explain themselves.
_EXPLAINED = frozenset({"untrained", "orphan", "idle"})


@dataclass(slots=True)
class _Missing:
    """A trace of missing gradients.

    Attributes:
        losses: the values from which backward started.
        first: the number of these before the latest step.
        turns: for each parameter whose optimizer has stepped, the losses since the step before,
            and the number of values of the trace at its step.
    """

    model: str
    trace: MissingTrace
    losses: list[int | None] = field(default_factory=list)
    first: int = 0
    turns: dict[str, tuple[int, tuple[int | None, ...]]] = field(default_factory=dict)

    def stepped(self, held: Collection[nn.Parameter]) -> None:
        """Note the step of an optimizer of these parameters."""
        turn = tuple(self.losses[self.first :])
        if turn:
            latest = self.trace.length, turn
            self.turns |= dict.fromkeys(self.trace.among(held), latest)
        self.first = len(self.losses)

    def answers(self) -> tuple[Answer, ...]:
        """Return the answers: for a parameter that only losses before other steps reach, why those
        before its own optimizer's step do not."""
        answers = self.trace.answers(self.losses)
        left = self.trace.reached(self.losses)
        turns: dict[tuple[int, tuple[int | None, ...]], list[str]] = {}
        for name in left:
            if name in self.turns:
                turns.setdefault(self.turns[name], []).append(name)
        for (length, turn), names in turns.items():
            unreached = set(names).difference(self.trace.reached(turn))
            found = self.trace.cuts_before(length, turn, unreached) if unreached else ()
            answers += found
            explained = {name for answer in found for name in answer.upstream}
            left = tuple(name for name in left if name not in explained)
        return answers + _cleared(left)


@dataclass(slots=True)
class _Zero:
    model: str
    trace: ZeroTrace
    steps: int
    found: bool = False


class CauseTracer:
    """Decides from the facts of each step whether to trace, and traces from one step to the next.

    The script's numbers, random state and gradients stay unchanged: each of its PyTorch calls runs
    once, and further computations of a trace write to nothing of the script.

    Attributes:
        active: True during a trace.
        causes: the causes found so far.
        untraced: the reason why nothing can be traced, else "".

    Args:
        guard: wraps the hooks, so that they never raise.
    """

    def __init__(self, guard: Guard) -> None:
        self.active = False
        self.causes: list[LoopCause] = []
        self.untraced = ""
        self._guard = guard
        self._left = _MOST
        self._traced: set[tuple[str, str, str]] = set()
        self._wanted: dict[tuple[str, str], dict[str, int]] = {}
        self._missing: list[_Missing] = []
        self._zero: list[_Zero] = []
        # The contexts of each tracer, and the number of function modes with both tracers or one.
        self._zero_tracers, self._tracers = ExitStack(), ExitStack()
        self._modes = self._modes_with_zero = 0
        self._stepped: list[int] = []
        self._nodes: list[Node] = []

    def forbid(self, why: str) -> None:
        """Trace nothing from now on."""
        self.untraced = self.untraced or why
        self.end()

    # ---------------------------------------------------------------- what to trace

    def consider(self, loop: LoopRecord) -> None:
        """Request a trace of facts that were not traced yet."""
        self._wanted = {}
        if self.untraced or not self._left or self.active or self.lingers:
            return
        for one in loop.parameters:
            for fact, state in _STATES.items():
                known = (one.model, one.name, state) in self._traced
                if fact not in one.facts or one.facts & _EXPLAINED or one.steps < _STEPS or known:
                    continue
                if one.name:
                    self._wanted.setdefault((one.model, state), {})[one.name] = one.steps

    @property
    def wanted(self) -> bool:
        """True if the next step is to be traced."""
        return bool(self._wanted)

    def begin(self, models: Iterable[tuple[str, Model]]) -> None:
        """Start a trace, between two steps.

        Args:
            models: the trained models, with their names.
        """
        wanted, self._wanted = self._wanted, {}
        self._left -= 1
        if foreign_modes():
            self.untraced = "the script itself uses a `TorchFunctionMode`"
            return
        self.active = True
        modules = {name: model.module for name, model in models if not model.compiled}
        try:
            for (name, state), steps in wanted.items():
                if name in modules and state == "missing":
                    self._trace_missing(name, modules[name], steps)
            self._modes = torch._C._len_torch_function_stack()
            for (name, state), steps in wanted.items():
                if name in modules and state == "zero":
                    self._trace_zeros(name, modules[name], steps)
            self._modes_with_zero = torch._C._len_torch_function_stack()
        except Exception as error:
            self._modes_with_zero = torch._C._len_torch_function_stack()
            self._modes = self._modes or self._modes_with_zero
            self._fail(error)
            self.end()
        if not (self._missing or self._zero):
            self.active = False

    def _trace_missing(self, name: str, module: nn.Module, steps: dict[str, int]) -> None:
        self._traced |= {(name, one, "missing") for one in steps}
        trace = MissingTrace(module, list(steps), Script.run.__code__, lent=True, guarding=self)
        self._tracers.enter_context(trace.active())
        self._missing.append(_Missing(name, trace))

    def _trace_zeros(self, name: str, module: nn.Module, steps: dict[str, int]) -> None:
        self._traced |= {(name, one, "zero") for one in steps}
        trace = ZeroTrace(module, list(steps), Script.run.__code__, guarding=self)
        self._zero_tracers.enter_context(trace.forward(stacks=False))
        self._zero.append(_Zero(name, trace, max(steps.values())))

    # ---------------------------------------------------------------- while a trace goes on

    def hook(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a hook on the script's modules, so that it never raises."""
        guarded = self._guard(function)
        return lambda *arguments: guarded(*arguments) if self.active else None

    def handler(self, handler: Handler) -> Handler:
        """Wrap a handler, so that each call of the script runs exactly once, even if the handler
        fails."""
        return lent(handler, lambda: self._guard.inside or not self.active, self._fail)

    def backward_begins(
        self,
        roots: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
    ) -> None:
        """Note the start of a backward from a loss with its graph."""
        try:
            for of_missing in self._missing:
                of_missing.losses += [of_missing.trace.value_of(root) for root in (*roots, *leaves)]
            for of_zeros in self._zero:
                if not of_zeros.found and len(roots) == 1 and roots[0].grad_fn is not None:
                    nodes = of_zeros.trace.replay(roots[0], *gradients[:1])
                    of_zeros.found = nodes is not None
                    self._nodes += nodes or ()
        except Exception as error:
            self._fail(error)
        if all(one.found for one in self._zero):
            self._close()

    @property
    def needs_stacks(self) -> bool:
        """True if the nodes of the graph must keep the Python stacks of their creation."""
        return self.active and not all(one.found for one in self._zero)

    def step_ended(
        self,
        optimizer: int,
        optimizers: Sequence[int],
        held: Collection[nn.Parameter] = (),
    ) -> bool:
        """Note the end of a step; return True if there are new results.

        With several optimizers, the first round may use tensors computed before the trace.

        Args:
            optimizer: the identity of the optimizer.
            optimizers: the identities of all that step.
            held: the parameters of the optimizer.
        """
        self._stepped.append(optimizer)
        for missing in self._missing:
            missing.stepped(held)
        rounds = 1 if len(optimizers) < 2 else 2
        again = min((self._stepped.count(one) for one in optimizers), default=rounds)
        if again < rounds and len(self._stepped) < _LONGEST:
            return False
        return self.conclude()

    def conclude(self) -> bool:
        """End the trace with its results so far; return True if there are any."""
        found: list[LoopCause] = []
        try:
            for missing in self._missing:
                if missing.losses:
                    found += [LoopCause(missing.model, answer) for answer in missing.answers()]
            for zero in self._zero:
                zero.trace.forget()
                answers = zero.trace.answers(seen=zero.steps)
                found += [LoopCause(zero.model, answer) for answer in answers]
        except Exception as error:
            self._fail(error)
        self.causes += found
        self.end()
        return bool(found)

    def take_nodes(self) -> list[Node]:
        """Return the traced nodes, to be freed when their graph is gone."""
        nodes, self._nodes = self._nodes, []
        return nodes

    def end(self) -> None:
        """Stop tracing for now."""
        self.active = False
        for one in self._zero:
            one.trace.forget()
        self._missing, self._zero, self._stepped = [], [], []
        self._close()

    def _close(self) -> None:
        """Remove modes that no trace needs any more.

        A block of the script may have put its own mode above ours. Until that block removes its
        mode, ours stays on the stack and does nothing.
        """
        if torch._C._len_torch_function_stack() == self._modes_with_zero:
            self._zero_tracers.close()
            self._modes_with_zero = self._modes
        if not self.active and torch._C._len_torch_function_stack() == self._modes:
            self._tracers.close()
            self._modes = self._modes_with_zero = 0

    @property
    def lingers(self) -> bool:
        """True if a mode is still to be removed."""
        return not self.active and self._modes_with_zero > 0

    def _fail(self, error: Exception) -> None:
        first = first_line(error)
        self.untraced = f"internal error in gradscope's tracer: {type(error).__name__}: {first}"
        self.active = False


def _cleared(names: tuple[str, ...]) -> tuple[Answer, ...]:
    """Return answers for parameters that backward reaches, but whose gradient the optimizer never
    finds.
    """
    if not names:
        return ()
    message = "`backward` reaches these parameters, but their gradients are cleared before the step"
    advice = "clear gradients once for each step, before the first `backward`"
    return (
        Answer(names[0], "parameter", "missing", message, "cleared", upstream=names, advice=advice),
    )


def foreign_modes() -> bool:
    """Return True if a mode of the script lies below ours on the stack and may be removed there."""
    modes = [
        torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())
    ]
    lasting = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return any(mode is not lasting for mode in modes)


class TracedSteps:
    """Starts to trace before the first traced step, and ends after the last.

    Attributes:
        tracer: the tracer of the current step, if it is traced.
        wanted: True if there are steps to trace.

    Args:
        steps: the first and the last step to trace; None for none.
        guard: the guard, whose calls are not traced.
    """

    def __init__(self, steps: tuple[int, int] | None, guard: Guard) -> None:
        self.tracer: ScriptStepTracer | None = None
        self.wanted = steps is not None
        self._steps, self._guard = steps, guard

    def arm(self, upcoming: int, models: Models) -> None:
        """Prepare before the step of this number begins."""
        if self._steps is None:
            return
        first, last = self._steps
        if self.tracer is None and first <= upcoming <= last:
            named = {models.name(model): model.module for model in models}
            if named:
                self.tracer = ScriptStepTracer(named, Script.run.__code__)
                self._guard.around = self.tracer.ignoring
        elif upcoming > last:
            self.end()

    def end(self) -> None:
        """Stop tracing."""
        if self.tracer is not None:
            self.tracer.remove()
            self.tracer = self._guard.around = None
