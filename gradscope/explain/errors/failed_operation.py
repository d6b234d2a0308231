"""Describes the operation that raised: its operands as the user wrote them, and the layer that ran
it."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import nn

from gradscope.explain.shared.operations import Trait, by_function

_SPACES = ("torch.", "F.", "self.", "nn.", "np.", "numpy.", "math.")


@dataclass(frozen=True, slots=True)
class Expression:
    """The expression that was being evaluated: the called name, and the operands as text."""

    name: str = ""
    operands: tuple[str, ...] = ()
    target: str | None = None

    @staticmethod
    def of(code: CodeType, instruction: int) -> Expression:
        """Return the expression at a bytecode offset of a function, from its source."""
        return _expression(code, instruction)


@functools.lru_cache(maxsize=4096)
def _expression(code: CodeType, instruction: int) -> Expression:
    positions = next(
        (p for i, p in enumerate(code.co_positions()) if 2 * i == instruction), (None,) * 4
    )
    first, last, start, end = positions
    if first is None or last is None or start is None or end is None:
        return Expression()
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(first, last + 1)]
    if not lines or not lines[0]:
        return Expression()
    lines[-1] = lines[-1][:end]  # offsets count bytes
    lines[0] = lines[0][start:]
    try:
        statement = ast.parse(b"".join(lines).decode().strip()).body[0]
    except (SyntaxError, ValueError, IndexError):
        return Expression()
    return _parts(statement)


def _parts(statement: ast.stmt) -> Expression:
    target = None
    node: ast.AST = statement
    if isinstance(statement, ast.AugAssign):
        return Expression(
            _operator(statement.op) + "=",
            (ast.unparse(statement.target), ast.unparse(statement.value)),
            ast.unparse(statement.target),
        )
    if isinstance(statement, ast.Expr):
        node = statement.value
    if isinstance(node, ast.BinOp):
        sides = (ast.unparse(node.left), ast.unparse(node.right))
        return Expression(_operator(node.op), sides)
    if isinstance(node, ast.UnaryOp):
        return Expression(_operator(node.op), (ast.unparse(node.operand),))
    if isinstance(node, ast.Subscript):
        return Expression("[]", (ast.unparse(node.value), ast.unparse(node.slice)))
    if isinstance(node, ast.Call):
        given: list[ast.expr] = []
        function = node.func
        name = ast.unparse(function)
        if isinstance(function, ast.Attribute) and not name.startswith(_SPACES):
            given.append(function.value)
            name = function.attr
        for argument in [*node.args, *(k.value for k in node.keywords)]:
            several = isinstance(argument, ast.List | ast.Tuple)
            given += argument.elts if several else [argument]  # type: ignore[attr-defined]
        kept = [a for a in given if not _is_constant(a)]
        return Expression(name, tuple(ast.unparse(a) for a in kept), target)
    return Expression()


def _is_constant(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant)


def _operator(op: ast.AST) -> str:
    return {
        "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "MatMult": "@", "Pow": "**",
        "USub": "-", "Invert": "~",
    }.get(type(op).__name__, type(op).__name__)  # fmt: skip


#: A loss's arguments, as they are called in a sentence.
_ROLES = {"input": "the output", "target": "the target", "weight": "the loss's weight"}
_COUNTED = 1 << 24  # no more ids than this are read for their range


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that took part: its name in the user's code, and its properties."""

    text: str | None
    shape: tuple[int, ...]
    dtype: str
    device: str
    low: int | None = None  # of integers
    high: int | None = None
    maker: str | None = None  # the module that made it
    computed: bool = False  # whether it has a graph

    @property
    def label(self) -> str:
        """The name in backticks with the shape, such as ``x [2, 3]``; without a name only the
        shape."""
        return f"`{self.text}` {list(self.shape)}" if self.text else f"{list(self.shape)}"

    @property
    def held(self) -> bool:
        """True if the operand is written as an attribute: a parameter, a buffer or a plain one."""
        return re.fullmatch(r"\w+(\.\w+)+", self.text or "") is not None


@dataclass(frozen=True, slots=True)
class FailedOperation:
    """An operation that raised.

    Attributes:
        function: its name.
        layer: the module of ``torch.nn`` that ran it, if any, and ``layer_name`` its name.
        called: the name that the user calls, and ``arguments`` its arguments as text.
        local_shapes: the shapes of the local tensors in the user's function.
        constants: arguments other than tensors, such as the shape of a view.
        complete: True if all operands are known.
        direct: True if the user calls the layer directly.
    """

    function: str = ""
    operands: tuple[Operand, ...] = ()
    layer: nn.Module | None = None
    layer_name: str | None = None
    called: str = ""
    arguments: tuple[str, ...] = ()
    local_shapes: Mapping[str, tuple[int, ...]] | None = None
    constants: tuple[Any, ...] = ()
    complete: bool = False
    direct: bool = False

    @property
    def argument(self) -> str | None:
        """The layer's first argument as the user wrote it; None if a library calls the layer."""
        return self.arguments[0] if self.direct and self.arguments else None

    @property
    def layer_title(self) -> str:
        """The layer's name, or its class if it has no name."""
        return self.layer_name if self.layer_name is not None else type(self.layer).__name__

    @property
    def sides(self) -> tuple[Operand, Operand] | None:
        """The first two operands of an operation outside of layers; None if there are fewer."""
        if self.layer is not None or len(self.operands) < 2:
            return None
        return self.operands[0], self.operands[1]

    def title_of(self, operand: Operand) -> str:
        """Name an operand by its role in a layer or a loss, else as the user wrote it."""
        text = operand.text or ""
        if text in _ROLES and by_function(self.function).has(Trait.LOSS):
            return _ROLES[text]
        if self.layer is not None and operand is self.operands[0]:
            return f"the input `{self.argument}`" if self.argument else "the input"
        if self.layer is not None and text == "hx":
            return "the hidden state"
        return f"`{text}`" if text else f"a tensor {list(operand.shape)}"


#: Stands for no failed operation with tensors.
NOTHING = FailedOperation()


def operand(tensor: torch.Tensor, text: str | None, maker: str | None = None) -> Operand:
    """Make an operand of a tensor; for integers with their range."""
    low = high = None
    full = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if full and tensor.device.type == "cpu" and 0 < tensor.numel() <= _COUNTED:
        with torch.no_grad():
            low, high = (int(bound) for bound in torch.aminmax(tensor.detach()))
    dtype = str(tensor.dtype).removeprefix("torch.")
    device, computed = str(tensor.device), tensor.grad_fn is not None
    return Operand(text, tuple(tensor.shape), dtype, device, low, high, maker, computed)
