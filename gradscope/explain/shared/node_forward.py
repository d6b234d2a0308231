"""Runs the operation of a graph node forward again.

A node's attributes have the names of its operation's arguments. So the operation's schema shows
which arguments are known: saved tensors, edges to inputs, the shape of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.graph import Node

from gradscope.capture.graph import saved_tensors
from gradscope.explain.shared.operations import by_node

_TENSORS = ("Tensor", "Optional[Tensor]", "List[Tensor]")
_AS_MADE = {"size": "shape", "shape": "shape", "dtype": "dtype", "device": "device"}
_WRAPPED = 1 << 63  # from here on a number was negative
#: The input, computed from the output, for operations that save only the output.
_UNDONE: dict[str, Callable[[Mapping[str, Any]], torch.Tensor]] = {
    "sqrt": lambda saved: saved["result"].square(),
    "rsqrt": lambda saved: saved["result"] ** -2,
    "reciprocal": lambda saved: saved["result"].reciprocal(),
    "linalg_svd": lambda saved: saved["U"] @ _diagonal(saved["U"], saved["S"]) @ saved["Vh"],
    "linalg_eigh": lambda saved: (
        saved["eigenvectors"]
        @ _diagonal(saved["eigenvectors"], saved["eigenvalues"])
        @ saved["eigenvectors"].mH
    ),
}


@dataclass(frozen=True, slots=True)
class NodeForward:
    """An operation, with the arguments that its node knows.

    Attributes:
        arguments: the arguments by name.
        edges: for each argument that may get a gradient, the node's edge, by position.
        missing: the arguments among them that the node has not saved.
    """

    function: OpOverload
    arguments: dict[str, Any]
    edges: dict[str, tuple[int, ...]]
    missing: frozenset[str]

    def run(self, given: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """Return the results, with arguments that the node did not save or that replace saved
        ones."""
        result = self.function(**{**self.arguments, **given})
        return result if isinstance(result, tuple) else tuple(_listed(result))


def forwards(node: Node) -> Iterator[NodeForward]:
    """Yield the operations that may have made the node; empty if it is not a node of PyTorch."""
    made = node._input_metadata[0] if node._input_metadata else None
    yield from bound(by_node(node).name, saved_by(node), len(node.next_functions), made)


def bound(
    name: str, saved: Mapping[str, Any], count: int, made: Any = None
) -> Iterator[NodeForward]:
    """Yield the operations with an operation's name, its saved values and its number of edges.

    Args:
        made: has shape, dtype and device of the result, if known.
    """
    name = "reshape" if name in ("view", "unsafe_view") else name
    packet = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, f"_{name}", None)
    for overload in () if packet is None else packet.overloads():
        forward = _bind(getattr(packet, overload), saved, count, made)
        if forward is not None:
            yield forward


def saved_by(node: Node) -> dict[str, Any]:
    """Return the readable tensors and numbers that a PyTorch node saved for backward."""
    try:
        tensors = dict(saved_tensors(node))
    except RuntimeError:
        return {}
    found: dict[str, Any] = {}
    for attribute in dir(node):
        name = attribute.removeprefix("_saved_")
        if name == attribute:
            continue
        value = tensors[name] if name in tensors else getattr(node, attribute)
        found[name] = signed(value)
    return found


def result_of(saved: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the node's output, if the node keeps it; else None."""
    result = saved.get("result", saved.get("result0", saved.get("output")))
    return result if isinstance(result, torch.Tensor) else None


def undone(name: str, saved: Mapping[str, Any]) -> torch.Tensor | None:
    """Compute the input of an operation from its output, if its node keeps only the output."""
    undo = _UNDONE.get(name)
    if undo is None:
        return None
    with torch.no_grad():
        try:
            return undo(saved)
        except (KeyError, RuntimeError):  # it saved something else, or in another shape
            return None


def fits(node: Node, results: tuple[torch.Tensor, ...]) -> bool:
    """Return True if shapes and dtypes of the results equal those that the node recorded."""
    made = node._input_metadata
    return len(results) >= len(made) and all(
        tuple(one.shape) == tuple(result.shape) and one.dtype == result.dtype
        for one, result in zip(made, results, strict=False)
    )


def _bind(
    function: OpOverload, saved: Mapping[str, Any], count: int, made: Any
) -> NodeForward | None:
    schema = function._schema
    if torch.Tag.nondeterministic_seeded in function.tags:
        return None  # it would draw other numbers
    if any(a.is_out or (a.alias_info and a.alias_info.is_write) for a in schema.arguments):
        return None
    edges = _edges(schema.arguments, saved, count)
    if edges is None:
        return None
    arguments: dict[str, Any] = {}
    missing = set()
    for argument in schema.arguments:
        name = argument.name
        known = saved.get(name)
        if known is not None and isinstance(known, torch.Tensor) != (
            str(argument.type) in _TENSORS
        ):
            return None
        if known is not None:
            arguments[name] = known
        elif name in edges:
            missing.add(name)
        elif name in _AS_MADE and name not in saved and made is not None:
            arguments[name] = getattr(made, _AS_MADE[name])
        elif name not in saved and not argument.has_default_value():
            return None
    return NodeForward(function, arguments, edges, frozenset(missing))


def _edges(
    arguments: Any, saved: Mapping[str, Any], count: int
) -> dict[str, tuple[int, ...]] | None:
    """Return the positions of each argument that has a gradient; None if edges and arguments do not
    match."""
    tensors = [a for a in arguments if str(a.type) in _TENSORS]
    if [str(a.type) for a in tensors] == ["List[Tensor]"]:
        return {tensors[0].name: tuple(range(count))}
    spares: list[Callable[[Any], bool]] = [
        lambda argument: _is_full(saved.get(argument.name)),
        lambda argument: str(argument.type) == "Optional[Tensor]",
        lambda argument: argument.name in saved,
    ]
    for spare in spares:
        for argument in reversed(tensors):
            if len(tensors) > count and spare(argument):
                tensors.remove(argument)
    if len(tensors) != count:
        return None
    return {argument.name: (position,) for position, argument in enumerate(tensors)}


def _is_full(value: Any) -> bool:
    """Return True for an integer or bool tensor (index, mask, class ids): it has no gradient."""
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


def _diagonal(vectors: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.diag_embed(values).to(vectors.dtype)


def signed(value: Any) -> Any:
    """Return a number with its sign: PyTorch shows a negative one as unsigned, of 64 bits."""
    if isinstance(value, tuple | list):
        return type(value)(map(signed, value))
    if isinstance(value, int) and value >= _WRAPPED:
        return value - 2 * _WRAPPED
    return value


def _listed(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, list) else [result]
