"""A report → its modules as they contain each other, coloured by their gradients."""

from __future__ import annotations

from collections.abc import Container

from gradscope.charts.blocks import Block, Blocks
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.reporters.labels import label
from gradscope.reporters.report.charts.depth import gradient

#: More innermost modules than these are no wider than a line each, and deeper ones a tower.
MOST, DEEPEST = 400, 24


def modules(report: Report) -> Blocks | None:
    """Siblings in the order of their first calls; None where there is nothing to see or too much.

    Their order is that of the charts over depth wherever modules are called in turn.
    """
    calls: dict[str, list[ModuleCall]] = {}
    for call in sorted(report.calls, key=lambda call: call.order):
        calls.setdefault(call.name, []).append(call)
    inside: dict[str | None, list[str]] = {}
    for name in calls:
        inside.setdefault(_owner(name, calls), []).append(name)
    if len(inside) < 2 or len(calls) > 4 * MOST:
        return None
    order: list[tuple[str, int]] = []
    first: dict[str, int] = {}
    innermost, waiting = 0, [(name, 0) for name in reversed(inside[None])]
    while waiting:
        name, depth = waiting.pop()
        order.append((name, depth))
        first[name] = innermost
        innermost += name not in inside
        waiting += [(part, depth + 1) for part in reversed(inside.get(name, ()))]
    if innermost > MOST or max(depth for _, depth in order) > DEEPEST:
        return None
    last: dict[str, int] = {}
    for name, _ in reversed(order):
        last[name] = last[inside[name][-1]] if name in inside else first[name]
    made = []
    for name, depth in order:
        point = gradient(0, calls[name])
        made.append(Block(label(name), first[name], last[name], depth, point.y, point.mark))
    return Blocks("modules", "norm of the output gradient", tuple(made))


def _owner(name: str, calls: Container[str]) -> str | None:
    """The nearest module around one that was called too; None for the outermost."""
    if not name:
        return None
    while name:
        name = name.rpartition(".")[0]
        if name in calls:
            return name
    return None
