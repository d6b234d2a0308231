"""Gathers the reports of several processes on one step, when all have run it.

Nothing is asked of the others while the step runs. Each leaves its record in the launcher's store,
complete or of a run that failed; the first process reads them all, and leaves the reduced report
for the others. Whoever fails says so first and leaves the group, so that nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from gradscope.api.failing import fail, problem
from gradscope.errors import ModelError
from gradscope.loading.parallel import ParallelModel
from gradscope.loading.processes import BRIEFLY, Processes
from gradscope.records import json as record_json
from gradscope.records.parallel import DeviceMesh, ParallelRun, ParameterPlacement
from gradscope.records.report import Report
from gradscope.runfile.one_step import combined_report
from gradscope.running.observe import Observation


def report_of_several(
    parallel: ParallelModel,
    observation: Observation,
    report: Report,
    judged: Callable[[Report], Report],
) -> Report:
    """The reduced report, the same in each process.

    Args:
        parallel: how the model is spread.
        observation: of this process.
        report: of it too, with all parameters.
        judged: called with the reduced report; in one process only.

    Raises:
        ModelError: this process failed, or another; ``.report`` has what this one recorded.
        GradscopeError: as ``inspect``.
    """
    processes = parallel.processes
    own = replace(report, parallel=_parallel_run(parallel, observation))
    if report.error is not None:
        where = f"in rank {processes.rank} of {processes.count}"
        error = replace(report.error, details=(*report.error.details, where))
        own = replace(own, error=error)
    partial = _of_one_rank(own, processes)
    try:
        processes.leave_report(record_json.dumps(own))
        return _gathered(processes, observation, own, partial, judged)
    except KeyboardInterrupt as interrupt:  # while it waits: by the launcher, or by a user
        observation.failure = interrupt
        fail(observation, replace(partial, status="failed"))


def _of_one_rank(own: Report, processes: Processes) -> Report:
    """The report of one process, without a reduction over ranks."""
    notice = (
        f"rank {processes.rank} of {processes.count} only: all figures are of its samples and its "
        "shards of the parameters"
    )
    return replace(own, run=replace(own.run, notices=(*own.run.notices, notice)))


def _gathered(
    processes: Processes,
    observation: Observation,
    own: Report,
    partial: Report,
    judged: Callable[[Report], Report],
) -> Report:
    failure, cause = observation.failure, None
    if failure is not None:
        if processes.is_from_others(failure):
            cause = processes.first_failed()
        else:
            processes.fail()
        processes.leave_group()
    if processes.rank:
        return _followed(processes, observation, partial, cause)
    reduced = ""
    try:
        found = judged(_put_together(processes, observation, own, partial, cause))
        reduced = record_json.dumps(found)
        return found
    finally:
        processes.leave_reduced(reduced)


def _put_together(
    processes: Processes,
    observation: Observation,
    own: Report,
    partial: Report,
    cause: int | None,
) -> Report:
    """What rank 0 makes of the records of all, where all are complete."""
    if cause is not None:
        _blame(processes, cause, observation, partial)
    if observation.failure is not None:
        fail(observation, partial)
    reports = {0: own}
    for rank in range(1, processes.count):
        text = processes.report_of(rank)
        if text is None:
            raise _lost(rank, partial)
        reports[rank] = record_json.loads(text, Report, file=f"rank {rank}")
        if reports[rank].status == "failed":
            _blame(processes, processes.first_failed() or rank, observation, partial)
    return combined_report(reports)


def _blame(processes: Processes, rank: int, observation: Observation, partial: Report) -> NoReturn:
    """Raise what stopped another process, and so this one."""
    observation.failure = None
    text = processes.report_of(rank, BRIEFLY)
    if text is None:
        raise _lost(rank, partial)
    error = record_json.loads(text, Report, file=f"rank {rank}").error
    raise ModelError(problem(error), report=replace(partial, status="failed", error=error))


def _lost(rank: int, partial: Report) -> ModelError:
    return ModelError(
        f"rank {rank} sent no report",
        help="read its output and the launcher's message",
        report=replace(partial, status="failed"),
    )


def _followed(
    processes: Processes, observation: Observation, partial: Report, cause: int | None
) -> Report:
    """What the other ranks do: they wait for what rank 0 makes of it."""
    failure = observation.failure
    if failure is None:
        reduced = processes.reduced()
        if reduced:
            return record_json.loads(reduced, Report, file="rank 0")
        raise ModelError("there is no reduced report: rank 0 prints the reason", report=partial)
    if cause is not None:
        observation.failure = None
        message = f"rank {processes.rank} was stopped because rank {cause} failed"
        raise ModelError(message, report=partial) from failure
    if not isinstance(failure, KeyboardInterrupt):
        # The launcher ends the others when this process has ended: let them write their report.
        processes.reduced(BRIEFLY)
    return fail(observation, partial)


def _parallel_run(parallel: ParallelModel, observation: Observation) -> ParallelRun:
    return ParallelRun(
        kind=parallel.kind,
        processes=parallel.processes.count,
        axes=parallel.axes,
        parts=parallel.parts,
        rank=parallel.processes.rank,
        meshes=tuple(one for one in observation.placed if isinstance(one, DeviceMesh)),
        placements=tuple(one for one in observation.placed if isinstance(one, ParameterPlacement)),
    )
