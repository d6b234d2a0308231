"""Finds recurrent networks whose last state is that of padding: by the tokens and by the text."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

import torch
from torch import nn

from gradscope.capture.names import modules_by_name
from gradscope.explain.shared.frames import classes_of_script, shown
from gradscope.records.loop_figures import LoopFact
from gradscope.training.models import Models

#: Fewer sequences, or shorter ones, say little of the padding.
_SEQUENCES, _LENGTH = 4, 8


class _Tokens(NamedTuple):
    """A batch of tokens, and by the axis of time which sequences end in padding from their middle
    or before."""

    padding: int
    shape: torch.Size
    padded: tuple[torch.Tensor, torch.Tensor]


class PaddedStates:
    """Compares the first tokens of an embedding with the network that gets their vectors."""

    def __init__(self) -> None:
        self._tokens: _Tokens | None = None
        self._found: list[tuple[weakref.ref[nn.RNNBase], _Tokens, int]] = []

    def embedded(self, tokens: torch.Tensor, index: int) -> None:
        """Note the first tokens of an embedding, whose padding has this index."""
        if tokens.dim() != 2 or tokens.is_floating_point() or 0 in tokens.shape:
            return
        is_padding = tokens == index
        padded = _second_half(is_padding, 0), _second_half(is_padding, 1)
        self._tokens = _Tokens(index, tokens.shape, padded)

    def called(self, network: nn.RNNBase, given: torch.Tensor) -> None:
        """Note the first call of a recurrent network on a tensor, not on a packed sequence."""
        tokens, time = self._tokens, int(network.batch_first)
        if tokens is None or given.shape[:-1] != tokens.shape or network.bidirectional:
            return
        sequences, length = given.shape[1 - time], given.shape[time]
        if sequences < _SEQUENCES or length < _LENGTH:
            return
        # Vectors of padding are equal. Others were put in another order, or are of another text.
        last, before = (given.select(time, length - n) for n in (1, 2))
        padded = tokens.padded[time].to(given.device) & (last == before).all(1)
        count = int(padded.sum())
        if 2 * count >= sequences:
            self._found.append((weakref.ref(network), tokens, count))

    def facts(self, models: Models) -> Iterator[LoopFact]:
        """Yield the networks of which the text uses the last state alone, with the line."""
        for model in models if self._found else ():
            named = modules_by_name(model.module)
            for reference, tokens, count in self._found:
                name = next((n for n, one in named.items() if one is reference()), "")
                network, (owner, _, attribute) = reference(), name.rpartition(".")
                if network is None or owner not in named or not name:
                    continue
                time = int(network.batch_first)
                line = _last_state(type(named[owner]), attribute, time)
                if line is not None:
                    figures = float(tokens.padding), float(tokens.shape[1 - time])
                    yield LoopFact(
                        "padded-state", name, models.name(model), count=count,
                        figures=figures, location=line,
                    )  # fmt: skip


def _second_half(padding: torch.Tensor, axis: int) -> torch.Tensor:
    """Return True for each sequence that ends in padding, from its middle or before, and is not
    all padding."""
    length = padding.shape[axis]
    end = padding.narrow(axis, length // 2, length - length // 2)
    return end.all(axis) & ~padding.all(axis)


def _last_state(kind: type, attribute: str, time: int) -> str | None:
    """Return the line of a class that takes the last state of its recurrent network; None if a
    method uses other states too, or turns sequences round.

    Args:
        kind: the class of the module that owns the network.
        attribute: the network's name there.
        time: the axis of time.
    """
    lines = []
    for file, owner in classes_of_script(kind):
        for method in owner.body:
            if not isinstance(method, ast.FunctionDef):
                continue
            calls = [one for one in ast.walk(method) if _is_call_of(one, attribute)]
            if not calls:
                continue
            if len(calls) > 1 or "flip" in ast.unparse(method):
                return None
            made = next((o for o in ast.walk(method) if getattr(o, "value", None) in calls), None)
            match made:
                case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=states), last])]):
                    number = _used(method, states, last, made, time)
                    if number is None:
                        return None
                    lines.append(f"{shown(file)}:{number}")
                case _:
                    return None
    return lines[0] if len(lines) == 1 else None


def _is_call_of(node: ast.AST, attribute: str) -> bool:
    """Return True for ``self.rnn(…)``."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(), attr=name)):
            return name == attribute
    return False


def _used(
    method: ast.FunctionDef, states: str, last: ast.expr, made: ast.stmt, time: int
) -> int | None:
    """Return the line of a use of the last state; None if other states are used, or none."""
    loads = [o for o in ast.walk(method) if isinstance(o, ast.Name) and isinstance(o.ctx, ast.Load)]
    ends = [o for o in ast.walk(method) if _is_last(o, states, time)]
    names = {o.id for o in ast.walk(last) if isinstance(o, ast.Name)} - {"_"}
    if sum(one.id == states for one in loads) != len(ends):
        return None
    if ends:
        return ends[0].lineno
    return made.lineno if any(one.id in names for one in loads) else None


def _is_last(node: ast.AST, states: str, time: int) -> TypeGuard[ast.Subscript]:
    """Return True for ``states[:, -1]`` along axis 1, ``states[-1]`` along axis 0."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=index) if name == states:
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            place = parts[time] if time < len(parts) else None
            return place is not None and ast.unparse(place) == "-1"
    return False
