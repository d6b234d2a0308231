"""Figures and reports of several processes, combined into one: exact, or None."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradscope.errors import few
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Report
from gradscope.records.run import ParallelRun, StepParameter, StepRecord
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.records.training import GradientParts, StepSample, TrainingStep
from gradscope.runfile.norm_series import Key, Layout, NormGroup, ShardLayout
from gradscope.runfile.rank_file import Series
from gradscope.runfile.schema import OF_UPDATE, joined

_Number = float | None
#: Columns with a number for each rank's part.
_NORMS = ("value_norm", "grad_norm", "clipped_norm", "update_norm")
#: Columns of the weight's own shards.
_OF_VALUE = ("value_norm", "update_norm", "m_norm", "v_norm")


def combined_steps(
    steps: Mapping[int, Sequence[TrainingStep]], layout: Layout
) -> tuple[TrainingStep, ...]:
    """Return the step metrics of the full run: losses are means over ranks, norms are global.

    A step that a rank did not record, because of its budget, is left out. A step that a rank did
    not reach has no loss, and no norms that need the rank's part.

    Args:
        steps: the steps of each rank.
        layout: the layout of the same ranks.
    """
    of = {rank: {one.step: one for one in several} for rank, several in steps.items()}
    ends = {rank: max(several, default=0) for rank, several in of.items()}
    found = []
    for one in steps[min(steps)]:
        there = {rank: several[one.step] for rank, several in of.items() if one.step in several}
        absent = [rank for rank in of if rank not in there]
        if any(ends[rank] > one.step for rank in absent):
            continue
        before, clipped = _total_norms(there, layout)
        found.append(
            replace(
                one,
                **_mean_losses(() if absent else list(there.values())),
                nonfinite=next((s.nonfinite for s in there.values() if s.nonfinite), None),
                gradient_norm=before,
                clipped_norm=clipped,
                norms=(),
                update_rms=_same([one.update_rms for one in there.values()]),
                parts=None if absent else _parts(list(there.values())),
            )
        )
    return tuple(found)


def _parts(steps: Sequence[TrainingStep]) -> GradientParts | None:
    """Return the norms of all ranks' own gradients, if all have equal batches."""
    known = [one.parts for one in steps if one.parts is not None and one.parts.ranks]
    if len(known) < len(steps) or len({one.size for one in known}) > 1:
        return None
    return GradientParts(known[0].size, ranks=tuple(n for one in known for n in one.ranks))


def _mean_losses(steps: Sequence[TrainingStep]) -> dict[str, Any]:
    """Return the mean loss over the ranks that have one; in a pipeline, these are the ranks of the
    last stage.

    If all ranks had equally many backwards, it is the mean for each backward; else the mean of the
    sums.
    """
    having = [
        one
        for one in steps
        if one.nonfinite is not None or any(loss is not None for loss in one.losses)
    ]
    if len({(len(one.losses), one.summed) for one in having}) > 1:
        return {"losses": (_mean([one.loss for one in having]),), "summed": None}
    columns = zip(*(one.losses for one in having), strict=True)
    return {
        "losses": tuple(map(_mean, columns)),
        "summed": having[0].summed if having else None,
    }


def _mean(values: Sequence[_Number]) -> _Number:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _same(values: Sequence[_Number]) -> _Number:
    """Return the value that all ranks share, as replicas do; None if they differ, as parts of a
    sharded model do."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values) or max(known) > min(known) * (1 + 1e-6):
        return None
    return known[0]


def _total_norms(there: Mapping[int, TrainingStep], layout: Layout) -> tuple[_Number, _Number]:
    """Return the norms over all parameters that the step's optimizer has on any rank."""
    norms = {rank: {group: both for group, *both in one.norms} for rank, one in there.items()}
    if not any(norms.values()):  # an older file, or a step whose gradients were not read
        every = ShardLayout(tuple(((rank,),) for rank in there))
        before = every.norm({rank: one.gradient_norm for rank, one in there.items()})
        return before, every.norm({rank: one.clipped_norm for rank, one in there.items()})
    of_groups: list[tuple[_Number, _Number]] = []
    for group in layout.groups:
        own = {rank: norms.get(rank, {}).get(number) for rank, number in group.numbers.items()}
        if any(own.values()):
            of_groups.append((_of_group(group, own, 0), _of_group(group, own, 1)))
        elif not any(rank in there for rank in own):  # no such rank is left
            of_groups.append((None, None))
    return root_of_squares([before for before, _ in of_groups]), root_of_squares(
        [after for _, after in of_groups]
    )


