"""The loss that a model computes itself, found among what it returns.

It is the tensor called ``loss``; else a number that has a graph; else the sum of a mapping of
numbers. A number that backward cannot start from is named, for it may be a loss that was cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradscope.nesting import walk

#: Names of what is no loss, whether or not it has a graph.
_METRIC = re.compile(
    r"(^|_)(acc|accuracy|perplexity|ppl|scale|temperature|temp|lr|norm)($|_)", re.IGNORECASE
)
#: Names of what is only a part of one.
_PART = re.compile(
    r"(^|_)(aux|auxiliary|z|router|balance|balancing|commit|commitment)($|_)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """A model's own loss: how code reaches it (``output[1]``), and in words why it is this one.

    ``cut`` are the numbers beside it that could be losses too if they had a graph.
    """

    name: str
    tensor: Tensor
    why: str
    cut: tuple[str, ...] = ()


def own_loss(output: Any) -> OwnLoss | None:
    """The loss that the model computed itself; None where its output holds none.

    What is called ``loss`` is one with or without a graph, as is the only number of an output that
    holds nothing else; any other number only with a graph.
    """
    named = _called_loss(output)
    if named is not None:
        return OwnLoss(*named, "the model's own")
    if _is_losses(output):
        return _summed("output", output)
    numbers = list(_numbers(output))
    if len(numbers) == 1 and numbers[0][0] == "output":
        return OwnLoss("output", output, "the one number that the model returns")
    able = [
        (name, found)
        for name, found in numbers
        if _has_graph(found) and not _METRIC.search(_key(name)) and not _PART.search(_key(name))
    ]
    if not able:
        return None
    able.sort(key=lambda one: "loss" not in _key(one[0]).lower())  # stable: else in their order
    name, found = able[0]
    rest = [one for one, _ in able[1:]]
    idle = [one for one, number in numbers if not _has_graph(number)]
    if isinstance(found, Mapping):
        own = _summed(name, found)
    else:
        why = "a number with a graph" if not rest else f"the first of {len(able)} with a graph"
        own = OwnLoss(name, found, f"the model's own: {why}", _beside(name, numbers))
    said = f"; not in it: {few(rest)}" if rest else ""
    said += f"; without a graph: {few(idle)}" if idle else ""
    return replace(own, why=own.why + said)


def without_graph(output: Any) -> dict[str, Any]:
    """What in an output could be its loss if backward could start from it, by name.

    Numbers in tensors, and plain ones, as `.item()` leaves them, where they are called a loss.
    """
    cut: list[tuple[str, Any]] = []
    for name, found in _numbers(output):
        if isinstance(found, Mapping):
            cut += [(f"{name}.{key}", t) for key, t in found.items() if not t.requires_grad]
        elif not found.requires_grad:
            cut.append((name, found))
    floats = walk(output, lambda item: isinstance(item, float))
    cut += [(_reached(path), found) for path, found in floats if "loss" in path.lower()]
    return {name: found for name, found in cut if not _METRIC.search(_key(name))}


def parts(output: Any) -> tuple[str, ...]:
    """The numbers in an output whose names say that they are a part of a loss."""
    return tuple(n for n, t in _numbers(output) if _PART.search(_key(n)) and _has_graph(t))


def _called_loss(output: Any) -> tuple[str, Tensor] | None:
    if isinstance(output, Tensor):
        return None
    found = getattr(output, "loss", None)
    if not isinstance(found, Tensor) and isinstance(output, Mapping):
        found = output.get("loss")
    if isinstance(found, Tensor):
        return "output.loss", found
    inner = [
        (_reached(path), tensor)
        for path, tensor in walk(output, lambda item: isinstance(item, Tensor))
        if path.rpartition(".")[2] == "loss"
    ]
    return next((one for one in inner if one[1].requires_grad), inner[0] if inner else None)


def _numbers(output: Any) -> Iterator[tuple[str, Any]]:
    """Each floating number, and each mapping of nothing else, in order."""

    def wanted(item: Any) -> bool:
        return isinstance(item, Tensor) or (item is not output and _is_losses(item))

    for path, found in walk(output, wanted):
        if not isinstance(found, Tensor) or (found.ndim == 0 and found.is_floating_point()):
            yield _reached(path), found


def _is_losses(item: Any) -> bool:
    """Whether it is a mapping that holds nothing but numbers: a detection model's losses."""
    if not isinstance(item, Mapping) or not item:
        return False
    return all(
        isinstance(t, Tensor) and t.is_floating_point() and t.numel() == 1 and t.ndim < 2
        for t in item.values()
    )


def _summed(name: str, losses: Mapping[Any, Tensor]) -> OwnLoss:
    """The sum of those that have a graph; of all where none has, for backward to say so."""
    able = {key: t for key, t in losses.items() if _has_graph(t) and not _METRIC.search(str(key))}
    taken = able or dict(losses)
    numbers = [number.reshape(()) for number in taken.values()]
    alike = len({(number.dtype, number.device) for number in numbers}) == 1
    total = torch.stack(numbers).sum() if alike else sum(numbers[1:], numbers[0])
    rest = [str(key) for key in losses if key not in taken]
    said = f"; not in it: {few(rest)}" if rest else ""
    why = f"the model's own: the sum of {few(map(str, taken))}{said}"
    # Beside the one that is called a loss the others may be its parts, kept for a log.
    parts = len(taken) == 1 and "loss" in str(next(iter(taken))).lower()
    cut = [f"{name}.{key}" for key in rest if not _METRIC.search(key) and not parts]
    return OwnLoss(name, total, why, tuple(cut))


def _beside(name: str, numbers: list[tuple[str, Any]]) -> tuple[str, ...]:
    """The numbers without a graph in the container of the one that was taken.

    Beside one that is called a loss they may be its parts, and so may those in a mapping of its
    own: both are kept for a log.
    """
    if "loss" in _key(name).lower():
        return ()
    around = _around(name)
    return tuple(
        one
        for one, found in numbers
        if isinstance(found, Tensor)
        and not found.requires_grad
        and _around(one) == around
        and not _METRIC.search(_key(one))
    )


def _has_graph(number: Tensor | Mapping[Any, Tensor]) -> bool:
    if isinstance(number, Mapping):
        return any(map(_has_graph, number.values()))
    return number.requires_grad and not _is_setting(number)


def _is_setting(number: Tensor) -> bool:
    """Whether it is computed of single numbers only, as a learned temperature is."""
    if number.grad_fn is None:
        return True
    stack, seen = [number.grad_fn], {number.grad_fn}
    while stack:
        node: Any = stack.pop()
        leaf = node.variable if node.name().endswith("AccumulateGrad") else None
        if leaf is not None and leaf.numel() > 1:
            return False
        following = [after for after, _ in node.next_functions if after is not None]
        if leaf is None and not following:  # a root of some other kind, of which nothing is known
            return False
        stack += [after for after in following if after not in seen]
        seen.update(following)
    return True


def _reached(path: str) -> str:
    """A path as code would write it: ``output[1].loss``."""
    parts = path.split(".") if path else []
    return "output" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)


def _around(name: str) -> str:
    return name[: max(name.rfind("."), name.rfind("["))]


def _key(name: str) -> str:
    return name.rpartition(".")[2] if "." in name else ""


def few(names: Iterable[str]) -> str:
    """Names for a sentence, the first four of them."""
    found = list(names)
    return ", ".join(f"`{name}`" for name in found[:4]) + (", …" if len(found) > 4 else "")
