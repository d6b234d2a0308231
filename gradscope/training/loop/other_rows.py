"""Finds targets of other samples than the outputs: by their index, or in a data set's text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import torch
from torch.autograd.graph import Node
from torch.utils._python_dispatch import _disable_current_modes

from gradscope.capture.nodes import MOVES
from gradscope.capture.shards import PLAIN
from gradscope.explain.shared.frames import classes_of_script, last_name, shown
from gradscope.records.loop_figures import LoopFact
from gradscope.training.discovery import variable_name, variable_value
from gradscope.training.loop.loss_walk import (
    BINARY,
    CLASSES,
    DIFFERENCES,
    SOFTMAX,
    Shape,
    kind,
    saved,
)
from gradscope.training.loop.script_lines import main_text

#: Operations between a loss and the choice of rows, and how many rows name a choice.
_DEEP, _NAMED = 4, 6
#: Names of attributes that hold labels: the action before a state is no label.
_LABELS = re.compile(r"(^|_)(ys?|labels?|targets?|classes|tgts?|gts?)\d*$", re.IGNORECASE)
_BRANCHES = (ast.If, ast.IfExp, ast.While, ast.For, ast.comprehension, ast.Try)


def other_rows(loss: Node) -> tuple[str, tuple[Shape, ...]] | None:
    """Return the first rows of the outputs that an index chooses, and the shapes of the chosen and
    of all targets. None unless the targets are a slice of the same length at another place.

    As in ``cross_entropy(out[mask], y[: mask.sum()])``: both have the same samples before. The
    text must choose from the targets by an index elsewhere, or compare all of them with all
    predictions: else they may be stored by split.
    """
    target = saved(loss).get("target") if kind(loss) in CLASSES | BINARY | DIFFERENCES else None
    if target is None or type(target) not in PLAIN or target._base is None or not target.dim():
        return None
    base, count = target._base, target.shape[0]
    if base.is_nested:
        return None
    if base.shape[1:] != target.shape[1:] or base.stride() != target.stride():
        return None
    node: Node | None = loss.next_functions[0][0]
    for _ in range(_DEEP):
        if node is None or kind(node) == "IndexBackward":
            break
        node = node.next_functions[0][0] if kind(node) in SOFTMAX | MOVES else None
    if node is None or kind(node) != "IndexBackward" or not 1 < count < base.shape[0]:
        return None
    if getattr(node, "_saved_self_sym_sizes", (0,))[0] != base.shape[0]:
        return None
    first = (target.storage_offset() - base.storage_offset()) // base.stride(0)
    with _disable_current_modes():  # as in `number_of`
        rows = _rows(node)
        # A permutation may have put the targets in order, and padding may fill them up.
        if rows is None or len(rows) != count or bool((rows[1:] <= rows[:-1]).any()):
            return None
        start, end = int(rows[0]), int(rows[-1])
        if end - start == count - 1 and start - count < first < start + count:
            return None  # a later part of a series: it overlaps the outputs' own
        rest = torch.cat([base[:first], base[first + count :]])
        here = torch.arange(first, first + count, device=rows.device)
        if bool((rest == rest[:1]).all()) or torch.equal(rows, here):
            return None
    if not _has_order_of_outputs(base):
        return None
    return ", ".join(map(str, rows[:_NAMED].tolist())), (tuple(target.shape), tuple(base.shape))


def _has_order_of_outputs(targets: torch.Tensor) -> bool:
    """Return True if the main module's file indexes the targets' variable with a mask or with
    rows, or compares all of it with the predictions for all rows."""
    name, (_, tree) = variable_name(targets), main_text() or ("", ast.Module([], []))
    for node in ast.walk(tree) if name else ():
        match node:
            case (
                ast.Compare(left=one, ops=[ast.Eq()], comparators=[ast.Name(id=of)])
                | ast.Compare(left=ast.Name(id=of), ops=[ast.Eq()], comparators=[one])
            ) if of == name:
                parts = list(ast.walk(one))
                predicted = any(isinstance(o, ast.Attribute) and o.attr == "argmax" for o in parts)
                if predicted and not any(isinstance(o, ast.Subscript) for o in parts):
                    return True
        if isinstance(node, ast.Subscript) and last_name(node.value) == name:
            if not isinstance(node.ctx, ast.Load):
                continue
            index = node.slice.operand if isinstance(node.slice, ast.UnaryOp) else node.slice
            given = variable_value(index.id) if isinstance(index, ast.Name) else None
            of_tensor = isinstance(given, torch.Tensor) and given.dim() == 1
            if of_tensor or (isinstance(index, ast.Attribute) and "mask" in index.attr):
                return True
    return False


def _rows(node: Node) -> torch.Tensor | None:
    """Return the rows that an index along the first axis alone chooses."""
    index, *more = getattr(node, "_saved_indices", None) or (None,)
    if not isinstance(index, torch.Tensor) or index.dim() != 1 or any(o is not None for o in more):
        return None
    return index.nonzero()[:, 0] if index.dtype == torch.bool else index


def shifted_labels(dataset: type) -> Iterator[LoopFact]:
    """Yield a fact if ``__getitem__(self, i)`` of a class of the script takes ``self.x[i]`` and,
    after it, ``self.y[i - 1]``, without a branch: sample 0 gets the last label."""
    for file, owner in classes_of_script(dataset):
        for method in owner.body:
            if not isinstance(method, ast.FunctionDef) or method.name != "__getitem__":
                continue
            if len(method.args.args) != 2 or any(
                isinstance(o, _BRANCHES) for o in ast.walk(method)
            ):
                continue
            index = method.args.args[1].arg
            stores = (o for o in ast.walk(method) if isinstance(o, ast.Name) and o.id == index)
            if any(not isinstance(one.ctx, ast.Load) for one in stores):
                continue
            taken = sorted(
                _taken(method, index), key=lambda one: (one[1].lineno, one[1].col_offset)
            )
            straight = [one for one in taken if not one[2]]
            back = [one for one in taken if one[2]]
            names = {name for name, _, _ in back}
            if not straight or len(names) != 1 or names & {name for name, _, _ in straight}:
                continue
            if taken[0][2] or not all(map(_LABELS.search, names)):
                continue
            yield LoopFact(
                "shifted-labels", dataset.__name__,
                words=(ast.unparse(straight[0][1]), ast.unparse(back[0][1])),
                location=f"{shown(file)}:{back[0][1].lineno}",
            )  # fmt: skip


def _taken(method: ast.FunctionDef, index: str) -> Iterator[tuple[str, ast.Subscript, bool]]:
    """Yield the attributes that a method takes an element of, and whether it is an earlier one."""
    for node in ast.walk(method):
        match node:
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id="self"), attr=name), slice=ast.Name(id=of)
            ) if of == index:
                yield name, node, False
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id="self"), attr=name),
                slice=ast.BinOp(left=ast.Name(id=of), op=ast.Sub(), right=ast.Constant()),
            ) if of == index:
                yield name, node, True
