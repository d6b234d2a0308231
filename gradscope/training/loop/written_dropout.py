"""Calls of ``F.dropout`` without ``training=``: they drop activations in evaluation, too."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from torch import nn

from gradscope.explain.shared.frames import classes_of_script, last_name, shown
from gradscope.records.loop_figures import LoopFact

_DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"})
_FUNCTIONAL = frozenset({"F", "functional", "nn.functional", "torch.nn.functional"})


def written_dropout(modules: Iterable[nn.Module]) -> Iterator[LoopFact]:
    """Yield the calls in a model's classes that the script itself defines.

    A call inside an ``if`` on ``training`` is left out: it runs only in training.
    """
    for kind in dict.fromkeys(map(type, modules)):
        for file, owner in classes_of_script(kind):
            for call in _calls(owner):
                text, line = ast.unparse(call), f"{shown(file)}:{call.lineno}"
                yield LoopFact("written-dropout", words=(text,), location=line)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    if isinstance(node, ast.If | ast.IfExp) and "training" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Call) and last_name(node.func) in _DROPOUTS and _by_default(node):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)


def _by_default(call: ast.Call) -> bool:
    """Return True if ``training`` is left at its default, which is True."""
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    if of is None or ast.unparse(of) not in _FUNCTIONAL or len(call.args) > 2:
        return False
    given = {keyword.arg for keyword in call.keywords}
    dropped = next((one.value for one in call.keywords if one.arg == "p"), None)
    dropped = call.args[1] if len(call.args) == 2 else dropped
    nothing = isinstance(dropped, ast.Constant) and dropped.value == 0
    return not given & {"training", None} and not nothing
