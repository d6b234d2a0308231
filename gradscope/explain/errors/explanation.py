"""The operation that raised, with its operands and layer; the parts of an explanation."""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradscope.errors import GradscopeError
from gradscope.explain.shared.frames import CallSite, in_library, is_hidden, shown, source
from gradscope.explain.shared.operations import Trait, by_function
from gradscope.plugins import load, names
from gradscope.records.run import RelatedLine

if TYPE_CHECKING:
    from gradscope.explain.errors.step_tracer import ErrorTracer


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


#: The record for an exception without a failed operation.
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


@dataclass(frozen=True, slots=True)
class Again:
    """Functions that run a failed step again.

    Attributes:
        steps: the same steps; calls its argument with the name of the step that begins.
        forward: runs one forward and the loss; None if backward does not start from the loss.
    """

    model: nn.Module
    steps: Callable[[Callable[[str], None]], None]
    forward: Callable[[], torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """An exception to explain.

    Attributes:
        operation: the operation that raised; without a name if no tensor took part.
        again: runs the step again; None if that is not allowed.
        tracer: the tracer of the second run; None without one.
    """

    kind: str
    text: str
    failure: BaseException
    phase: str
    failed: FailedOperation = NOTHING
    again: Again | None = None
    tracer: ErrorTracer | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of an error: the conflicting operands in one or more sentences, the fix, and
    lines that belong to it. ``site`` is the place of the fix, if it differs from the error's place.
    """

    details: str | tuple[str, ...]
    advice: str | None = None
    related: tuple[RelatedLine, ...] = ()
    site: CallSite | None = None


Explainer = Callable[[Case], Explanation | None]


def first_explanation(case: Case, explainers: Sequence[Explainer]) -> Explanation | None:
    """Return the explanation of the first explainer that has one."""
    for explainer in explainers:
        explanation = explainer(case)
        if explanation is not None:
            return explanation
    return None


def line(role: str, site: CallSite) -> tuple[RelatedLine, ...]:
    """Return the call site as a related line; None without a line."""
    if not site.file or not site.line:
        return ()
    file, text = shown(site.file), source(site.file, site.line)
    return (RelatedLine(role, file, site.line, text, site.module, site.call),)


def listed(operands: Sequence[Operand]) -> str:
    """List operands: ``a [2, 3], b [2, 4] and [5]``."""
    words = [one.label for one in operands]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def factors(shape: Sequence[int]) -> str:
    """Join sizes: ``16 · 14 · 14``."""
    return " · ".join(str(n) for n in shape)


def method(text: str, call: str) -> str:
    """Return a method call on the user's expression: ``x.float()``; with parentheses unless it is a
    name."""
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:
        return f"x.{call}"
    single = isinstance(body, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return f"{text}.{call}" if single else f"({text}).{call}"


def given_as(failed: FailedOperation, given: Operand) -> str:
    """Return the input in words: ``the input `x` [2, 3]``, with the user's expression if it is a
    simple one."""
    word = failed.argument
    return f"the input{f' `{word}`' if word else ''} {list(given.shape)}"


_FOLDER = "gradscope.explain.errors.kinds"
_RECURSION = (
    "add a base case to the recursion, or write a loop; raise the limit for deep nesting with"
    " `sys.setrecursionlimit`"
)


def _always(message: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of exception; its name is the name of its file.

    Attributes:
        signs: patterns in messages of this kind, each with the smallest fix.
        explain: returns the conflicting operands; None if unknown.
        worth_repeating: returns True for a message if a second run is harmless and may show more.
        traced: True if the second run repeats the steps under the tracer.
    """

    signs: Mapping[str, str]
    explain: Explainer
    worth_repeating: Callable[[str], bool] = _always
    traced: bool = True


@functools.cache
def kinds() -> dict[str, Kind]:
    """Return every kind by its name; the first kind whose pattern matches a message is its kind."""
    return {name: load(_FOLDER, name).KIND for name in names(_FOLDER)}


def kind_of(failure: BaseException, text: str, phase: str) -> tuple[str, str | None]:
    """Return the kind of an exception, and the smallest fix for that kind."""
    if isinstance(failure, KeyboardInterrupt):
        return "interrupted", None
    if isinstance(failure, GradscopeError):  # found before PyTorch could raise
        return getattr(failure, "kind", "model-error"), failure.problems[0].help
    if isinstance(failure, RecursionError):
        return "model-error", _RECURSION
    if isinstance(failure, MemoryError):
        return "out-of-memory", next(iter(kinds()["out-of-memory"].signs.values()))
    known = RuntimeError | IndexError | ValueError | TypeError | AssertionError
    if isinstance(failure, known) and not _is_own(failure.__traceback__):
        for name, kind in kinds().items():
            for sign, advice in kind.signs.items():
                if re.search(sign, text, re.IGNORECASE | re.DOTALL):
                    # An index that a loss reads is its target.
                    of_loss = name == "index-out-of-range" and phase == "loss"
                    return "target-out-of-range" if of_loss else name, advice
    return "model-error", None


def _is_own(trace: TracebackType | None) -> bool:
    """Return True if the user's own ``raise`` or ``assert`` raised: its message shows no kind."""
    last = None
    while trace is not None:
        last, trace = trace, trace.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    if is_hidden(code.co_filename) or in_library(code.co_filename):
        return False
    return code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