def _of_group(group: NormGroup, own: Mapping[int, Sequence[_Number] | None], i: int) -> _Number:
    return group.reduced.norm({rank: both[i] for rank, both in own.items() if both})


def root_of_squares(norms: Sequence[_Number]) -> _Number:
    """Return the norm of all from the norm of each; None if one is missing."""
    known = [norm for norm in norms if norm is not None]
    return math.hypot(*known) if norms and len(known) == len(norms) else None


def combined_parameters(
    series: Mapping[int, Mapping[Key, Series]], layout: Layout
) -> dict[Key, Series]:
    """Return the parameters of all ranks over the steps, with global norms: no single rank has the
    norm of a sharded one.

    Args:
        series: the series of each rank.
        layout: the layout of the same ranks.
    """
    holders: dict[Key, dict[int, Series]] = {}
    for rank in sorted(series):
        for key, one in series[rank].items():
            holders.setdefault(key, {})[rank] = one
    return {key: _combined(key, held, layout) for key, held in holders.items()}


def _combined(key: Key, held: Mapping[int, Series], layout: Layout) -> Series:
    ranks = tuple(held)
    value, gradient = layout.value(key, ranks), layout.gradient(key, ranks)
    rows = {rank: {step: i for i, step in enumerate(one.steps)} for rank, one in held.items()}
    steps = held[ranks[0]].steps
    columns: dict[str, list[_Number]] = {name: [] for name in held[ranks[0]].values}
    for step in steps:
        for name, cell in _cells(step, held, rows, (value, gradient), layout.shape(key)):
            columns[name].append(cell)
    values = {name: tuple(cells) for name, cells in columns.items()}
    fault = value.fault or gradient.fault or _fault(held, rows, steps, values)
    return Series(steps, values, fault=fault)


def _fault(
    held: Mapping[int, Series],
    rows: Mapping[int, Mapping[int, int]],
    steps: Sequence[int],
    values: Mapping[str, Sequence[_Number]],
) -> str | None:
    """Return the reason why the norms of all ranks give no global norm at some step."""
    for name in ("value_norm", "clipped_norm"):
        for step, norm in zip(steps, values[name], strict=True):
            known = [
                held[rank].values[name][rows[rank][step]] if step in rows[rank] else None
                for rank in held
            ]
            if norm is None and None not in known:
                return "differs"
    return None


def _cells(
    step: int,
    held: Mapping[int, Series],
    rows: Mapping[int, Mapping[int, int]],
    made: tuple[ShardLayout, ShardLayout],
    shape: tuple[int, ...] | None,
) -> Iterator[tuple[str, _Number]]:
    """Yield one parameter's figures in one step; ``made`` is the layout of value and gradient."""
    value, gradient = made
    there = {rank: rows[rank][step] for rank in held if step in rows[rank]}

    def own(name: str) -> dict[int, _Number]:
        return {rank: held[rank].values[name][i] for rank, i in there.items()}

    norms = {name: (value if name in _OF_VALUE else gradient).norm(own(name)) for name in _NORMS}
    yield from norms.items()
    moved, size = norms["update_norm"], norms["value_norm"]
    if moved is not None:
        yield "update_ratio", moved / size if size else None
    else:  # an older file has no more than the ratio, and a shard's ratio tells nothing
        parts = max(map(len, value.copies), default=0)
        yield "update_ratio", value.norm(own("update_ratio")) if parts == 1 else None
    shares, counts = own("zeros"), own("nonfinite")
    holders = [rank for rank in gradient.ranks if shares.get(rank) is not None]
    elements = sum(gradient.elements.get(rank, 1) for rank in holders)
    zeros = sum((shares[rank] or 0.0) * gradient.elements.get(rank, 1) for rank in holders)
    yield "zeros", zeros / elements if elements else None
    known = [n for rank in gradient.ranks if (n := counts.get(rank)) is not None]
    yield "nonfinite", sum(known) if known else None
    yield from _of_update({name: own(name) for name in OF_UPDATE}, norms, value, shape).items()


