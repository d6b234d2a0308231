"""Computes each sample's part of every parameter's gradient, from one forward pass.

The gradient is a sum over samples: each sample's part comes from its row of the model's output. For
most layers, the part follows from the layer's input and the gradient of its output
(``layer_gradients.py``). All other parameters need one backward per sample, from that
sample's row of the output. Both methods are exact; they are compared on the sample with the largest
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm

from gradscope.capture.calls import in_backward
from gradscope.capture.graph import Edge, edge_of, walk
from gradscope.capture.hooks import hookable_modules, hooked
from gradscope.capture.names import named_modules, named_parameters
from gradscope.nesting import find
from gradscope.per_sample import layer_gradients
from gradscope.per_sample.layer_gradients import LayerCall

#: Gradients of several samples are held at once up to this many values.
_HELD = 1 << 22
#: Tolerance between the parts' sum and the gradient: rounding, as a share of its norm.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}


class NotSeparable(Exception):
    """The gradient cannot be split by sample; the message gives the reason."""


class TooSlow(Exception):
    """The gradient was not split by sample in the time that was allowed."""


@dataclass(frozen=True)
class SampleGradients:
    """The gradient of a batch, split by sample.

    Attributes:
        names: the parameters with a gradient.
        squares: the squared norm of each sample's part, float64 [samples, parameters].
        products: the scalar product of each part with the batch's gradient, [samples,
            parameters].
        batch: the squared norm of the batch's gradient, [parameters].
        rest: the squared norm of the part that comes from no sample's row, [parameters]: a
            penalty on weights, or a loss inside the model.
        by_hooks: for each parameter, True if the parts come from the layer's input and output
            gradient; False if from one backward per sample.
        mixing: modules that make each sample's output depend on the others.
    """

    names: tuple[str, ...]
    squares: torch.Tensor
    products: torch.Tensor
    batch: torch.Tensor
    rest: torch.Tensor
    by_hooks: tuple[bool, ...]
    mixing: tuple[str, ...] = ()

    @cached_property
    def norms(self) -> torch.Tensor:
        """Return the norm of each sample's part over all parameters, [samples]."""
        return self.squares.sum(1).sqrt()

    @cached_property
    def norm(self) -> float:
        """Return the norm of the batch's gradient."""
        return float(self.batch.sum().sqrt())

    @cached_property
    def shares(self) -> torch.Tensor:
        """Return each sample's share of the batch's gradient, measured along it, [samples].

        Shares add up to 1, minus the part that comes from no sample. A negative share pulls against
        the batch.
        """
        return self.products.sum(1) / self.batch.sum()

    @cached_property
    def cosines(self) -> torch.Tensor:
        """Return the cosine of each sample's part and the sum of all other parts, [samples]."""
        own, along, full = self.squares.sum(1), self.products.sum(1), self.batch.sum()
        others = (full - 2 * along + own).clamp_min(0)
        return (along - own) / (own * others).sqrt()


def sample_gradients(
    model: nn.Module,
    forward: Callable[[], tuple[Any, torch.Tensor]],
    count: int,
    in_time: Callable[[], bool] = lambda: True,
) -> SampleGradients:
    """Split the gradient of a loss by sample. No ``.grad`` is read or written.

    Args:
        model: the model; its trainable parameters are split.
        forward: runs the model; returns its output and the loss, with a graph.
        count: the number of samples, the first dimension of the model's output.
        in_time: returns False when the allowed time is over; it is called before each parameter
            and each sample.

    Raises:
        NotSeparable: no output has a row for each sample, or the loss has no graph.
        TooSlow: the time was over.
    """
    named = {p: n.name for p, n in named_parameters(model).items() if p.requires_grad}
    calls = _Calls(model, count)
    with calls.recorded(), torch.enable_grad():
        output, loss = forward()
    if not loss.requires_grad:
        raise NotSeparable("the loss has no graph")
    rows = _rows(output, loss, count)
    edges = [call.edge for call in calls.found]
    wanted: list[Any] = [*named, *edges, *(get_gradient_edge(row) for row in rows)]
    sent = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)
    full = {p: g for p, g in zip(named, sent, strict=False) if g is not None}
    back = sent[len(named) : len(named) + len(edges)]
    calls.returned(back)
    heads = _heads(rows, sent[len(named) + len(edges) :])
    parts = _Parts(full, count)
    by_hooks, known = [], calls.parameters
    for p in full:
        if p not in known:
            continue
        if not in_time():
            raise TooSlow
        if parts.take(p, calls.of(p)):
            by_hooks.append(p)
    if heads:
        by_hooks = _confirmed(by_hooks, parts, heads)
    others = [p for p in full if p not in set(by_hooks)]
    if others and not heads:
        words = ", ".join(f"`{named[p]}`" for p in others[:3])
        raise NotSeparable(f"no output of the model has a row for each sample, and {words} need it")
    if others:
        parts.forget(others)
        for n in range(count):
            if not in_time():
                raise TooSlow
            _row_by_row(others, parts, heads, n)
    names = tuple(named[p] for p in full)
    return SampleGradients(
        names,
        torch.stack([parts.squares[p] for p in full], 1),
        torch.stack([parts.products[p] for p in full], 1),
        torch.stack([_square(g) for g in full.values()]),
        torch.stack([_square(full[p] - parts.sums[p]) for p in full]),
        tuple(p in set(by_hooks) for p in full),
        tuple(
            n.name
            for module, n in named_modules(model).items()
            if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
        ),
    )


