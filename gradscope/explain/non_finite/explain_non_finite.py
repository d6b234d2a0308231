"""Finds the origin of a NaN or Inf: in a step, in one call of a module, in steps of a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any

import torch
from torch import nn

from gradscope.capture.hooks import hookable_modules, hooked
from gradscope.capture.names import buffer_names, first_names
from gradscope.explain.non_finite.operation_tracer import NonFiniteTracer
from gradscope.explain.non_finite.origins import records, unseen
from gradscope.explain.non_finite.reasons import level
from gradscope.explain.shared.tracing_modes import ModuleCalls
from gradscope.nesting import find
from gradscope.records.answers import NonFiniteOrigin


def explain_non_finite(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    step: Callable[[], None] | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
) -> tuple[NonFiniteOrigin, ...]:
    """Return the operations that made a NaN or Inf from finite numbers, oldest first.

    Runs one step under a mode that checks the result of every operation. It is slow, so use it only
    after a problem was found. It keeps no tensor. A NaN or Inf counts only if it reaches something
    that persists: the loss, a gradient, a parameter, a buffer, a NaN in a module's output, an index
    found by comparison. So the -inf of a mask does not count, nor does a quotient that `where`
    discards.

    Args:
        model: names the modules and owns the parameters, whose ``.grad`` should be empty.
        forward: runs the model and the loss, and returns the loss.
        backward: takes the loss and fills the gradients.
        step: the optimizer's step; None leaves it out. The caller restores the weights
            afterwards.
        inputs: the inputs of the model and of the loss, by name, in any nesting. The model's
            own arguments are always checked.

    Returns:
        One record per operation and place. If no traced operation made a NaN or Inf, a record says
        so. If the run raises: the origins so far.
    """
    tracer = NonFiniteTracer(model, _run.__code__)
    with tracer.quiet():
        tracer.external.before(inputs)
    left = _run(model, forward, backward, step, tracer)
    found = records(tracer.origins.reported(), {name for name, _ in first_names(model)})
    if not left:
        return found
    # A result that was not traced comes back as a tensor of unknown origin, which explains less.
    return left[0], *(one for one in found if one.phase != "input" or one.name)


def explain_call(
    model: nn.Module,
    root: nn.Module,
    forward: Callable[[], Any],
    backward: Callable[[Any], Iterable[tuple[str, torch.Tensor]]] | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    line: tuple[str, int] | None = None,
) -> tuple[NonFiniteOrigin, ...]:
    """Explain one call of a module alone, without its loss.

    Args:
        model: names the modules and owns the parameters.
        root: the module of the call: ``model``, or a module inside it.
        forward: calls it, and returns its output.
        backward: takes the output, runs backward, and returns the gradients of the call's
            arguments by name; None leaves it out.
        inputs: its arguments by name.
        line: the line of the call, for operations without a line of the user.
    """
    calls = ModuleCalls(model, _run_call.__code__, line)
    tracer = NonFiniteTracer(model, calls.last, root, calls)
    with tracer.quiet():
        tracer.external.before(inputs)
    left = _run_call(model, forward, backward, tracer)
    found = records(tracer.origins.reported(), {name for name, _ in first_names(model)})
    return found or left


def _run_call(
    model: nn.Module,
    forward: Callable[[], Any],
    backward: Callable[[Any], Iterable[tuple[str, torch.Tensor]]] | None,
    tracer: NonFiniteTracer,
) -> tuple[NonFiniteOrigin, ...]:
    """Run the call; return the non-finite values without an origin."""
    left: list[NonFiniteOrigin] = []
    with hooked(hookable_modules(model), tracer.enter, tracer.leave):
        try:
            with tracer.active():
                output = forward()
            left += _came_unseen(tracer, output)
            left += stays(tracer, "forward", buffer_names(model))
            if backward is not None:
                tracer.context.stage = "backward"
                with tracer.active():
                    given = backward(output)
                left += stays(tracer, "backward", (*gradients(model), *given))
        except Exception:
            # The call succeeded in the script; this replay may lack some of its inputs.
            tracer.origins.mark_reached(tracer.origins.made_nan())
    return tuple(left)


def _came_unseen(tracer: NonFiniteTracer, output: Any) -> Iterator[NonFiniteOrigin]:
    """Yield NaN and Inf in a call's output without a traced origin."""
    with tracer.quiet():
        for name, tensor in find(output, torch.Tensor):
            found = level(tensor)
            if found and not tracer.origins.of(tensor):
                yield unseen(found, "forward", f"output {name}".rstrip())