def _of_update(
    own: Mapping[str, Mapping[int, _Number]],
    norms: Mapping[str, _Number],
    value: ShardLayout,
    shape: tuple[int, ...] | None,
) -> dict[str, _Number]:
    """Return the figures of an update. Except for norms, a shard's figures say nothing about the
    full tensor."""
    found = {
        name: (value.norm if name in _OF_VALUE else value.agreed)(values)
        for name, values in own.items()
    }
    moved, gradient = norms["update_norm"], norms["clipped_norm"]
    if moved is not None and found["update_rms"] is None and shape:
        found["update_rms"] = moved / math.sqrt(math.prod(shape))
    if moved is not None and found["effective_lr"] is None and gradient:
        found["effective_lr"] = moved / gradient
    return found


def with_spread(
    series: Mapping[tuple[int, str, int], Series],
    others: Sequence[Mapping[tuple[int, str, int], Series]],
) -> dict[tuple[int, str, int], Series]:
    """Return the calls of one rank, with the smallest and the largest value over all ranks in each
    step.

    Calls that this rank does not have, such as other stages of a pipeline, come from the next rank
    that has them.
    """
    found = {}
    every = dict(series)
    for other in others:
        for key, one in other.items():
            every.setdefault(key, one)
    for key, own in every.items():
        several = [own, *(other[key] for other in others if key in other)]
        rows = [{step: i for i, step in enumerate(one.steps)} for one in several]
        lowest: dict[str, tuple[_Number, ...]] = {}
        highest: dict[str, tuple[_Number, ...]] = {}
        for name in own.values:
            cells = [
                [
                    cell
                    for one, row in zip(several, rows, strict=True)
                    if step in row and (cell := one.values[name][row[step]]) is not None
                ]
                for step in own.steps
            ]
            lowest[name] = tuple(min(known, default=None) for known in cells)
            highest[name] = tuple(max(known, default=None) for known in cells)
        found[key] = replace(own, lowest=lowest, highest=highest)
    return found


def combined_sample(samples: Mapping[int, StepSample], layout: Layout) -> StepSample:
    """Return one model in one step: the parameters reduced over ranks, the calls of the lowest
    rank.

    Args:
        samples: the sample of each rank that sampled the model.
        layout: the layout of the same ranks.
    """
    first = samples[min(samples)]
    held: dict[str, dict[int, ParameterStats]] = {}
    for rank in sorted(samples):
        for one in samples[rank].report.parameters:
            held.setdefault(one.name, {})[rank] = one
    clipped = {rank: sample.clipped for rank, sample in samples.items()}
    parameters, norms = [], {}
    for name, own in held.items():
        gradient = layout.gradient((first.model, name), tuple(own))
        norms[name] = gradient.norm(
            {
                rank: clipped[rank].get(name, one.gradient.norm if one.gradient else None)
                for rank, one in own.items()
            }
        )
        parameters.append(
            _global_parameter((first.model, name), own, gradient, layout, norms[name])
        )
    there = [one.gradient.norm for one in parameters if one.gradient is not None]
    report = first.report
    totals = replace(
        report.totals,
        gradient_norm=root_of_squares(there),
        parameters=sum(math.prod(one.shape) for one in parameters),
        trainable=sum(math.prod(one.shape) for one in parameters if one.requires_grad),
    )
    changed = {
        one.name: norms[one.name]
        for one in parameters
        if one.gradient is not None and norms[one.name] != one.gradient.norm
    }
    report = replace(report, parameters=tuple(parameters), totals=totals)
    return replace(first, report=report, clipped=changed)


