"""Finds mistakes in how a model is built: chains of linear layers, modules in a list several times,
trained tensors that are not parameters, axes scrambled by a view before a module's first call.
"""

from __future__ import annotations

import ast
import re
import sys
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from linecache import getline
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.capture.names import modules_by_name
from gradscope.capture.nodes import MOVES
from gradscope.capture.shards import PLAIN
from gradscope.explain.shared.frames import (
    in_library,
    innermost,
    is_hidden,
    outwards,
    shown,
    source_file,
    tree_of,
)
from gradscope.records.loop import PlainTensor
from gradscope.records.loop_figures import LoopFact
from gradscope.training.discovery import variable_name
from gradscope.training.loop.construction import Made
from gradscope.training.loop.loss_walk import LAYERS, kind, weight_of
from gradscope.training.loop.padded_states import PaddedStates
from gradscope.training.loop.script_lines import written, written_assignment
from gradscope.training.models import Models

#: A larger graph is not walked to its end.
_OF_CHAIN = 4096
#: The edge by which a layer's input comes.
_INPUT = {"AddmmBackward": 1, "MmBackward": 0, "ConvolutionBackward": 0}
#: Linear in their input, whose edge is the first; a product with a mask may be an activation.
_LINEAR = MOVES | {
    "NativeBatchNormBackward",
    "CudnnBatchNormBackward",
    "NativeDropoutBackward",
    "AvgPool2DBackward",
}


#: Activations between layers; not those of an output alone, as a softmax for predictions.
ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU),
    *(nn.SiLU, nn.Mish, nn.Hardswish, nn.Softplus, nn.Tanh),
)
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Pair(NamedTuple):
    """The weights of two linear layers in a row, in the order of forward."""

    first: torch.Tensor
    second: torch.Tensor


def layer_pairs(roots: Sequence[object]) -> Iterator[Pair]:
    """Yield pairs of layers upstream of these tensors with only linear operations between them."""
    stack = [root.grad_fn for root in roots if isinstance(root, torch.Tensor) and root.grad_fn]
    seen = set(stack)
    while stack and len(seen) < _OF_CHAIN:
        node = stack.pop()
        if kind(node) in LAYERS:
            before = _layer_before(node)
            second, first = weight_of(node), None if before is None else weight_of(before)
            if first is not None and second is not None:
                yield Pair(first, second)
        for one, _ in node.next_functions:
            if one is not None and one not in seen and not isinstance(one, LEAF):
                seen.add(one)
                stack.append(one)


def _layer_before(layer: Node) -> Node | None:
    node = layer.next_functions[_INPUT[kind(layer)]][0]
    while node is not None and kind(node) not in LAYERS:
        edges = [one for one, _ in node.next_functions]
        adds_bias = kind(node) == "AddBackward" and isinstance(edges[1], LEAF)
        if kind(node) not in _LINEAR and not adds_bias:
            return None
        node = edges[0]
    return node


def unused_activations(
    model: nn.Module, pairs: Collection[tuple[int, int]], idle: Collection[nn.Module]
) -> Iterator[LoopFact]:
    """Yield the unused activations of a model, if most of the layers around them follow each other
    directly.

    Args:
        pairs: the ids of the weights of linear layers in a row.
        idle: modules that were never called.
    """
    if not pairs or not idle:
        return
    named = modules_by_name(model)
    for owner, module in named.items():
        unused = [k for k, one in module.named_children() if one in idle]
        if not unused:
            continue
        layers = dict(_layers_beside(module))
        names = {id(one.weight): name for name, one in layers.items()}
        mine = [(names[a], names[b]) for a, b in pairs if a in names and b in names]
        if not mine or 2 * len(mine) <= len(layers) - 1:
            continue  # one pair among others is a bottleneck
        before, after = min(mine, key=lambda pair: list(layers).index(pair[0]))
        around = f"{owner}." if owner else ""
        words = tuple(f"{around}{name}" for name in (*unused, before))
        yield LoopFact("unused-activation", f"{around}{after}", count=len(mine), words=words)


