"""Finds the tensors and single numbers in a model's output, and the nodes upstream of a number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from gradscope.errors import few
from gradscope.nesting import find, is_a, walk


def tensors(output: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor in a nested output with its path, in order."""
    return find(output, Tensor)


def first_floating(output: Any, *, with_graph: bool = False) -> tuple[str, Tensor] | None:
    """Return the first real floating tensor, with its path; None without one."""
    floating = ((p, t) for p, t in tensors(output) if t.is_floating_point())
    return next((one for one in floating if one[1].requires_grad or not with_graph), None)


def describe(output: Any) -> str:
    """Describe an output's tensors for a message: ``complex64 [2, 3]``, ``no tensor (a str)``."""
    found = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for _, t in tensors(output)]
    if not found:
        return f"no tensor (a {type(output).__name__})"
    return few(found)


def numbers_in(output: Any) -> Iterator[tuple[str, Any]]:
    """Yield each single floating number, and each mapping or list of only such numbers, in order.

    A tensor of shape [1] counts only if the batch has more samples; otherwise it may belong to the
    sample.
    """
    beside = walk(output, lambda item: is_a(item, Tensor))
    batched = any(t.ndim > 1 and t.shape[0] > 1 for _, t in beside)

    def wanted(item: Any) -> bool:
        return is_a(item, Tensor) or (item is not output and bool(losses_in(item)))

    for path, found in walk(output, wanted):
        if not is_a(found, Tensor):
            yield reached(path), losses_in(found)
        elif found.is_floating_point() and (
            found.ndim == 0 or (batched and tuple(found.shape) == (1,))
        ):
            yield reached(path), found


def losses_in(item: Any) -> dict[Any, Tensor]:
    """Return the losses of a mapping or list that holds only numbers, as detection models return.

    In a list the key is the index. The entries of a tuple have different meanings, so a tuple gives
    none.
    """
    if is_a(item, Mapping):
        found = dict(item)
        numbers = all(_is_number(t) and t.ndim < 2 for t in found.values())
    elif is_a(item, list) and len(item) > 1:
        found = dict(enumerate(item))
        numbers = all(_is_number(t) and t.ndim == 0 for t in item)
    else:
        return {}
    return found if numbers else {}


def _is_number(item: Any) -> bool:
    return is_a(item, Tensor) and item.is_floating_point() and item.numel() == 1


def part_name(key: Any) -> str:
    """Return the access to a part of a mapping or list, as in code: ``[0]``, ``.loss``."""
    return f"[{key}]" if isinstance(key, int) else f".{key}"


def tensors_of(found: Any) -> list[Tensor]:
    """Return a tensor, or the tensors in a mapping or list that holds only tensors."""
    if is_a(found, Tensor):
        return [found]
    return list(found.values() if isinstance(found, Mapping) else found)


def graph_upstream(found: Any) -> tuple[set[Any], set[Any]]:
    """Return the graph nodes upstream of numbers, and the parameters at its ends."""
    stack = [t.grad_fn for t in tensors_of(found) if t.grad_fn is not None]
    nodes, leaves = set(stack), set()
    while stack:
        node: Any = stack.pop()
        if node.name().endswith("AccumulateGrad"):
            leaves.add(id(node.variable))
        following = {after for after, _ in node.next_functions if after is not None} - nodes
        nodes |= following
        stack += following
    return nodes, leaves


def has_graph(number: Tensor | Mapping[Any, Tensor]) -> bool:
    """Return True if a number depends on a trainable tensor that is not itself a single number."""
    if isinstance(number, Mapping):
        return any(map(has_graph, number.values()))
    return number.requires_grad and not _is_setting(number)


def is_cut(number: Tensor) -> bool:
    """Return True if backward from the number reaches nothing, for example from a new leaf."""
    leaf = number.grad_fn is None and not isinstance(number, nn.Parameter)
    return not number.requires_grad or leaf


def _is_setting(number: Tensor) -> bool:
    """Return True if it depends on single numbers only, as a learned temperature does."""
    nodes, _ = graph_upstream(number)
    sizes = [math.prod(int(n) for n in one.shape) for node in nodes for one in node._input_metadata]
    return all(size <= 1 for size in sizes)


def reached(path: str) -> str:
    """Write a path as code: ``output[1].loss``."""
    parts = path.split(".") if path else []
    return "output" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)
