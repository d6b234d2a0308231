"""Combines the reports of several processes that ran one step together into one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gradscope.errors import few
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Report
from gradscope.records.run import ParallelRun, StepParameter, StepRecord
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.records.training import StepSample
from gradscope.runfile.combining import combined_sample, root_of_squares
from gradscope.runfile.shard_layout import Layout

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


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


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
    """Notices on the figures."""
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
