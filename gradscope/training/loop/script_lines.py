"""Finds lines of the script."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

from torch import nn

from gradscope.explain.shared.frames import (
    assignments,
    in_library,
    innermost,
    is_at,
    is_hidden,
    is_ours,
    last_name,
    nearest,
    shown,
    tree_of,
)

#: A line that freezes: ``p.requires_grad = False``, ``net.requires_grad_(False)``.
_FREEZES = r"\.requires_grad\s*=\s*(?!True)[^=\s]|\.requires_grad_\(\s*(?!True|\))"


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}"


def script_line(within: FrameType | None = None) -> ScriptLine | None:
    """Return the innermost line of the script that runs now, or that called a frame; else a
    library's.
    """
    frame = nearest(within or sys._getframe(1))
    return None if frame is None else ScriptLine(frame.f_code.co_filename, frame.f_lineno)


def script_place() -> str | None:
    """Return the same line as ``train.py:31``."""
    line = script_line()
    return None if line is None else str(line)


def calling_place() -> str | None:
    """Return the script's line from which what runs now was started: that of the innermost function
    that is no method of a module, and that the script itself calls.

    Of ``net.apply(reset)`` and of ``net.reset_parameters()`` it is the line of this call.
    """
    inner = frame = nearest(sys._getframe(1))
    while frame is not None and (_is_modules(frame) or _is_called_back(frame)):
        frame = nearest(frame.f_back)
    frame = inner if frame is None or in_library(frame.f_code.co_filename) else frame
    return None if frame is None else f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def _is_modules(frame: FrameType) -> bool:
    """Return True if a frame is of a method of a module's class."""
    owner: Any = frame.f_globals.get(frame.f_code.co_qualname.rpartition(".")[0])
    return issubclass(type(owner), type) and issubclass(owner, nn.Module)


def _is_called_back(frame: FrameType) -> bool:
    """Return True if PyTorch calls a function of the script."""
    caller = frame.f_back
    return (
        frame.f_code.co_name != "<module>"
        and caller is not None
        and is_hidden(caller.f_code.co_filename)
        and not is_ours(caller.f_code.co_filename)
    )


def main_file() -> str | None:
    """Return the file of the main module; None without one, for example at a prompt."""
    return getattr(sys.modules.get("__main__"), "__file__", None)


def main_text() -> tuple[str, ast.Module] | None:
    """Return the file of the main module and its syntax tree; None if it cannot be read."""
    file = main_file()
    tree = None if file is None else tree_of(file)
    return None if file is None or tree is None else (file, tree)


def written(pattern: str, file: str, *, last: bool = False) -> str | None:
    """Return the first or the last line of a file that matches the pattern, as ``train.py:31``."""
    wanted = re.compile(pattern)
    lines = list(enumerate(linecache.getlines(file), 1))
    for number, line in reversed(lines) if last else lines:
        if wanted.search(line) and not line.lstrip().startswith("#"):
            return f"{shown(file)}:{number}"
    return None


def written_or_made(file: str, line: int, operation: str) -> str:
    """Return the line that names an operation: this one, or the only line that makes a module of
    its name, as ``nn.Sigmoid()``; else this one.

    Args:
        operation: the name of its function, class or autograd node: ``SigmoidBackward``.
    """
    name = re.escape(operation.removesuffix("Backward").replace("_", ""))
    if not re.search(name, linecache.getline(file, line).replace("_", ""), re.IGNORECASE):
        made = re.compile(rf"\b{name}(?:Loss)?\s*\(", re.IGNORECASE)
        lines = [n for n, one in enumerate(linecache.getlines(file), 1) if made.search(one)]
        line = lines[0] if len(lines) == 1 else line
    return f"{shown(file)}:{line}"


def call_of(name: str, method: str, file: str) -> str | None:
    """Return the first line of a file that calls a method of the variable ``name``, or of an
    attribute."""
    return written(rf"\b{re.escape(name)}\s*\.\s*{method}\s*\(", file)


def written_assignment(name: str) -> str | None:
    """Return the first line of the main module's file that assigns the variable, or an attribute,
    of this name."""
    return written_in_main(rf"\b{name}\s*=[^=]") if name.isidentifier() else None