def _run(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    step: Callable[[], None] | None,
    tracer: NonFiniteTracer,
) -> tuple[NonFiniteOrigin, ...]:
    """Run the step; return the non-finite values without an origin."""
    left: list[NonFiniteOrigin] = []
    with hooked(hookable_modules(model), tracer.enter, tracer.leave):
        try:
            with tracer.active():
                loss = forward()
            left += stays(tracer, "loss", [("loss", loss)])
            left += stays(tracer, "forward", buffer_names(model))
            if loss.requires_grad:
                tracer.context.stage = "backward"
                with tracer.active():
                    backward(loss)
                left += stays(tracer, "backward", gradients(model))
            if step is not None:
                tracer.context.stage = "step"
                with tracer.active():
                    step()
                left += stays(tracer, "step", first_names(model))
                tracer.external.kept_in_state()
        except Exception:
            # The run that the user asked for has raised it already, and explained it.
            tracer.origins.mark_reached(tracer.origins.made_nan())
    return tuple(left)


def gradients(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Return the existing gradients by parameter."""
    return ((n, p.grad) for n, p in first_names(model) if p.grad is not None)


def stays(
    tracer: NonFiniteTracer, phase: str, tensors: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[NonFiniteOrigin]:
    """Note NaN and Inf in these tensors; yield those without a known origin."""
    with tracer.quiet():
        for name, tensor in tensors:
            if kind := tracer.external.stays(tensor, name):
                yield unseen(kind, phase, name)


class ScriptStepTracer:
    """Checks every operation during some steps of a training.

    Args:
        models: the trained models, by name.
        last: the code of the function that runs the script: the frames around it are not the
            user's.
    """

    def __init__(self, models: Mapping[str, nn.Module], last: CodeType) -> None:
        self._model = _together(models)
        self._tracer = NonFiniteTracer(self._model, last)
        self._stack = ExitStack()
        self._left: list[NonFiniteOrigin] = []
        self._stack.enter_context(
            hooked(hookable_modules(self._model), self._tracer.enter, self._tracer.leave)
        )
        self._stack.enter_context(self._tracer.active())

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """Exclude the computations in the block: they do not belong to the script."""
        with self._tracer.ignoring():
            yield

    def backward_begins(self, roots: Sequence[torch.Tensor]) -> None:
        """Note the end of forward and loss."""
        named = [("loss", root) for root in roots]
        self._left += stays(self._tracer, "loss", named)
        self._left += stays(self._tracer, "forward", buffer_names(self._model))
        self._tracer.context.stage = "backward"

    def backward_ended(self) -> None:
        """Note the end of a backward; another forward may follow."""
        self._left += stays(self._tracer, "backward", gradients(self._model))
        self._tracer.context.stage = "forward"

    def step_begins(self) -> None:
        """Note the start of the optimizer's step."""
        self._tracer.context.stage = "step"

    def step_ended(self) -> tuple[NonFiniteOrigin, ...]:
        """Return the origins of NaN and Inf since the end of the last step, oldest first."""
        self._left += stays(self._tracer, "step", first_names(self._model))
        self._tracer.external.kept_in_state()
        self._tracer.context.stage = "forward"
        names = {name for name, _ in first_names(self._model)}
        found = records(self._tracer.origins.reported(), names)
        left, self._left = self._left, []
        return found or tuple(left[:1])

    def remove(self) -> None:
        """Stop checking."""
        self._stack.close()


def _together(models: Mapping[str, nn.Module]) -> nn.Module:
    """Return one model as it is; several as children of a new module."""
    if len(models) == 1:
        return next(iter(models.values()))
    around = nn.Module()
    around._modules.update(models)
    return around