def _layers_beside(module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the layers of a module and of its plain lists."""
    for name, child in module.named_children():
        if isinstance(child, _LAYERS):
            yield name, child  # type: ignore[misc]  # whichever it is, it has a weight
        elif type(child) in (nn.ModuleList, nn.Sequential):
            yield from ((f"{name}.{key}", one) for key, one in _layers_beside(child))


#: How many lines may lie between the list and the list of modules that is made of it.
_NEAR = 3


def repeated_modules(modules: Mapping[str, nn.Module]) -> Iterator[LoopFact]:
    """Yield the lists whose members are all the same trainable module."""
    for name, module in modules.items():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
            continue
        (member, count), *others = Counter(module._modules.values()).most_common()
        if not others and member is not None and any(p.requires_grad for p in member.parameters()):
            yield LoopFact("repeated", name, count=count, words=(type(member).__name__,))


def repeated_at(made: Made | None) -> str | None:
    """Return the line that multiplies a list of one module, in the function that made the module
    list. None without such a line: other repetitions may be intended."""
    tree = None if made is None else tree_of(made.file)
    if made is None or tree is None:
        return None
    for node in ast.walk(innermost(tree, made.number_of_line)):
        match node:
            case ast.BinOp(left=ast.List(elts=[one]) | ast.Tuple(elts=[one]), op=ast.Mult()) if (
                not isinstance(one, ast.Constant)
                and abs(node.lineno - made.number_of_line) <= _NEAR
            ):
                return f"{shown(made.file)}:{node.lineno}"
    return None


#: Number of operations allowed between a tensor and its leaf.
_MOST = 16


def plain_tensors(
    model: nn.Module, held: Collection[int]
) -> Iterator[tuple[PlainTensor, torch.Tensor]]:
    """Yield plain tensors with leaves that get a gradient and are neither registered nor in an
    optimizer.

    An example is ``nn.Parameter(…).unsqueeze(0)``: the attribute holds the result, not the
    parameter.

    Args:
        held: the ids of the parameters of all optimizers.

    Yields:
        Each with its first leaf.
    """
    known = {id(parameter) for parameter in model.parameters()} | set(held)
    for name, module in model.named_modules():
        for attribute, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                leaves = list(_leaves(value))
                if leaves and all(id(p) not in known and p.grad is not None for p in leaves):
                    line = attribute_line(module, attribute)
                    found = PlainTensor(name, attribute, tuple(value.shape), value.is_leaf, line)
                    yield found, leaves[0]


def _leaves(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the leaves that a tensor was computed from; none if the graph is large."""
    if tensor.grad_fn is None:
        yield tensor
        return
    nodes, leaves = [tensor.grad_fn], list[torch.Tensor]()
    for node in nodes:  # it grows
        if isinstance(node, LEAF):
            leaves.append(node.variable)
        nodes += [one for one, _ in node.next_functions if one is not None]
        if len(nodes) > _MOST:
            return
    yield from leaves


def attribute_line(module: nn.Module, attribute: str) -> str | None:
    """Return the line of the class that sets the attribute."""
    file = source_file(type(module))
    return None if file is None else written(rf"\bself\.{attribute}\s*(:[^=]*)?=[^=]", file)


#: A view in the text of a script, how many lines above a call it is searched for, and in how many
#: functions.
_VIEW, _ABOVE, _FRAMES = re.compile(r"\b(view|reshape)\("), 12, 3
#: Fewer sequences, or shorter ones, say little of the padding.
_SEQUENCES, _LENGTH = 4, 4
_Module = weakref.ref[nn.Module]


class FirstInputs:
    """Keeps only shapes and the line of the call, not the input."""

    def __init__(self) -> None:
        self._scrambled: list[tuple[_Module, tuple[tuple[int, ...], ...], str | None]] = []
        self._padded: list[tuple[_Module, int, int, int]] = []
        self._states = PaddedStates()

    def called(self, module: nn.Module, args: Sequence[Any]) -> None:
        """Note the first call of a module."""
        given = args[0] if args else None
        if not isinstance(given, torch.Tensor) or type(given) not in PLAIN:
            return
        if given.is_meta or given.layout != torch.strided or given.is_nested:
            return
        if isinstance(module, nn.RNNBase):
            self._states.called(module, given)
        if isinstance(module, nn.Embedding):
            self._states.embedded(given, module.padding_idx or 0)
            found = None if module.padding_idx is None else _among(given, module.padding_idx)
            if found is not None:
                self._padded.append((weakref.ref(module), module.padding_idx or 0, *found))
        elif is_scrambled(given):
            assert given._base is not None
            shapes = tuple(given._base.shape), tuple(given.shape)
            self._scrambled.append((weakref.ref(module), shapes, _view_before()))

    def entered(self, module: nn.Module, given: Iterable[torch.Tensor]) -> None:
        """Note the first call of a model: a list of edges may be viewed, not transposed."""
        for one in given:
            base = one._base
            if (
                base is None
                or base.is_nested
                or one.is_floating_point()
                or base.dim() != 2
                or base.shape[1] != 2
            ):
                continue
            if one.shape == (2, len(base)) and len(base) > 2 and is_scrambled(one):
                name = variable_name(one)
                line = (name and written_assignment(name)) or _view_before()
                shapes = tuple(base.shape), tuple(one.shape)
                self._scrambled.append((weakref.ref(module), shapes, line))

    def facts(self, models: Models) -> Iterator[LoopFact]:
        """Yield the facts on the modules of a model."""
        yield from self._states.facts(models)
        if not self._scrambled and not self._padded:
            return
        named = {
            id(module): (models.name(model), name)
            for model in models
            for name, module in modules_by_name(model.module).items()
        }
        for ref, shapes, line in self._scrambled:
            model, name = named.get(id(ref()), (None, ""))
            if model is not None:
                yield LoopFact("scrambled", name, model, shapes=shapes, location=line)
        for ref, index, inner, count in self._padded:
            model, name = named.get(id(ref()), (None, ""))
            if model is not None:
                figures = float(index), float(count)
                yield LoopFact("padding", name, model, count=inner, figures=figures)


def is_scrambled(tensor: torch.Tensor) -> bool:
    """Return True if a view has the axis sizes of its base in another order, although no number
    moved. ``permute`` also permutes the strides. If a view does not, its axes are scrambled.
    """
    base = tensor._base
    if base is None or base.is_nested or base.dim() < 2:
        return False
    if not (tensor.is_contiguous() and base.is_contiguous()):
        return False
    # A batch is often a part of a larger base: then only its samples are compared.
    first = 0 if base.numel() == tensor.numel() else 1
    return any(_permuted(base.shape[skip:], tensor.shape[skip:]) for skip in {first, 1})


def _permuted(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return True if the sizes above 1 are the same in another order."""
    one, other = ([size for size in sizes if size > 1] for sizes in (before, after))
    return one != other and sorted(one) == sorted(other)


def _among(tokens: torch.Tensor, index: int) -> tuple[int, int] | None:
    """Return the number of sequences with the padding index between other tokens, and the number of
    all sequences; None if these are fewer than half, or if the indices form runs."""
    if tokens.dim() != 2 or tokens.shape[0] < _SEQUENCES or tokens.shape[1] < _LENGTH:
        return None
    if tokens.is_floating_point():
        return None
    other = (tokens != index).int()
    begun, left = other.cumsum(1) > 0, other.flip(1).cumsum(1).flip(1) > 0
    inner = (other == 0) & begun & left
    starts = inner & torch.nn.functional.pad(other[:, :-1] > 0, (1, 0), value=False)
    rows, runs, count = (int(one) for one in (inner.any(1).sum(), starts.sum(), inner.sum()))
    padding = int((other == 0).sum())
    if 2 * rows < len(tokens) or count > 2 * runs or 2 * count < padding or runs < 2 * rows:
        return None
    return rows, len(tokens)


def _view_before() -> str | None:
    """Return the nearest line above the running call that makes a view, in its function or the next
    outer ones; else the line of the call."""
    line, functions = None, 0
    for frame in outwards(sys._getframe(1)):
        file = frame.f_code.co_filename
        if is_hidden(file) or in_library(file):
            continue
        number = frame.f_lineno
        line = line or f"{shown(file)}:{number}"
        top = max(frame.f_code.co_firstlineno, number - _ABOVE)
        for above in range(number, top - 1, -1):
            if _VIEW.search(getline(file, above)):
                return f"{shown(file)}:{above}"
        functions += 1
        if functions == _FRAMES:
            break
    return line