def assignments_read_at(line: str) -> Iterator[tuple[str, str, str]]:
    """Yield the variables that a statement of the main module's file reads, each with the line of
    its last assignment above, in the same function, and that line's text.

    Args:
        line: a line of the statement, as ``train.py:31``.
    """
    file, tree = main_text() or ("", ast.Module([], []))
    number = line.removeprefix(f"{shown(file)}:")
    if not number.isdigit():
        return
    at = int(number)
    scopes = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and _holds(one, at)]
    scope = min(scopes, key=lambda one: (one.end_lineno or 0) - one.lineno, default=tree)
    statements = [one for one in ast.walk(scope) if isinstance(one, ast.stmt)]
    plain = [one for one in statements if not hasattr(one, "body") and _holds(one, at)]
    for name in sorted({n.id for one in plain for n in ast.walk(one) if isinstance(n, ast.Name)}):
        above = [
            one
            for one in statements
            if isinstance(one, ast.Assign) and (one.end_lineno or one.lineno) < at
            if any(isinstance(target, ast.Name) and target.id == name for target in one.targets)
        ]
        if above:
            last = max(above, key=lambda one: one.lineno)
            yield name, f"{shown(file)}:{last.lineno}", ast.unparse(last)


#: Functions that give NaN or Inf for some finite numbers.
_SINGULAR = frozenset(
    {"acos", "asin", "atanh", "log", "log2", "log10", "reciprocal", "rsqrt", "sqrt"}
)


def singular_line(text: str) -> tuple[str, str] | None:
    """Return the only line, and its text, of a function of the main module's file that can give NaN
    or Inf for finite numbers: a division, a negative power, a logarithm, a root.

    Args:
        text: an assignment of the function's result, as ``weights = normalized(counts)``.
    """
    file, tree = main_text() or ("", ast.Module([], []))
    match ast.parse(text).body:
        case [ast.Assign(value=ast.Call(func=ast.Name(id=name)))]:
            called = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
            called = [one for one in called if one.name == name]
        case _:
            return None
    found = {
        node.lineno: ast.unparse(node)
        for function in called
        for node in ast.walk(function)
        if isinstance(node, ast.expr) and _is_singular(node)
    }
    line, expression = next(iter(found.items()), (0, ""))
    return (f"{shown(file)}:{line}", expression) if len(found) == 1 else None


def _is_singular(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(op=ast.Div() | ast.Mod(), right=ast.Constant()):
            return False
        case ast.BinOp(op=ast.Div() | ast.Mod()):
            return True
        case ast.BinOp(op=ast.Pow(), right=ast.UnaryOp(op=ast.USub())):
            return True
        case ast.Call(func=function, args=args) if last_name(function) in ("pow", "power"):
            return isinstance(args[-1] if args else None, ast.UnaryOp)
        case ast.Call(func=function):
            return last_name(function) in _SINGULAR
    return False


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def copying_line(name: str, *, returned: bool = True) -> str | None:
    """Return the only line of the main module's file that sets the variable to a deep copy; without
    ``returned``, only if it is in a function that does not return the variable."""
    file = main_file()
    return None if file is None else _copying_line(name, file, returned)


@lru_cache(maxsize=64)
def _copying_line(name: str, file: str, returned: bool) -> str | None:
    tree = tree_of(file) or ast.Module([], [])
    lines = [
        one.lineno
        for one in assignments(tree, name)
        if any(isinstance(o, ast.Call) and last_name(o.func) == "deepcopy" for o in ast.walk(one))
    ]
    if len(lines) != 1:
        return None
    if not returned:
        scope = innermost(tree, lines[0])
        values = [one.value for one in ast.walk(scope) if isinstance(one, ast.Return)]
        used = [n.id for v in values if v for n in ast.walk(v) if isinstance(n, ast.Name)]
        if isinstance(scope, ast.Module) or name in used:
            return None
    return f"{shown(file)}:{lines[0]}"


def set_elsewhere(name: str, made: ScriptLine | None) -> str | None:
    """Return the only line of the main module's file that sets the variable, by a call; None if
    the variable's object was made there too."""
    file, tree = main_text() or ("", ast.Module([], []))
    found = assignments(tree, name)
    if len(found) != 1 or made is None or not isinstance(found[0].value, ast.Call):
        return None
    here = made.file == file and is_at(found[0], made.line)
    return None if here else f"{shown(file)}:{found[0].lineno}"


@lru_cache(maxsize=64)
def written_rate(made: ScriptLine, rate: float) -> str | None:
    """Return the line of the number that an optimizer's call gets as its learning rate: that of the
    only constant that is assigned to the variable or the field, ``LR = 0.1``, or the default of the
    option, ``add_argument("--lr", default=0.1)``; None if the text does not show it, or shows
    another number, which an argument or a field replaced."""
    tree = tree_of(made.file)
    calls = [node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.Call)]
    given = [
        option.value
        for call in calls
        if is_at(call, made.line)
        for option in call.keywords
        if option.arg == "lr" and isinstance(option.value, ast.Name | ast.Attribute)
    ]
    if tree is None or len(given) != 1:
        return None
    name = last_name(given[0])
    numbers: dict[int, object] = {}
    for call in calls:
        if last_name(call.func) != "add_argument":
            continue
        if any(isinstance(one, ast.Constant) and one.value == f"--{name}" for one in call.args):
            default = next((one.value for one in call.keywords if one.arg == "default"), None)
            numbers[call.lineno] = default.value if isinstance(default, ast.Constant) else None
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
                named = target
            case ast.AnnAssign(target=ast.Name() | ast.Attribute() as target, value=value):
                named = target
            case _:
                continue
        if last_name(named) == name and isinstance(value, ast.Constant):
            numbers[node.lineno] = value.value
    if len(numbers) != 1:
        return None
    line, number = numbers.popitem()
    try:
        same = isinstance(number, int | float | str) and float(number) == rate
    except ValueError:
        same = False
    return f"{shown(made.file)}:{line}" if same else None


