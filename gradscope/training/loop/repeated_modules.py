"""Finds lists that hold one module several times, for example by ``[layer] * 4``."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from torch import nn

from gradscope.explain.shared.frames import innermost, shown, tree_of
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.construction import Made

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
    list; None without one, because other repetitions may be intended sharing."""
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
