"""The shared part of the loop rules: counts of a fact in words, and its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gradscope.records.answers import Answer
from gradscope.records.loop import LoopOptimizer, LoopParameter, LoopRecord
from gradscope.records.loop_figures import LoopTokens, LossOperation, LossTargets, Reach
from gradscope.records.report import Finding
from gradscope.records.training import TrainingFinding
from gradscope.rules._words import listed, plural
from gradscope.typeset.numbers import shape

#: What `find_in_loop` yields.
LoopFindings = Iterator[TrainingFinding]

#: A fact is reported after this many steps, or at the end of the run however short.
STEPS = 5


def enough(loop: LoopRecord, count: int, *, least: int = STEPS) -> bool:
    """Return True if a fact with this many occurrences may be reported."""
    return count >= least or (loop.ended and count > 0)


#: Parameters, each by the number of its model and its name there.
Parameters = tuple[tuple[int, str], ...]


def at(
    finding: Finding,
    loop: LoopRecord,
    first: int = 1,
    *,
    model: str | None = None,
    parameters: Parameters | None = None,
) -> TrainingFinding:
    """Return a finding that lasts from a step on.

    Args:
        model: the name of its model.
        parameters: the parameters that it concerns; None: all of the run.
    """
    number = next((one.id for one in loop.models if one.name == model), None)
    steps = ((max(1, first), max(1, first, loop.steps)),)
    return TrainingFinding(finding, steps, number, parameters=parameters)


def held_by(
    optimizer: LoopOptimizer, loop: LoopRecord, groups: Sequence[int] = ()
) -> Parameters | None:
    """Return the parameters of an optimizer, or of some of its groups; None if it holds all
    parameters: a fault of the only optimizer concerns the run.
    """
    if len(loop.optimizers) == 1 and not groups:
        return None
    numbers = groups or range(len(optimizer.held))
    return tuple(one for number in numbers for one in optimizer.held[number])


def concerned(parameters: Iterable[LoopParameter], loop: LoopRecord) -> Parameters:
    """Return the parameters that belong to a live model."""
    numbers = {one.name: one.id for one in loop.models}
    return tuple((numbers[one.model], one.name) for one in parameters if one.model in numbers)


def in_steps(count: int, of: int, what: str = "step", several: str | None = None) -> str:
    """Return the steps in words: ``in all 48 steps``, ``in 47 of 48 steps``, ``in the only
    step``."""
    if count >= of:
        return f"in all {plural(of, what, several)}" if of > 1 else f"in the only {what}"
    return f"in {count:,} of {plural(of, what, several)}"


def first_location(loop: LoopRecord, kind: str) -> str | None:
    """Return the place of the first event of this kind; None without one."""
    events = [*(event for one in loop.rounds for event in one.events), *loop.rest]
    return next((e.location for e in events if e.kind == kind and e.location), None)


def operations(loop: LoopRecord, kind: str, share: float) -> Iterator[LossOperation]:
    """Yield the operations of a kind that are in more than a share of the losses that were read."""
    for one in loop.operations:
        if one.kind == kind and enough(loop, one.count) and one.count > share * loop.graphs:
            yield one


def of_loss(loop: LoopRecord, part: LossOperation | LossTargets | LoopTokens | Reach) -> str | None:
    """Return the place of a part of the loss: its line, else the model call's, or backward's."""
    call = first_location(loop, "call") if part.inside else None
    return part.location or call or first_location(loop, "backward")


def in_readings(parameters: Sequence[LoopParameter], loop: LoopRecord) -> str:
    """Return the words for a fact that held in the last steps with read gradients."""
    count = max(one.steps for one in parameters)
    holders = {name for one in parameters for name in one.optimizers}
    made = max((one.steps for one in loop.optimizers if one.name in holders), default=0)
    if count >= made:
        return in_steps(count, count)
    return f"in the last {plural(count, 'step')} whose gradients were read"


def full_names(parameters: Iterable[LoopParameter], loop: LoopRecord) -> list[str]:
    """Return the parameters' names, with the model's name before them if there are several
    models."""
    several = len(loop.models) > 1
    return [
        f"{one.model}.{one.name}"
        if several and one.model
        else one.name or f"a tensor {shape(one.shape)}"
        for one in parameters
    ]


def gathered(
    parameters: Sequence[LoopParameter],
) -> Iterator[tuple[str, str, list[LoopParameter]]]:
    """Group parameters by top-level module: yield model, common module and members."""
    groups: dict[tuple[str, str], list[LoopParameter]] = {}
    for one in parameters:
        groups.setdefault((one.model, one.name.partition(".")[0]), []).append(one)
    for (model, _), members in groups.items():
        yield model, _common([one.name for one in members]), members


def by_cause(
    parameters: Sequence[LoopParameter], loop: LoopRecord, state: str
) -> tuple[list[tuple[Answer, list[LoopParameter]]], list[LoopParameter]]:
    """Group parameters by the causes that traces found; return these groups and the other
    parameters.

    Args:
        parameters: parameters without a useful gradient.
        loop: the record with the causes.
        state: "missing" or "zero".
    """
    found: list[tuple[Answer, list[LoopParameter]]] = []
    left = list(parameters)
    for one in loop.causes:
        answer = one.answer
        if answer.state != state:
            continue
        upstream = {answer.name, *answer.upstream}
        members = [p for p in left if p.model == one.model and p.name in upstream]
        if members:
            found.append((answer, members))
            left = [p for p in left if p not in members]
    return found, left


def module_of(members: Sequence[LoopParameter]) -> str:
    """Return the module that contains all of them; for a single parameter, its own name."""
    return _common([one.name for one in members])


def untraced(loop: LoopRecord) -> str:
    """Return the reason why no step was traced, as the end of an advice."""
    return f" No step was traced: {loop.untraced}." if loop.untraced else ""


def _common(names: Sequence[str]) -> str:
    """Return the module that holds all of them; for a single parameter, its own name."""
    if len(names) == 1:
        return names[0]
    split = [name.split(".")[:-1] for name in names]
    common = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def these(names: Sequence[str], *, at_most: int = 4) -> str:
    """Return ``fc.weight, fc.bias`` in backticks, and the number of further ones."""
    return listed(names, at_most=at_most)