def only_call(function: str) -> tuple[str, int] | None:
    """Return the file and the line of the only call in the main module's file of a function or a
    module's class: ``softmax`` for ``F.softmax(…)`` and ``nn.Softmax(…)``."""
    file, tree = main_text() or ("", ast.Module([], []))
    wanted = function.replace("_", "").lower()
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        if last_name(node.func).replace("_", "").lower() == wanted
    ]
    return (file, lines[0]) if len(lines) == 1 else None


def written_in_main(pattern: str, *, last: bool = False) -> str | None:
    """Return the first or the last line of the main module's file that matches the pattern."""
    file = main_file()
    return None if file is None else written(pattern, file, last=last)


def freezing_line() -> str | None:
    """Return the first line of the main module's file that freezes a parameter or a module."""
    return written_in_main(_FREEZES)


#: Arguments of libraries with the bound of the gradients' norm.
_BOUNDS = ("gradient_clip_val", "max_grad_norm")


def bound_line(clipped: str | None) -> str | None:
    """Return the line of the main module's file that gives a library the bound of its clipping: if
    a parameter of a function is given, that of the function's only call; None if the text shows no
    single one.

    Args:
        clipped: the line that clips, as ``train.py:31``; None is returned if it clips itself.
    """
    file, tree = main_text() or ("", ast.Module([], []))
    number = (clipped or "").removeprefix(f"{shown(file)}:")
    if not number.isdigit() or "clip" in linecache.getline(file, int(number)):
        return None
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
    given = [one for call in calls for one in call.keywords if one.arg in _BOUNDS]
    if len(given) != 1:
        return None
    line, scope = given[0].value.lineno, innermost(tree, given[0].value.lineno)
    if isinstance(scope, ast.FunctionDef) and isinstance(given[0].value, ast.Name):
        arguments = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
        if given[0].value.id in {one.arg for one in arguments}:
            kind = ast.Name if scope in tree.body else ast.Attribute  # a function, or a method
            named = [one for one in calls if last_name(one.func) == scope.name]
            outer = [one.lineno for one in named if isinstance(one.func, kind)]
            line = outer[0] if len(outer) == 1 else line
    return f"{shown(file)}:{line}"


def mode_line(name: str) -> str | None:
    """Return the only line of the main module's file that sets the mode of a variable, or of an
    attribute, to the value of an expression: ``net.train(phase == "training")``."""
    file = main_file()
    return None if file is None else _mode_line(name, file)


@lru_cache(maxsize=64)
def _mode_line(name: str, file: str) -> str | None:
    tree = tree_of(file) or ast.Module([], [])
    found = []
    for call in _calls_of(name, ("train", "eval"), tree):
        given = [*call.args, *(one.value for one in call.keywords)]
        if last_name(call.func) == "eval":
            return None
        if given and not isinstance(given[0], ast.Constant):
            found.append(f"{shown(file)}:{call.lineno}")
    return found[0] if len(found) == 1 else None


def train_line(name: str, line: str | None) -> str | None:
    """Return the line that puts a variable, or an attribute, into train mode in every call of the
    function of the main module's file with this line, above it.

    Args:
        line: a line of the script, as ``train.py:31``.
    """
    file, tree = main_text() or ("", ast.Module([], []))
    number = (line or "").removeprefix(f"{shown(file)}:")
    if not number.isdigit():
        return None
    scope = innermost(tree, int(number))
    calls = _calls_of(name, ("train",), scope)
    for one in scope.body if isinstance(scope, ast.FunctionDef) else ():
        if one.lineno >= int(number):
            break
        match one:
            case ast.Expr(value=ast.Call(args=[], keywords=[]) as call) if call in calls:
                return f"{shown(file)}:{one.lineno}"
    return None


def _calls_of(name: str, methods: tuple[str, ...], tree: ast.AST) -> list[ast.Call]:
    """Return the calls of these methods of a variable, or of an attribute."""
    return [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in methods
        and last_name(one.func.value) == name
    ]


def written_call(name: str, method: str) -> str | None:
    """Return the line of the call in the main module's file."""
    file = main_file()
    return None if file is None else call_of(name, method, file)
