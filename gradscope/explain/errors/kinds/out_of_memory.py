"""Out of memory: how much was asked for, for what result, and by whom."""

from __future__ import annotations

import re

from gradscope.explain.errors.explanation import Case, Told, listed
from gradscope.explain.errors.failed_operation import Meeting
from gradscope.typeset.numbers import size

_CPU = re.compile(r"tried to allocate (\d+) bytes")
_SAID = re.compile(r"(?:[Tt]ried|Unable) to allocate ([\d.]+) ([KMGTPE]i?B)")
_UNITS = {letter: 1024**power for power, letter in enumerate("BKMGTPE")}


def asked(text: str) -> int | None:
    """The bytes that a message says were asked for."""
    if found := _CPU.search(text):
        return int(found[1])
    if found := _SAID.search(text):
        return int(float(found[1]) * _UNITS[found[2][0]])
    return None


def explain(case: Case) -> Told | None:
    """How much was asked for at once, and what for."""
    bytes_ = asked(case.text)
    met = case.met
    if bytes_ is None and met is None:
        return None
    amount = size(bytes_) if bytes_ is not None else "more than there is"
    shape = _result(met, bytes_)
    what = f" for a result of {shape}" if shape else ""
    if met is None:
        return Told((f"{amount} were asked for at once.",))
    op = (met.called or met.op).strip("_")
    of = f" of {listed(met.operands)}" if met.operands else ""
    return Told((f"`{op}`{of} asked for {amount} at once{what}.",), _advice(met, shape))


def _result(met: Meeting | None, bytes_: int | None) -> list[int] | None:
    """The shape of the result, where the operands' shapes say it and the bytes agree."""
    if met is None or len(met.operands) != 2 or bytes_ is None:
        return None
    a, b = (one.shape for one in met.operands)
    if met.op in ("matmul", "bmm", "mm", "@") and len(a) > 1 and len(b) > 1:
        found = [*_broadcast(a[:-2], b[:-2]), a[-2], b[-1]]
    else:
        found = _broadcast(a, b)
    count = 1
    for n in found:
        count *= n
    return found if count and bytes_ % count == 0 and bytes_ // count in (1, 2, 4, 8, 16) else None


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> list[int]:
    length = max(len(a), len(b))
    left, right = (1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b
    return [max(x, y) for x, y in zip(left, right, strict=True)]


def _advice(met: Meeting, shape: list[int] | None) -> str | None:
    if shape and met.op in ("matmul", "bmm", "@") and shape[-1] == shape[-2]:
        return (
            "a score for each pair of places: use `F.scaled_dot_product_attention`, which keeps no"
            " such table, a shorter sequence, or attention in windows"
        )
    if "one_hot" in met.op or "one_hot" in met.called:
        return "use the ids themselves (`nn.Embedding`, `cross_entropy`), or fewer classes"
    return None