def _global_parameter(
    key: Key,
    own: Mapping[int, ParameterStats],
    gradient: ShardLayout,
    layout: Layout,
    clipped: _Number,
) -> ParameterStats:
    first = own[min(own)]
    value = layout.value(key, tuple(own))
    shape = layout.shape(key) or first.shape
    moved = value.norm({rank: one.update_norm for rank, one in own.items()})
    global_value = _global_stats(value, {rank: one.value for rank, one in own.items()}, shape)
    ratio = moved / global_value.norm if moved is not None and global_value.norm else None
    known = [one.moved for one in own.values() if one.moved is not None]
    of_update = {name: {r: getattr(one, name) for r, one in own.items()} for name in OF_UPDATE}
    norms = {"update_norm": moved, "clipped_norm": clipped}
    changes: dict[str, Any] = dict(_of_update(of_update, norms, value, shape))
    return replace(
        first,
        **changes,
        shape=shape,
        value=global_value,
        gradient=None
        if all(one.gradient is None for one in own.values())
        else _global_stats(gradient, {rank: one.gradient for rank, one in own.items()}, shape),
        update_norm=moved,
        update_ratio=ratio,
        moved=any(known) if known else None,
    )


def _global_stats(
    made: ShardLayout, own: Mapping[int, TensorStats | None], shape: tuple[int, ...]
) -> TensorStats:
    """Global statistics; without numbers if they cannot be reduced."""
    parts = [stats for rank in made.ranks if (stats := own.get(rank)) is not None]
    norm = made.norm({rank: None if stats is None else stats.norm for rank, stats in own.items()})
    dtype = next((stats.dtype for stats in own.values() if stats is not None), "float32")
    if norm is None or len(parts) < len(made.ranks):
        # The number of NaN and Inf elements is known even without a full measurement.
        nothing = TensorStats(shape, dtype, math.prod(shape))
        if not parts:
            return nothing
        counts = joined(parts, shape)
        return replace(nothing, nan=counts.nan, inf=counts.inf)
    return replace(joined(parts, shape), norm=norm)


#: Tolerance between the losses of processes with the same samples, as a share.
_ALIKE = 1e-6
#: A report has one model.
_MODEL = 1


def combined_report(reports: Mapping[int, Report]) -> Report:
    """Return a report with global parameters and norms, the mean of the losses, and the calls of
    the lowest rank.

    Args:
        reports: the report of each rank, with its ``parallel``; the runs must be complete.
    """
    runs = {rank: _parallel(report) for rank, report in reports.items()}
    layout = Layout(
        {rank: run.placements for rank, run in runs.items()},
        {rank: run.meshes for rank, run in runs.items()},
    )
    samples = {rank: StepSample(1, _MODEL, report) for rank, report in reports.items()}
    reduced = combined_sample(samples, layout).report
    every = list(reports.values())
    not_reduced = tuple(_not_reduced_names(reduced.parameters, every))
    first = runs[min(runs)]
    history = tuple(_step(records, layout) for records in _steps(reports))
    return replace(
        reduced,
        loss=_mean([report.loss for report in every]),
        loss_nonfinite=next((r.loss_nonfinite for r in every if r.loss_nonfinite), None),
        losses=tuple(
            replace(parts[0], value=_mean([part.value for part in parts]))
            for parts in zip(*(report.losses for report in every), strict=False)
        ),
        calls=tuple(_with_spread(reduced.calls, [report.calls for report in every])),
        history=history,
        parallel=replace(first, not_reduced=not_reduced),
        run=replace(reduced.run, notices=(*reduced.run.notices, *_notices(every, not_reduced))),
    )


def _parallel(report: Report) -> ParallelRun:
    assert report.parallel is not None
    return report.parallel


def _not_reduced_names(
    reduced: Sequence[ParameterStats], reports: Sequence[Report]
) -> Iterator[str]:
    """Yield the names of parameters with a norm on every rank, but without a global norm."""
    own: dict[str, list[ParameterStats]] = {}
    for report in reports:
        for one in report.parameters:
            own.setdefault(one.name, []).append(one)
    for one in reduced:
        gradients = [each.gradient for each in own[one.name]]
        if _lost(one.value, [each.value for each in own[one.name]]) or (
            one.gradient is not None and _lost(one.gradient, gradients)
        ):
            yield one.name


def _lost(reduced: TensorStats, own: Sequence[TensorStats | None]) -> bool:
    known = [stats.norm for stats in own if stats is not None]
    return reduced.norm is None and bool(known) and None not in known


