"""The expression that a frame was evaluating, as its source has it: what is called, on what."""

from __future__ import annotations

import ast
import functools
import linecache
from dataclasses import dataclass
from types import CodeType

_SPACES = ("torch.", "F.", "self.", "nn.", "np.", "numpy.", "math.")


@dataclass(frozen=True, slots=True)
class Expression:
    """The expression that was being evaluated: what it calls, and its operands as text."""

    name: str = ""
    operands: tuple[str, ...] = ()
    target: str | None = None

    @staticmethod
    def of(code: CodeType, instruction: int) -> Expression:
        """The expression at a bytecode offset of a function, as its source has it."""
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
