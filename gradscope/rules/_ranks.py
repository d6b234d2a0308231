"""The shared part of rules over ranks: the first difference, and the text for ranks and names."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.records.ranks import Difference, RanksRecord
from gradscope.rules._words import listed, plural


def wrapper(ranks: RanksRecord, model: int) -> str | None:
    """Return the wrapper that spreads a model over processes (DDP, FSDP); None without one."""
    return next((one.wrapper for one in ranks.models if one.id == model), None)


def difference(ranks: RanksRecord, model: int, kind: str) -> Difference | None:
    """Return the difference between copies of one kind; None without one."""
    return next((d for d in ranks.differences if d.model == model and d.kind == kind), None)


def starts_before(one: Difference, other: Difference | None) -> bool:
    """Return True if one difference began before the other, which then follows from it."""
    return other is None or one.steps[0] < other.steps[0]


def named(one: Difference) -> str:
    """Return the tensors in words: ``3 of 8 parameters: `a`, `b` and 1 more``."""
    if len(one.names) == 1:
        return f"the {one.kind} {listed(one.names)}"
    return f"{len(one.names)} of {plural(one.total, one.kind)} ({listed(one.names)})"


def since(one: Difference) -> str:
    """Return the first step with the difference in words, as far as samples show."""
    first = one.steps[0]
    if one.before is None:
        return f"at step {first}, the first sampled step"
    if one.before == first - 1:
        return f"from step {first} on"
    return f"at step {first}; at step {one.before}, the sample before, they were equal"


def on_ranks(ranks: Sequence[int], total: int) -> str:
    """Return ranks in words: ``rank 1 of 2``, ``ranks 0 and 3 of 8``, ``ranks 0, 3, 4, 5 and 4 more
    of 512``."""
    numbers = [str(rank) for rank in ranks[:4]]
    if len(ranks) > 4:
        numbers.append(f"{len(ranks) - 4} more")
    *head, last = numbers
    shown = f"{', '.join(head)} and {last}" if head else last
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown} of {total}"


def the_others(one: Difference) -> str:
    """Return the words for the ranks that agree with each other."""
    return "the other" if one.compared - len(one.ranks) == 1 else "the others"
