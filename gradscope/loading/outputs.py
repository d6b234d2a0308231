"""Finds tensors and numbers in a model's output, and the loss that the model computes itself.

The loss is the tensor called ``loss``; else a number with a graph to all parameters that the other
outputs do not use; else the sum of a mapping or a list of numbers. A number without a graph is
named, because it may be a detached loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.errors import few
from gradscope.nesting import find, is_a, walk


def tensors(output: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor in a nested output with its path, in order."""
    return find(output, Tensor)


def first_floating(output: Any, *, with_graph: bool = False) -> tuple[str, Tensor] | None:
    """Return the first real floating tensor, with its path; None without one."""
    floating = ((p, t) for p, t in tensors(output) if t.is_floating_point())
    return next((one for one in floating if one[1].requires_grad or not with_graph), None)


def describe(output: Any) -> str:
    """Describe an output's tensors for a message: ``complex64 [2, 3]``, ``no tensor (a str)``."""
    found = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for _, t in tensors(output)]
    if not found:
        return f"no tensor (a {type(output).__name__})"
    return few(found)


def numbers_in(output: Any) -> Iterator[tuple[str, Any]]:
    """Yield each single floating number, and each mapping or list of only such numbers, in order.

    A tensor of shape [1] counts only if the batch has more samples; otherwise it may belong to the
    sample.
    """
    beside = walk(output, lambda item: is_a(item, Tensor))
    batched = any(t.ndim > 1 and t.shape[0] > 1 for _, t in beside)

    def wanted(item: Any) -> bool:
        return is_a(item, Tensor) or (item is not output and bool(losses_in(item)))

    for path, found in walk(output, wanted):
        if not is_a(found, Tensor):
            yield reached(path), losses_in(found)
        elif found.is_floating_point() and (
            found.ndim == 0 or (batched and tuple(found.shape) == (1,))
        ):
            yield reached(path), found


def losses_in(item: Any) -> dict[Any, Tensor]:
    """Return the losses of a mapping or list that holds only numbers, as detection models return.

    In a list the key is the index. The entries of a tuple have different meanings, so a tuple gives
    none.
    """
    if is_a(item, Mapping):
        found = dict(item)
        numbers = all(_is_number(t) and t.ndim < 2 for t in found.values())
    elif is_a(item, list) and len(item) > 1:
        found = dict(enumerate(item))
        numbers = all(_is_number(t) and t.ndim == 0 for t in item)
    else:
        return {}
    return found if numbers else {}


def _is_number(item: Any) -> bool:
    return is_a(item, Tensor) and item.is_floating_point() and item.numel() == 1


def part_name(key: Any) -> str:
    """Return the access to a part of a mapping or list, as in code: ``[0]``, ``.loss``."""
    return f"[{key}]" if isinstance(key, int) else f".{key}"


def tensors_of(found: Any) -> list[Tensor]:
    """Return a tensor, or the tensors in a mapping or list that holds only tensors."""
    if is_a(found, Tensor):
        return [found]
    return list(found.values() if isinstance(found, Mapping) else found)


def graph_upstream(found: Any) -> tuple[set[Any], set[Any]]:
    """Return the graph nodes upstream of numbers, and the parameters at its ends."""
    stack = [t.grad_fn for t in tensors_of(found) if t.grad_fn is not None]
    nodes, leaves = set(stack), set()
    while stack:
        node: Any = stack.pop()
        if node.name().endswith("AccumulateGrad"):
            leaves.add(id(node.variable))
        following = {after for after, _ in node.next_functions if after is not None} - nodes
        nodes |= following
        stack += following
    return nodes, leaves


def has_graph(number: Tensor | Mapping[Any, Tensor]) -> bool:
    """Return True if a number depends on a trainable tensor that is not itself a single number."""
    if isinstance(number, Mapping):
        return any(map(has_graph, number.values()))
    return number.requires_grad and not _is_setting(number)


def is_cut(number: Tensor) -> bool:
    """Return True if backward from the number reaches nothing, for example from a new leaf."""
    leaf = number.grad_fn is None and not isinstance(number, nn.Parameter)
    return not number.requires_grad or leaf


def _is_setting(number: Tensor) -> bool:
    """Return True if it depends on single numbers only, as a learned temperature does."""
    nodes, _ = graph_upstream(number)
    sizes = [math.prod(int(n) for n in one.shape) for node in nodes for one in node._input_metadata]
    return all(size <= 1 for size in sizes)


