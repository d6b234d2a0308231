"""Finds losses that a loop over batches computes and drops: backward comes after the loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradscope.explain.shared.frames import shown
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.script_lines import main_text


def last_losses() -> Iterator[LoopFact]:
    """Yield ``loss.backward()`` after a loop that assigns ``loss`` anew for each batch, in the main
    module's file.

    A loop that carries a value from one iteration to the next, or ends early, is silent: its last
    loss may depend on all iterations.
    """
    found = main_text()
    if found is None:
        return
    file, tree = found
    for node in ast.walk(tree):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list):
                for name, line in _dropped(block):
                    yield LoopFact("last-loss", name, location=f"{shown(file)}:{line}")


def _dropped(block: Sequence[ast.stmt]) -> Iterator[tuple[str, int]]:
    """Yield each loss that a loop of the block computes, and the line of its backward, if that
    comes only after the loop."""
    for place, loop in enumerate(block):
        if not isinstance(loop, ast.For) or not _is_fresh(loop):
            continue
        made = _assigned(loop.body)
        for after in block[place + 1 :]:
            name = _propagated(after)
            if name in made and not _calls_backward(loop):
                yield name, after.lineno
                break
            if name is not None or _assigned([after]) & made:
                break


def _is_fresh(loop: ast.For) -> bool:
    """Return True if no iteration reads what an earlier one assigned, or ends the loop."""
    if any(isinstance(one, ast.Break | ast.Return) for one in ast.walk(loop)):
        return False
    stored = _assigned(loop.body)
    known = _names(loop.target, ast.Store)
    for node in _in_order(loop.body):
        if _names(node, ast.Load) & (stored - known):
            return False
        if isinstance(node, ast.stmt):
            known |= _assigned([node])
    return True


def _in_order(block: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the simple statements of a block, and the headers of its compound statements."""
    for statement in block:
        inside = [one for one in ast.iter_child_nodes(statement) if isinstance(one, ast.stmt)]
        if not inside:
            yield statement
            continue
        yield from (one for one in ast.iter_child_nodes(statement) if one not in inside)
        yield from _in_order(inside)


def _assigned(block: Sequence[ast.stmt]) -> set[str]:
    """Return the variables that plain assignments set; a sum such as ``total += x`` is left out."""
    return {
        name
        for statement in block
        for node in ast.walk(statement)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in _names(target, ast.Store)
    }


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, context)
    }


def _propagated(statement: ast.stmt) -> str | None:
    """Return the variable of ``loss.backward()``, ``scaler.scale(loss).backward()`` or
    ``accelerator.backward(loss)``; None for another statement."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=of, attr="backward"), args=args)):
            match of, args:
                case _, [ast.Name(id=name), *_]:
                    return name
                case ast.Name(id=name), _:
                    return name
                case ast.Call(args=[ast.Name(id=name)]), _:
                    return name
    return None


def _calls_backward(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in ast.walk(node))
