"""Gradients that a custom ``autograd.Function`` gave back in the wrong shape or number."""

from __future__ import annotations

import inspect
import re
from typing import Any

from torch.autograd.graph import Node

from gradscope.explain.errors.explanation import Case, Explanation
from gradscope.explain.shared.call_site import CallSite

_SHAPE = re.compile(
    r"Function (\w+)Backward returned an invalid gradient at index (\d+) - got (\[.*?\]) but"
    r" expected shape compatible with (\[.*?\])"
)
_COUNT = re.compile(
    r"function (\w+)Backward returned an incorrect number of gradients \(expected (\d+), got (\d+)"
)


def concerns(text: str) -> bool:
    """Whether an exception is of this sort, which only a second run can place."""
    return bool(_SHAPE.search(text) or _COUNT.search(text))


def explain(case: Case) -> Explanation | None:
    """Which function, where it was applied, and what its ``backward`` is to return."""
    shape, count = _SHAPE.search(case.text), _COUNT.search(case.text)
    found = shape or count
    if found is None:
        return None
    node = _node(case, found[1])
    function = getattr(type(node), "_forward_cls", None)
    applied = case.tracer.applied.get(node, CallSite()) if case.tracer and node else CallSite()
    where = f", applied{applied.within}{applied.at}," if applied.file or applied.module else ""
    names = _arguments(function)
    site = _backward(function, applied)
    if shape is not None:
        index, got, wanted = int(shape[2]), shape[3], shape[4]
        name = f"`{names[0]}`" if len(names) == 1 else f"tensor argument {index}"
        return Explanation(
            f"`{found[1]}.backward`{where} returned {got} as the gradient of {name}, which is"
            f" {wanted}.",
            f"return a gradient of the shape that {name} has in `forward`: {wanted}",
            site=site,
        )
    expected, given = int(found[2]), int(found[3])
    takes = f" ({', '.join(names)})" if names else ""
    return Explanation(
        f"`{found[1]}.forward`{where} takes {expected} arguments after `ctx`{takes}, and its"
        f" `backward` returned {given}.",
        f"return {expected} values from `backward`, one for each argument of `forward`: None for"
        " what needs no gradient, such as a number",
        site=site,
    )


def _node(case: Case, name: str) -> Node | None:
    """The node that raised: the first of that function as backward takes them."""
    if case.tracer is None or case.tracer.failing is None:
        return None
    nodes = case.tracer.failing.nodes
    return next((node for node in nodes if type(node).__name__ == f"{name}Backward"), None)


def _arguments(function: Any) -> list[str]:
    forward = getattr(function, "forward", None)
    if forward is None:
        return []
    names = list(inspect.signature(forward).parameters)
    split = "setup_context" in vars(function)  # then `forward` has no `ctx`
    return names if split else names[1:]


def _backward(function: Any, applied: CallSite) -> CallSite | None:
    """The function's ``backward``, which is to be mended, in the module that applied it."""
    code = getattr(getattr(function, "backward", None), "__code__", None)
    if code is None:
        return applied if applied.file else None
    start = code.co_firstlineno
    lines = [line for _, _, line in code.co_lines() if line is not None and line > start]
    return CallSite(applied.module, applied.call, code.co_filename, min(lines, default=start))
