"""Explains a lack of memory: the size of the request, its result, and the operation."""

from __future__ import annotations

import os
import re

from gradscope.explain.errors.explanation import Case, Explanation, FailedOperation, Kind, listed
from gradscope.typeset.numbers import size

_CPU = re.compile(r"tried to allocate (\d+) bytes")
_ASKED = re.compile(r"(?:[Tt]ried|Unable) to allocate ([\d.]+) ([KMGTPE]i?B)")
_UNITS = {letter: 1024**power for power, letter in enumerate("BKMGTPE")}


def _asked(text: str) -> int | None:
    """Return the number of bytes in a message that were requested."""
    if found := _CPU.search(text):
        return int(found[1])
    if found := _ASKED.search(text):
        return int(float(found[1]) * _UNITS[found[2][0]])
    return None


def explain(case: Case) -> Explanation | None:
    """Explain a failed allocation: its size and the operation that asked for it."""
    bytes_ = _asked(case.text)
    failed = case.failed
    if bytes_ is None and not failed.function:
        return None
    amount = size(bytes_) if bytes_ is not None else "more than there is"
    shape = _result(failed, bytes_)
    what = f" for a result of {shape}" if shape else ""
    if not failed.function:
        return Explanation(f"{amount} were requested at once.")
    op = (failed.called or failed.function).strip("_")
    of = f" of {listed(failed.operands)}" if failed.operands else ""
    return Explanation(f"`{op}`{of} requested {amount} at once{what}.", _advice(failed, shape))


def _absurd(text: str) -> bool:
    """Return True if the allocation is larger than the machine's memory, so that none of it was
    filled. A repetition that fills the memory could end the process."""
    wanted = _asked(text)
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return False
    return wanted is not None and wanted > total


def _result(failed: FailedOperation, bytes_: int | None) -> list[int] | None:
    """Return the shape of the result, if the operands' shapes give it and the bytes agree."""
    if len(failed.operands) != 2 or bytes_ is None:
        return None
    a, b = (one.shape for one in failed.operands)
    if failed.function in ("matmul", "bmm", "mm", "@") and len(a) > 1 and len(b) > 1:
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


def _advice(failed: FailedOperation, shape: list[int] | None) -> str | None:
    if shape and failed.function in ("matmul", "bmm", "@") and shape[-1] == shape[-2]:
        return (
            "a score for each pair of places: use `F.scaled_dot_product_attention`, which keeps no"
            " such table, a shorter sequence, or attention in windows"
        )
    if "one_hot" in failed.function or "one_hot" in failed.called:
        return "use the ids themselves (`nn.Embedding`, `cross_entropy`), or fewer classes"
    return None


_SIGN = r"out of memory|can't allocate memory|not enough memory"
_ADVICE = "use a smaller batch or input, `--dtype bfloat16`, or `--device meta` for shapes alone"
KIND = Kind({_SIGN: _ADVICE}, explain, worth_repeating=_absurd)