def _notices(reports: Sequence[Report], not_reduced: Sequence[str]) -> Iterator[str]:
    """Return notices on the figures."""
    first = _parallel(reports[0])
    yield (
        f"calls: of rank {first.rank} of {first.processes}, with the smallest and the largest "
        "norm over all ranks; parameters and totals: reduced over ranks"
    )
    if not_reduced:
        yield f"no global norms: {few(not_reduced, '`')}: {_why(reports)}"
    losses = [report.loss for report in reports]
    if first.parts == 1 and None not in losses:
        low, high = min(filter(None, losses), default=0.0), max(filter(None, losses), default=0.0)
        if high - low > _ALIKE * max(abs(low), abs(high)):
            yield (
                f"loss: from {low:.6g} to {high:.6g} on ranks with the same samples: a layer "
                "returns only the rank's own shard (colwise without rowwise?)"
            )


def _why(reports: Sequence[Report]) -> str:
    """Return the reason why the shards of the ranks give no global norm."""
    missing = [p.name for p in reports[0].parameters if p.requires_grad and p.gradient is None]
    if _parallel(reports[0]).kind == "ddp" and missing:
        return (
            f"DistributedDataParallel did not average them, as it waited for {few(missing, '`')}, "
            "which got no gradient: set `parallel.ddp.find_unused_parameters=true`"
        )
    return "ranks differ where they should be equal, or hold partial sums"


def _with_spread(
    calls: Sequence[ModuleCall], of_ranks: Sequence[Sequence[ModuleCall]]
) -> Iterator[ModuleCall]:
    """Yield each tensor with the smallest and the largest norm over all ranks."""
    tensors: dict[tuple[object, ...], list[TensorRecord]] = {}
    for several in of_ranks:
        for call in several:
            for side, records in (("in", call.inputs), ("out", call.outputs)):
                for one in records:
                    tensors.setdefault((call.name, call.call, side, one.path), []).append(one)

    def spread(call: ModuleCall, side: str, one: TensorRecord) -> TensorRecord:
        every = tensors[call.name, call.call, side, one.path]
        return replace(
            one,
            norm_ranks=_range(each.activation.norm for each in every),
            gradient_ranks=_range(each.gradient.norm if each.gradient else None for each in every),
        )

    for call in calls:
        yield replace(
            call,
            inputs=tuple(spread(call, "in", one) for one in call.inputs),
            outputs=tuple(spread(call, "out", one) for one in call.outputs),
        )


def _range(norms: Iterable[float | None]) -> tuple[float, float] | None:
    known = [norm for norm in norms if norm is not None]
    return (min(known), max(known)) if known else None


def _steps(reports: Mapping[int, Report]) -> Iterator[dict[int, StepRecord]]:
    """Yield each step as the ranks recorded it."""
    for records in zip(*(report.history for report in reports.values()), strict=False):
        yield dict(zip(reports, records, strict=True))


def _step(records: Mapping[int, StepRecord], layout: Layout) -> StepRecord:
    of = {rank: {one.name: one for one in record.parameters} for rank, record in records.items()}
    names = dict.fromkeys(name for own in of.values() for name in own)
    parameters = []
    for name in names:
        held = {rank: own[name] for rank, own in of.items() if name in own}
        value = layout.value((_MODEL, name), tuple(held))
        gradient = layout.gradient((_MODEL, name), tuple(held))

        def norms(
            read: Callable[[StepParameter], float | None],
            held: Mapping[int, StepParameter] = held,
        ) -> dict[int, float | None]:
            return {rank: read(one) for rank, one in held.items()}

        size, moved = (
            value.norm(norms(lambda p: p.value_norm)),
            value.norm(norms(lambda p: p.update_norm)),
        )
        parameters.append(
            StepParameter(
                name,
                gradient.norm(norms(lambda p: p.gradient_norm)),
                moved / size if moved is not None and size else None,
                size,
                moved,
            )
        )
    every = list(records.values())
    known = [one.gradient_norm for one in parameters if one.gradient_norm is not None]
    arrived = {n for own in of.values() for n, one in own.items() if one.gradient_norm is not None}
    return replace(
        every[0],
        loss=_mean([record.loss for record in every]),
        loss_nonfinite=next((r.loss_nonfinite for r in every if r.loss_nonfinite), None),
        gradient_norm=root_of_squares(known) if len(known) == len(arrived) else None,
        parameters=tuple(parameters),
    )
