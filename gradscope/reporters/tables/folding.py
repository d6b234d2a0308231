"""Folds consecutive equal blocks into the rows of one: ``h.0…11.mlp ×12``."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from gradscope.records.modules import ModuleCall
from gradscope.records.tensors import TensorRecord
from gradscope.reporters.tables.call_columns import CallRow
from gradscope.reporters.tables.columns import Entry, Row, single
from gradscope.reporters.tables.parameter_columns import ParameterRow


@dataclass(frozen=True, slots=True)
class _Item(Generic[Row]):
    """Groups of rows that form one entry so far; the first group gives the name."""

    groups: tuple[tuple[Row, ...], ...]
    parts: tuple[str, ...]
    number: int
    signature: Hashable


def fold_calls(groups: Sequence[tuple[CallRow, ...]]) -> list[Entry[CallRow]]:
    """Fold calls of equal siblings, and equal calls of one module, into one."""
    items = [
        _Item((g,), _parts(g[0].call.name), g[0].call.call, _call_signature(g[0].call))
        for g in groups
    ]
    return [_shown(item, _renamed_call) for item in _by_level(_repeats(items))]


def fold_parameters(groups: Sequence[tuple[ParameterRow, ...]]) -> list[Entry[ParameterRow]]:
    """Fold parameters of equal siblings into one."""

    def renamed(name: str, rows: Sequence[ParameterRow]) -> ParameterRow:
        return ParameterRow(replace(rows[0].stats, name=name), times=len(rows))

    rows = [group[0] for group in groups]
    return fold_named(rows, lambda row: row.stats.name, _parameter_signature, renamed)


def fold_named(
    rows: Sequence[Row],
    name: Callable[[Row], str],
    signature: Callable[[Row], Hashable],
    renamed: Callable[[str, Sequence[Row]], Row],
) -> list[Entry[Row]]:
    """Fold rows of equal siblings into one; ``renamed`` makes it from a name and these rows."""

    def shown(first: tuple[Row, ...], groups: list[tuple[Row, ...]]) -> tuple[Row, ...]:
        of_name = span_of_names([name(group[0]) for group in groups])
        return (renamed(of_name, [group[0] for group in groups]),)

    items = [_Item(((row,),), _parts(name(row)), 0, signature(row)) for row in rows]
    return [_shown(item, shown) for item in _by_level(items)]


def _parts(name: str) -> tuple[str, ...]:
    return tuple(name.split(".")) if name else ()


def _call_signature(call: ModuleCall) -> Hashable:
    tensors = [tuple(_looks(t) for t in side) for side in (call.inputs, call.outputs)]
    # The inputs' grad_fn is left out, because it belongs to operations before the block.
    made_by = tuple(tensor.grad_fn for tensor in call.outputs)
    return call.type, call.training, call.notes, call.aliases, made_by, *tensors


def _looks(tensor: TensorRecord) -> Hashable:
    gradient = tensor.gradient is not None
    stats = tensor.activation
    return tensor.path, stats.shape, stats.dtype, tensor.requires_grad, gradient


def _parameter_signature(row: ParameterRow) -> Hashable:
    stats = row.stats
    gradient = stats.gradient is not None
    return stats.shape, stats.value.dtype, stats.requires_grad, gradient, stats.in_optimizer


def _repeats(items: list[_Item[Row]]) -> list[_Item[Row]]:
    """Merge a stretch of calls with equal stretches that follow under the next call numbers."""
    following: dict[tuple[tuple[str, ...], int], int] = {
        (item.parts, item.number): i for i, item in enumerate(items)
    }
    result: list[_Item[Row]] = []
    i = 0
    while i < len(items):
        again = following.get((items[i].parts, items[i].number + 1))
        period = 0 if again is None or again <= i else again - i
        times = _times(items, i, period) if period else 1
        stretch = items[i : i + max(period, 1)] if times > 1 else items[i : i + 1]
        runs = [items[i + k * period : i + (k + 1) * period] for k in range(times)]
        result += _merged(runs) if times > 1 else stretch
        i += times * period if times > 1 else 1
    return result


def _times(items: Sequence[_Item[Row]], start: int, period: int) -> int:
    times = 1
    while True:
        offset = start + times * period
        if offset + period > len(items):
            return times
        for k in range(period):
            first, other = items[start + k], items[offset + k]
            if (first.parts, first.signature) != (other.parts, other.signature):
                return times
            if other.number != first.number + times:
                return times
        times += 1


def _by_level(items: list[_Item[Row]]) -> list[_Item[Row]]:
    for level in range(max((len(item.parts) for item in items), default=0)):
        result: list[_Item[Row]] = []
        runs: list[list[_Item[Row]]] = []
        for block in _blocks(items, level):
            if runs and _alike(runs[0], block, level):
                runs.append(block)
                continue
            result += _merged(runs)
            runs = [block]
        items = result + _merged(runs)
    return items


def _blocks(items: Sequence[_Item[Row]], level: int) -> Iterator[list[_Item[Row]]]:
    """Yield the items below each module of this depth together; an item above this depth is
    alone."""
    block: list[_Item[Row]] = []
    for item in items:
        deep = len(item.parts) > level
        if block and deep and item.parts[: level + 1] == block[0].parts[: level + 1]:
            block.append(item)
            continue
        if block:
            yield block
        block = [item]
    if block:
        yield block


def _alike(one: Sequence[_Item[Row]], other: Sequence[_Item[Row]], level: int) -> bool:
    """Return True if two blocks are siblings with other numbers and equal contents."""
    if len(one) != len(other) or min(len(one[0].parts), len(other[0].parts)) <= level:
        return False
    first, second = one[0].parts, other[0].parts
    if first[:level] != second[:level] or _unnumbered(first[level]) != _unnumbered(second[level]):
        return False
    return all(
        (a.parts[level + 1 :], a.number, a.signature)
        == (b.parts[level + 1 :], b.number, b.signature)
        for a, b in zip(one, other, strict=True)
    )


def _unnumbered(part: str) -> str:
    return re.sub(r"\d+", "0", part)


def _merged(runs: Sequence[Sequence[_Item[Row]]]) -> list[_Item[Row]]:
    return [
        replace(same[0], groups=tuple(group for item in same for group in item.groups))
        for same in zip(*runs, strict=True)
    ]


def _shown(
    item: _Item[Row], renamed: Callable[[tuple[Row, ...], list[tuple[Row, ...]]], tuple[Row, ...]]
) -> Entry[Row]:
    first, *others = item.groups
    if not others:
        return single(first)
    return Entry(renamed(first, list(item.groups)), tuple(zip(*item.groups, strict=True)))


def _renamed_call(
    first: tuple[CallRow, ...], groups: list[tuple[CallRow, ...]]
) -> tuple[CallRow, ...]:
    calls = [group[0].call for group in groups]
    numbers = sorted({call.call for call in calls})
    last = numbers[-1] if len(numbers) > 1 else None
    call = replace(calls[0], name=span_of_names([call.name for call in calls]), call=numbers[0])
    return tuple(replace(row, call=call, times=len(groups), last_call=last) for row in first)


def span_of_names(names: Sequence[str]) -> str:
    """Write ``h.0.mlp`` … ``h.11.mlp`` as ``h.0…11.mlp``."""
    spans = []
    for parts in zip(*(name.split(".") for name in names), strict=True):
        first, last = (re.split(r"(\d+)", part) for part in (parts[0], parts[-1]))
        differing = [i for i, pair in enumerate(zip(first, last, strict=True)) if len({*pair}) > 1]
        if not differing:
            spans.append(parts[0])
            continue
        start, end = differing[0], differing[-1] + 1
        ends = "…".join("".join(tokens[start:end]) for tokens in (first, last))
        spans.append("".join([*first[:start], ends, *first[end:]]))
    return ".".join(spans)