class _Parts:
    """Norms, products and the sum of the samples' parts, by parameter."""

    def __init__(self, full: dict[nn.Parameter, torch.Tensor], count: int) -> None:
        self.full, self.count = full, count
        self.squares: dict[nn.Parameter, torch.Tensor] = {}
        self.products: dict[nn.Parameter, torch.Tensor] = {}
        self.sums: dict[nn.Parameter, torch.Tensor] = {}

    def take(self, parameter: nn.Parameter, calls: Sequence[tuple[LayerCall, str]]) -> bool:
        """Take a parameter's parts from the calls of its layers; return True if they add up."""
        self.forget([parameter])
        size = max(1, _HELD // max(1, parameter.numel()))
        for start in range(0, self.count, size):
            samples = slice(start, min(start + size, self.count))
            try:
                own = [layer_gradients.gradients(call, samples)[name] for call, name in calls]
            except Exception:
                return False  # what a module of the user's raises on one sample: it is not needed
            total = own[0] if len(own) == 1 else torch.stack(own).sum(0)
            if total.shape[1:] != parameter.shape:
                return False
            self.add(parameter, samples, total)
        full, off = self.full[parameter], self.full[parameter] - self.sums[parameter]
        bound = _ROUNDING.get(full.dtype, 3e-2)
        return bool(_square(off) <= bound**2 * self.squares[parameter].sum())

    def add(self, parameter: nn.Parameter, samples: slice, parts: torch.Tensor) -> None:
        """Add the parts of some samples, [samples, *shape]."""
        wide = parts.detach().reshape(parts.shape[0], -1).double()
        self.squares[parameter][samples] = (wide * wide).sum(1)
        self.products[parameter][samples] = wide @ self.full[parameter].reshape(-1).double()
        self.sums[parameter] += parts.sum(0)

    def forget(self, parameters: Sequence[nn.Parameter]) -> None:
        """Reset the parts."""
        for parameter in parameters:
            zeros = torch.zeros(self.count, dtype=torch.float64, device=parameter.device)
            self.squares[parameter], self.products[parameter] = zeros, zeros.clone()
            self.sums[parameter] = torch.zeros_like(self.full[parameter])


@dataclass(slots=True)
class _Pending:
    """A call that has returned; its output's gradient comes later."""

    module: nn.Module
    input: torch.Tensor
    version: int
    edge: GradientEdge
    call: LayerCall | None = None


class _Calls:
    """The calls of a forward pass whose parameter gradients ``layer_gradients`` can split."""

    def __init__(self, model: nn.Module, count: int) -> None:
        self._count = count
        self._refused: set[nn.Module] = set()
        self.found: list[_Pending] = []
        self._modules = [m for m in hookable_modules(model) if layer_gradients.known(m)]
        holders: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                holders.setdefault(parameter, []).append((module, name))
        known = set(self._modules)
        self._holders = {p: h for p, h in holders.items() if all(m in known for m, _ in h)}

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record calls until leaving."""
        with hooked(self._modules, lambda *_: None, self._after):
            yield

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if in_backward():  # a checkpoint computes it again
            return
        output = output[0] if isinstance(output, tuple) else output
        axis = 0 if getattr(module, "batch_first", True) else 1
        given = args[0] if len(args) == 1 and not kwargs else None
        for tensor in (given, output):
            if not _has_rows(tensor, axis, self._count):
                self._refused.add(module)
                return
        if output.requires_grad and given is not None:
            edge = get_gradient_edge(output)
            self.found.append(_Pending(module, given.detach(), given._version, edge))

    def returned(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Note the gradient of each call's output; None if no loss depends on it."""
        for pending, gradient in zip(self.found, gradients, strict=True):
            if gradient is not None:
                pending.call = LayerCall(
                    pending.module, pending.input, pending.version, gradient.detach()
                )
                if pending.call.overwritten:
                    self._refused.add(pending.module)

    @property
    def parameters(self) -> set[nn.Parameter]:
        """Return the parameters whose calls are all known."""
        called = {one.module for one in self.found if one.call is not None} - self._refused
        return {
            p
            for p, holders in self._holders.items()
            if not any(m in self._refused for m, _ in holders)
            and any(m in called for m, _ in holders)
        }

    def of(self, parameter: nn.Parameter) -> list[tuple[LayerCall, str]]:
        """Return the calls that use a parameter, with its name in each module."""
        names = dict(self._holders[parameter])
        return [
            (one.call, names[one.module])
            for one in self.found
            if one.call is not None and one.module in names
        ]


def _has_rows(tensor: Any, axis: int, count: int) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dim() > axis and tensor.shape[axis] == count


def _rows(output: Any, loss: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Return the outputs with a row for each sample."""
    return [
        tensor
        for _, tensor in find(output, torch.Tensor)
        if tensor.requires_grad and tensor is not loss and _has_rows(tensor, 0, count)
    ]


#: Outputs, each with the gradient that the loss sends it past all other outputs.
_Heads = Sequence[tuple[torch.Tensor, torch.Tensor]]


def _heads(rows: Sequence[torch.Tensor], full: Sequence[torch.Tensor | None]) -> _Heads:
    """Return the outputs that the loss reads directly; ``full`` has their gradients over all paths.

    If one output is computed from another, such as logits from a hidden state, that path is
    subtracted from the other's gradient, so that each path counts once.
    """
    known = {edge_of(row): (row, g) for row, g in zip(rows, full, strict=True) if g is not None}
    below: dict[Edge, list[Edge]] = {edge: [] for edge in known}
    for edge in known:
        reached = walk([edge], set(known))
        for other in known:
            if other != edge and reached.consumers.get(other):
                below[other].append(edge)
    heads: dict[Edge, tuple[torch.Tensor, torch.Tensor]] = {}
    for edge in sorted(known, key=lambda one: len(below[one])):
        row, gradient = known[edge]
        after = [heads[one] for one in below[edge] if one in heads]
        if after:
            (through,) = torch.autograd.grad(
                [head for head, _ in after],
                row,
                [g for _, g in after],
                retain_graph=True,
                allow_unused=True,
            )
            own = gradient if through is None else gradient - through
            bound = _ROUNDING.get(gradient.dtype, 3e-2) * 1e-3
            if _square(own) <= bound**2 * _square(gradient):
                continue
            gradient = own
        heads[edge] = row, gradient
    return list(heads.values())


def _confirmed(by_hooks: list[nn.Parameter], parts: _Parts, heads: _Heads) -> list[nn.Parameter]:
    """Return the parameters whose part a backward from one sample's output row confirms.

    If the first axis is the T positions, and T equals the number of samples, a layer's parts add up
    too, but they are the parts of positions.
    """
    if not by_hooks:
        return []
    worst = int(torch.stack([parts.squares[p] for p in by_hooks]).sum(0).argmax())
    same = []
    for parameter, gradient in zip(by_hooks, _from_row(by_hooks, heads, worst), strict=True):
        norm = parts.squares[parameter][worst].sqrt()
        own = 0.0 if gradient is None else _square(gradient).sqrt()
        bound = 10 * _ROUNDING.get(parameter.dtype, 3e-2)
        if abs(norm - own) <= bound * parts.squares[parameter].sum().sqrt():
            same.append(parameter)
    return same


def _row_by_row(
    parameters: Sequence[nn.Parameter], parts: _Parts, heads: _Heads, sample: int
) -> None:
    """Add the parts of one sample, from its row of the output."""
    found = _from_row(parameters, heads, sample)
    for parameter, gradient in zip(parameters, found, strict=True):
        if gradient is not None:
            parts.add(parameter, slice(sample, sample + 1), gradient.unsqueeze(0))


def _from_row(
    parameters: Sequence[nn.Parameter], heads: _Heads, sample: int
) -> Sequence[torch.Tensor | None]:
    sent = []
    for _, gradient in heads:
        own = torch.zeros_like(gradient)
        own[sample] = gradient[sample]
        sent.append(own)
    return torch.autograd.grad(
        [row for row, _ in heads], list(parameters), sent, retain_graph=True, allow_unused=True
    )


def _square(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return tensor.detach().double().square().sum()