def reached(path: str) -> str:
    """Write a path as code: ``output[1].loss``."""
    parts = path.split(".") if path else []
    return "output" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)


#: Names of numbers that are no loss, with or without a graph; names that end with `loss` are
#: excepted.
_METRIC = re.compile(
    r"(^|_)(acc|accuracy|perplexity|ppl|scale|temperature|temp|lr|norm|top\d+|error|err|num|count"
    r"|correct|iou|f1|auc|precision|recall|weight)($|_)(?!(.*_)?loss(es)?$)",
    re.IGNORECASE,
)
#: Names of a total, which includes all other losses.
_TOTAL = re.compile(r"(^|_)(total|objective|elbo)($|_)", re.IGNORECASE)
#: Names of parts of a loss.
_PART = re.compile(
    r"(^|_)(aux|auxiliary|z|router|balance|balancing|commit|commitment)($|_)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """A model's own loss: its path in code (``output[1]``), and the reason for the choice.

    ``cut`` has other numbers that could be losses if they had a graph, ``parts`` the losses whose
    sum it is, by name, if there are several, and ``left`` the names of losses that are not in it.
    """

    name: str
    tensor: Tensor
    why: str
    cut: tuple[str, ...] = ()
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    left: tuple[str, ...] = ()


def own_loss(output: Any) -> OwnLoss | None:
    """Return the model's own loss; None if its output has none.

    A number named ``loss`` counts with or without a graph, and so does a number that is the full
    output. Any other number counts only with a graph.
    """
    named = _called_loss(output)
    if named is not None:
        return OwnLoss(*named, "the model's own", parts=_inside(named[1], output))
    numbers = list(numbers_in(output))
    losses = losses_in(output)
    if losses:
        return _summed("output", losses)
    if len(numbers) == 1 and numbers[0][0] == "output":
        return OwnLoss("output", output, "the one number that the model returns")
    able = _able(output, numbers)
    if not able:
        return _called_loss_inside(output)
    name, found = able[0]
    rest = [one for one, _ in able[1:]]
    idle = [one for one, number in numbers if not has_graph(number)]
    if is_a(found, Mapping):
        own = _summed(name, found)
    else:
        why = "a number with a graph" if not rest else f"the first of {len(able)} with a graph"
        parts = _inside(found, output)
        own = OwnLoss(name, found, f"the model's own: {why}", _beside(name, numbers), parts)
        nodes = graph_upstream(found)[0]
        left = [one for one, t in able[1:] if not {x.grad_fn for x in tensors_of(t)} <= nodes]
        own = replace(own, left=tuple(left))
    message = f"; not in it: {few(rest, '`', 4)}" if rest else ""
    message += f"; without a graph: {few(idle, '`', 4)}" if idle else ""
    return replace(own, why=own.why + message)


def _able(output: Any, numbers: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the numbers that can be the loss, the likeliest first."""
    able = [
        (name, found)
        for name, found in numbers
        if has_graph(found) and not _METRIC.search(_key(name)) and not _PART.search(_key(name))
    ]
    if not able:
        return []
    held = {name: graph_upstream(found) for name, found in able}
    # A number that does not reach every parameter of the other outputs is only a part of the loss.
    wanted = graph_upstream(
        [t for _, t in walk(output, lambda item: is_a(item, Tensor)) if t.numel() > 1]
    )[1]
    able = [
        (name, found)
        for name, found in able
        if _TOTAL.search(_key(name)) or wanted <= held[name][1]
    ]

    def rank(one: tuple[str, Any]) -> tuple[bool, bool, bool, int, bool]:
        name, found = one
        key = _key(name).lower()
        starts = {t.grad_fn for t in tensors_of(found)}
        inside = any(starts <= held[other][0] for other, _ in able if other != name)
        depth = len(re.findall(r"[.\[]", name))
        return inside, not _TOTAL.search(key), key != "loss", depth, "loss" not in key

    return sorted(able, key=rank)  # stable: else in their order


def _inside(total: Tensor, output: Any) -> dict[str, Tensor]:
    """Return the numbers in an output from which one of them is computed, if there are several."""
    if total.grad_fn is None:
        return {}
    nodes = graph_upstream(total)[0] - {total.grad_fn}
    found: dict[str, Tensor] = {}
    for name, number in numbers_in(output):
        several = {name: number}
        if is_a(number, Mapping):
            several = {f"{name}{part_name(key)}": t for key, t in number.items()}
        inside = {one: t for one, t in several.items() if t.grad_fn in nodes}
        found |= {one.removeprefix("output").lstrip("."): t for one, t in inside.items()}
    return found if len(found) > 1 else {}


def _called_loss_inside(output: Any) -> OwnLoss | None:
    """Return a nested output named ``loss``; None without one."""
    for path, tensor in walk(output, lambda item: is_a(item, Tensor)):
        if path.rpartition(".")[2] == "loss":
            return OwnLoss(reached(path), tensor, "the model's own")
    return None


def without_graph(output: Any) -> dict[str, Any]:
    """Return the losses of an output that lack a graph, by name.

    These are tensors with one number, and plain floats (as from ``.item()``) named as a loss.
    """
    cut: list[tuple[str, Any]] = []
    for name, found in numbers_in(output):
        if is_a(found, Mapping):
            cut += [(f"{name}{part_name(key)}", t) for key, t in found.items() if is_cut(t)]
        elif is_cut(found):
            cut.append((name, found))
    floats = walk(output, lambda item: is_a(item, float))
    cut += [(reached(path), found) for path, found in floats if "loss" in path.lower()]
    return {name: found for name, found in cut if not _METRIC.search(_key(name))}


def parts(output: Any) -> tuple[str, ...]:
    """Return the numbers in an output that are parts of a loss by their names."""
    return tuple(n for n, t in numbers_in(output) if _PART.search(_key(n)) and has_graph(t))


def _called_loss(output: Any) -> tuple[str, Tensor] | None:
    if is_a(output, Tensor):
        return None
    found: Any = getattr(output, "loss", None)
    if not is_a(found, Tensor) and is_a(output, Mapping):
        found = output.get("loss")
    if is_a(found, Tensor):
        return "output.loss", found
    return None


def _summed(name: str, losses: Mapping[Any, Tensor]) -> OwnLoss:
    """Return the sum of the losses with a graph; if none has one, the sum of all, so that backward
    raises."""
    able = {key: t for key, t in losses.items() if has_graph(t) and not _METRIC.search(str(key))}
    totals = {key: t for key, t in able.items() if _holds(t, able)}
    taken = totals or able or dict(losses)
    numbers = [number.reshape(()) for number in taken.values()]
    alike = len({(number.dtype, number.device) for number in numbers}) == 1
    total = torch.stack(numbers).sum() if alike else sum(numbers[1:], numbers[0])
    rest = [key for key in losses if key not in taken]
    message = f"; not in it: {few(map(str, rest), '`', 4)}" if rest and not totals else ""
    of = (
        few(map(str, taken), "`", 4)
        if all(isinstance(k, str) for k in taken)
        else f"{len(taken)} numbers"
    )
    why = f"the model's own: the sum of {of}{message}"
    if totals:
        why = f"the model's own: {few(map(str, taken), '`', 4)} includes the others{message}"
    # If one number is called a loss, the others may be its parts, kept for a log. If several are,
    # numbers with other names are metrics.
    called = any("loss" in str(key).lower() for key in taken)
    alone = len(taken) == 1 and (called or _TOTAL.search(str(next(iter(taken)))))
    cut = [
        f"{name}{part_name(key)}"
        for key in rest
        if is_cut(losses[key])
        and not _METRIC.search(str(key))
        and not alone
        and (not called or "loss" in str(key).lower())
    ]
    parts = {str(k): t for k, t in (able if totals else taken).items() if k not in totals}
    return OwnLoss(name, total, why, tuple(cut), parts if len(parts) > 1 else {})


def _beside(name: str, numbers: list[tuple[str, Any]]) -> tuple[str, ...]:
    """Return the numbers without a graph beside the chosen loss, in the same container.

    They may be parts of it, kept for a log, as may the numbers in its own mapping.
    """
    if "loss" in _key(name).lower():
        return ()
    around = _around(name)
    return tuple(
        one
        for one, found in numbers
        if is_a(found, Tensor)
        and not found.requires_grad
        and _around(one) == around
        and not _METRIC.search(_key(one))
    )


def _holds(number: Tensor, losses: Mapping[Any, Tensor]) -> bool:
    """Return True if the number is computed from all other losses."""
    others = {t.grad_fn for t in losses.values() if t is not number}
    return bool(others) and others <= graph_upstream(number)[0] - {number.grad_fn}


def _around(name: str) -> str:
    return name[: max(name.rfind("."), name.rfind("["))]


def _key(name: str) -> str:
    return name.rpartition(".")[2] if "." in name else ""
