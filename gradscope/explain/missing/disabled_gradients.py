"""Finds in the source the statement that disabled gradients around a line."""

from __future__ import annotations

import ast
import functools
from types import CodeType, FrameType

import torch
from torch.utils.checkpoint import CheckpointFunction

from gradscope.explain.shared.frames import is_hidden, last_name, outwards, shown, source, tree_of

_NAMES = ("no_grad", "inference_mode", "set_grad_enabled")


def disabling(file: str, line: int) -> int | None:
    """Return the line of the innermost ``with no_grad()``, similar block or decorator around a
    line."""
    best = None
    for first, last, at in _disabled_spans(file):
        if first <= line <= last and (best is None or at > best):
            best = at
    return best


def called_at(file: str, line: int, name: str) -> int:
    """Return the line of the last call of ``name`` up to a line in the same function; the line
    itself without one."""
    tree = tree_of(file)
    within: ast.AST | None = None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            within = node  # walked from the outside in
    calls = (n for n in ast.walk(within or ast.Module([], [])) if isinstance(n, ast.Call))
    lines = [n.lineno for n in calls if last_name(n.func) == name and n.lineno <= line]
    return max(lines, default=line)


@functools.cache
def _disabled_spans(file: str) -> list[tuple[int, int, int]]:
    """Return the first and last line of each body without gradients, and the disabling line."""
    tree = tree_of(file)
    spans = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if _disables(item.context_expr):
                    spans.append(
                        (node.body[0].lineno, node.end_lineno or 0, item.context_expr.lineno)
                    )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if _disables(decorator):
                    spans.append((node.lineno, node.end_lineno or 0, decorator.lineno))
    return spans


def _disables(expression: ast.expr) -> bool:
    return last_name(expression.func if isinstance(expression, ast.Call) else expression) in _NAMES


def why_disabled(frame: FrameType, last: CodeType, seen: str | None) -> tuple[str, str | None]:
    """Return the cause if an operation ran without gradients, and the code that disabled them.

    Args:
        frame: the frame of the operation, or one inside it.
        last: the code of the function where the search of frames ends.
        seen: the place where gradients were disabled last; None if they are enabled.

    Returns:
        ``checkpoint`` for the first pass of a reentrant checkpoint that will be recomputed.
    """
    function, checkpointed = None, False
    for around in outwards(frame, last):
        code, file = around.f_code, around.f_code.co_filename
        if code is CheckpointFunction.forward.__code__:
            given = around.f_locals.get("args", ())
            if any(isinstance(a, torch.Tensor) and a.requires_grad for a in given):
                checkpointed = True  # unless gradients are off around the checkpoint too
                continue
            return "no-grad", "a reentrant checkpoint without an input that requires a gradient"
        if _is_function(code):
            function = function or code.co_qualname.split(".")[-2]
        elif at := disabling(file, around.f_lineno):
            if is_hidden(file):
                return "no-grad", f"`{code.co_name}` of PyTorch, which runs without gradients"
            return "no-grad", f"`{source(file, at)}`, {shown(file)}:{at}"
    if checkpointed:
        return "checkpoint", None
    if function and seen is None:
        return "non-differentiable", f"the autograd function `{function}`"
    return "no-grad", f"switched off at {seen}" if seen else None


def _is_function(code: CodeType) -> bool:
    """Return True if the code is an autograd Function's forward: it runs without gradients."""
    if code.co_name != "forward" or code.co_varnames[:1] == ("self",):
        return False
    classes: list[type] = [torch.autograd.Function]
    for one in classes:  # grows on the way
        classes.extend(one.__subclasses__())
    return any(getattr(one.forward, "__code__", None) is code for one in classes)  # type: ignore[attr-defined]
