"""PyTorch's own ``gradcheck`` on layers inside a model, with their inputs as they flow.

Each layer is copied as it is right before its call, and checked in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.gradcheck import GradcheckError, gradcheck

from gradscope.capture.calls import ModuleCall, ModuleCalls, call_tensors
from gradscope.capture.measurements import is_floating
from gradscope.errors import first_line
from gradscope.loading.random_states import RandomState
from gradscope.loading.workload import widened
from gradscope.nesting import find, replaced
from gradscope.patterns import Named
from gradscope.records.full_samples import GradientCheck
from gradscope.running.state import random_states
from gradscope.running.step import Step

#: Up to this many elements are moved one by one; more are moved together, in one direction.
_EACH = 64
#: Step of the finite differences, and of the check beside a kink.
_EPSILON, _BESIDE = 1e-6, 1e-2
_KINK = "next to these values, where the layer has no unique derivative, or a special case"
_FORWARD = "forward returns other values in a second run"
_BACKWARD = "backward returns other values in a second run"


@dataclass(slots=True)
class _Call:
    """A call of a layer, as it was about to run, in float64; or the reason why it cannot run."""

    name: str
    type: str
    number: int
    module: nn.Module | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    states: Sequence[RandomState] = ()
    fault: str = ""


def gradient_checks(step: Step, chosen: dict[nn.Module, Named]) -> tuple[GradientCheck, ...]:
    """Check every floating input and trainable parameter of each call of the modules, in order.

    ``step`` comes from a rerun; its forward runs here.
    """
    calls: list[_Call] = []
    running = ModuleCalls({module: named.name for module, named in chosen.items()})

    def before(begun: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = _Call(begun.name, type(begun.module).__name__, begun.number)
        calls.append(call)
        try:
            call.states = random_states()
            call.args, call.kwargs = _own((args, kwargs))
            call.module = copy.deepcopy(begun.module).double()
        except Exception as error:
            call.fault = f"cannot be copied: {first_line(error)}"

    with running.observed(chosen, before=before):
        step.forward()
    with torch.enable_grad():
        return tuple(check for call in calls for check in _checks(call))


def _own(tree: Any) -> Any:
    return replaced(widened(tree), torch.Tensor, lambda tensor: tensor.detach().clone())


def _checks(call: _Call) -> Iterator[GradientCheck]:
    least = GradientCheck(call.name, call.type, call.number, "", "unchecked")
    if call.module is None:
        yield replace(least, note=call.fault)
        return
    function = _Function(call, call.module)
    if not function.names:
        yield replace(least, note="no floating input, and no trainable parameter")
        return
    try:
        first, again = function.values(), function.values()
        if not first:
            yield replace(least, note="it returns no floating tensor")
            return
        if any(not torch.equal(a, b) for a, b in zip(first, again, strict=True)):
            yield replace(least, verdict="non-deterministic", note=_FORWARD)
            return
    except Exception as error:
        yield replace(least, note=f"fails in float64: {first_line(error)}")
        return
    for name in function.names:
        yield _check(replace(least, input=name), function, name)


def _check(least: GradientCheck, function: _Function, name: str) -> GradientCheck:
    """Return the verdict on one input; a wrong one is also checked beside its value."""
    try:
        wrong = function.fault(name)
        backward, differences = function.slopes(name)
        if wrong is not None and "not reentrant" not in wrong:
            with function.beside():
                wrong = _KINK if function.fault(name) is None else wrong
    except Exception as error:
        return replace(least, note=f"fails in float64: {first_line(error)}")
    found = replace(least, verdict="right", backward=backward, differences=differences)
    if wrong is None:
        return found
    if wrong == _KINK:
        return replace(found, verdict="kink", note=_KINK)
    if "not reentrant" in wrong:
        return replace(found, verdict="non-deterministic", note=_BACKWARD)
    return replace(found, verdict="wrong")


class _Function:
    """A call as a function of its floating inputs and trainable parameters, by name.

    These are leaves: to evaluate the function at another point, other numbers are written into
    them.
    """

    def __init__(self, call: _Call, module: nn.Module) -> None:
        self._call, self._module = call, module
        self._buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
        self._inputs: dict[int, torch.Tensor] = {}
        self._leaves: dict[str, torch.Tensor] = {}
        for path, tensor in call_tensors(call.args, call.kwargs):
            if is_floating(tensor) and id(tensor) not in self._inputs:
                leaf = tensor.clone().requires_grad_()
                self._inputs[id(tensor)] = self._leaves[f"input {path}"] = leaf
        self._leaves |= {name: p for name, p in module.named_parameters() if p.requires_grad}

    @property
    def names(self) -> list[str]:
        """Return the names of all tensors that can have a gradient."""
        return list(self._leaves)

    def values(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors that the call returns."""
        with torch.no_grad():
            return self._run()

    def fault(self, name: str) -> str | None:
        """Return the error of PyTorch's ``gradcheck`` for one tensor; None without one."""
        leaf = self._leaves[name]
        try:
            gradcheck(
                lambda _: self._run(),
                (leaf,),
                eps=_EPSILON,
                fast_mode=leaf.numel() > _EACH,
                check_undefined_grad=False,
            )
        except GradcheckError as error:
            return str(error)
        return None

    def slopes(self, name: str) -> tuple[float | None, float]:
        """Return the derivative in one random direction, by backward and by finite differences."""
        generator = torch.Generator().manual_seed(0)
        leaf, outputs = self._leaves[name], self._run()
        direction = _drawn(leaf, generator)
        weights = [_drawn(output, generator) for output in outputs]

        def weighted(results: Sequence[torch.Tensor]) -> torch.Tensor:
            pairs = zip(weights, results, strict=True)
            return torch.stack([(w.conj() * result).real.sum() for w, result in pairs]).sum()

        total, backward = weighted(outputs), None
        if total.requires_grad:
            (gradient,) = torch.autograd.grad(total, leaf, allow_unused=True)
            found = torch.zeros_like(leaf) if gradient is None else gradient
            backward = float((found.conj() * direction).real.sum())
        forwards, backwards = (
            float(weighted(self._values_at(name, sign * _EPSILON * direction))) for sign in (1, -1)
        )
        return backward, (forwards - backwards) / (2 * _EPSILON)

    def _values_at(self, name: str, distance: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with _moved([(self._leaves[name], distance)]):
            return self.values()

    def beside(self) -> AbstractContextManager[None]:
        """Move the inputs slightly in the block."""
        generator = torch.Generator().manual_seed(1)
        inputs = [leaf.detach() for leaf in self._inputs.values()]
        sizes = [float(leaf.abs().square().mean().sqrt()) or 1.0 for leaf in inputs]
        steps = [_BESIDE * s * _drawn(t, generator) for t, s in zip(inputs, sizes, strict=True)]
        return _moved(list(zip(self._inputs.values(), steps, strict=True)))

    def _run(self) -> tuple[torch.Tensor, ...]:
        """Return the floating outputs, from the call's random state and buffers."""
        call = self._call
        for state in call.states:
            state()
        for buffer, value in self._buffers:
            buffer.data.copy_(value)  # past the version that a graph remembers

        def put(tensor: torch.Tensor) -> torch.Tensor:
            return self._inputs.get(id(tensor), tensor).clone()  # a layer may write into it

        args, kwargs = replaced((call.args, call.kwargs), torch.Tensor, put)
        output = self._module(*args, **kwargs)
        return tuple(tensor for _, tensor in find(output, torch.Tensor) if is_floating(tensor))


@contextmanager
def _moved(leaves: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Move the numbers of leaves by given distances in the block; then restore them."""
    found = [leaf.detach().clone() for leaf, _ in leaves]
    for leaf, distance in leaves:
        leaf.data.add_(distance)
    try:
        yield
    finally:
        for (leaf, _), value in zip(leaves, found, strict=True):
            leaf.data.copy_(value)


def _drawn(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like)
