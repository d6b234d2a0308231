"""Combines the reports of several processes on one step, after all have run it.

No rank waits for another while the step runs. Each rank puts its record into the launcher's store,
also after a failure. Rank 0 reads all records, and stores the combined report for the others. A
failing rank reports first and leaves the group, so that no rank waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.api.failing import explained_failure, fail, is_users, problem
from gradscope.api.full_samples import Extras, diagnosed
from gradscope.api.opened import run_info, versions
from gradscope.capture.facts import unregistered
from gradscope.capture.hooks import select_layers
from gradscope.capture.names import named_modules, named_parameters
from gradscope.errors import ModelError, OptionError
from gradscope.loading.parallel import BRIEFLY, ParallelModel, Processes
from gradscope.loading.workload import Workload
from gradscope.records import json as record_json
from gradscope.records.modules import Unregistered
from gradscope.records.report import Report
from gradscope.records.run import DeviceMesh, ParallelRun, ParameterPlacement, Totals
from gradscope.rules import RuleSettings
from gradscope.runfile.combining import combined_report
from gradscope.running.observe import Observation, observe


def report_of_several(
    parallel: ParallelModel,
    observation: Observation,
    report: Report,
    judged: Callable[[Report], Report],
) -> Report:
    """Return the combined report, the same in each process.

    Args:
        parallel: the parallelism of the model.
        observation: this process's observation.
        report: this process's report, with all parameters.
        judged: called with the combined report, in rank 0 only.

    Raises:
        ModelError: this process or another one failed; ``.report`` has the records of this one.
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
    except KeyboardInterrupt as interrupt:  # ended while it waits, by the launcher or by a user
        observation.failure = interrupt
        fail(observation, replace(partial, status="failed"))


def _of_one_rank(own: Report, processes: Processes) -> Report:
    """Return the report of one process, not combined over ranks."""
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
    """Combine the reports of all ranks on rank 0; raise if one is missing or failed."""
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
    """Raise an error that names the failed process."""
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
    """On other ranks: wait for the report that rank 0 combines, and return it."""
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
        # When this process ends, the launcher ends the others: let them write their report first.
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


def report_of(
    workload: Workload,
    rules: RuleSettings,
    extras: Extras,
    *,
    file: str | None = None,
    only: Sequence[str] | None = None,
) -> Report:
    """Run a workload, and report its problems.

    Args:
        workload: the workload, with the patterns of the layers to record.
        rules: the rules to run.
        extras: records to add.
        file: the file that names the model.
        only: patterns of the layers whose findings count. None: the workload's layers.

    Raises:
        GradscopeError: as ``inspect``.
    """
    only = workload.layers if only is None else only
    if workload.parallel is not None and extras.reruns:
        raise OptionError(
            f"`{extras.reruns[0]}` replays the step, which `parallel` does not allow",
            help="run in one process: `parallel=null`",
        )
    for patterns in (
        only,
        extras.histogram,
        extras.gradcheck,
    ):  # a wrong pattern is reported before anything runs
        if patterns:
            select_layers(workload.model, patterns)
    observation = observe(
        workload, layers=workload.layers, chain=extras.chain, verify=extras.verify
    )
    try:
        report = _report(workload, observation)
    except KeyboardInterrupt as interrupt:  # keep the records so far
        observation.failure = interrupt
        report = _report(workload, observation)
    report = replace(report, run=replace(report.run, file=file))
    observation.recorder = None
    if workload.parallel is not None:
        shown_names = {p.name for p in report.parameters}

        def judged(full: Report) -> Report:
            found = diagnosed(workload, full, rules, extras, only=only)
            shown = tuple(p for p in found.parameters if p.name in shown_names)
            return replace(found, parameters=shown)

        every = replace(report, parameters=observation.all_parameters)
        return report_of_several(workload.parallel, observation, every, judged)
    if observation.failure is None or is_users(observation.failure):
        shown = report.parameters
        if extras.tasks and observation.failure is None:
            _require_several(report)
        full = replace(report, parameters=observation.all_parameters)
        found = diagnosed(
            workload,
            full,
            rules,
            extras,
            only=only,
            last=observation.number,
            first_nonfinite=observation.first_nonfinite,
        )
        report = replace(found, parameters=shown)
    if observation.failure is not None:
        fail(observation, report)
    return report


def _require_several(report: Report) -> None:
    if len(report.losses) < 2:
        raise OptionError(
            f"`tasks` compares several losses, and `{report.run.loss}` is a single one",
            help="return a mapping from the model or the `loss`: `{'name': loss, …}`",
        )


def _report(workload: Workload, observation: Observation) -> Report:
    took = observation.seconds.forward + observation.seconds.backward
    error = explained_failure(workload, observation, seconds=took)
    recorder = observation.recorder
    parameters = list(named_parameters(workload.model))
    return Report(
        status="ok" if error is None else "failed",
        versions=versions(),
        config=workload.config,
        run=run_info(
            workload,
            observation.notices,
            steps=workload.steps,
            optimizer=observation.optimizer,
            verified=observation.verified,
        ),
        loss=observation.loss,
        loss_nonfinite=observation.loss_nonfinite,
        losses=observation.losses,
        totals=Totals(
            parameters=sum(_numel(p) for p in parameters),
            trainable=sum(_numel(p) for p in parameters if p.requires_grad),
            gradient_norm=observation.gradient_norm,
            saved_bytes=recorder.total_saved if recorder else None,
            modules=len(named_modules(workload.model)),
            calls=recorder.count if recorder else 0,
            seconds=observation.seconds,
        ),
        calls=observation.calls,
        parameters=observation.parameters,
        history=tuple(observation.history),
        chains=tuple(recorder.chains) if recorder else (),
        error=error,
        modules=observation.modules,
        links=tuple(recorder.links) if recorder else (),
        attention=observation.transformer.attention,
        experts=observation.transformer.experts,
        residual=observation.transformer.residual,
        unregistered=_unregistered(workload, observation),
        interventions=observation.interventions,
    )


def _unregistered(workload: Workload, observation: Observation) -> tuple[Unregistered, ...]:
    """Return tensors that get a gradient, but are not parameters, after the model is restored."""
    if observation.recorder is None or observation.failure is not None:
        return ()
    if (
        workload.parallel is not None
    ):  # gathered full parameters are no longer parameters of the model
        return ()
    kept = unregistered(workload.model, observation.recorder.leaves)
    if kept and workload.make_optimizer is not None:
        optimizer = workload.make_optimizer(workload.model)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        others = [leaf for leaf in observation.recorder.leaves if id(leaf) not in held]
        return unregistered(workload.model, others)
    return kept


def _numel(parameter: nn.Parameter) -> int:
    return 0 if is_lazy(parameter) else parameter.numel()
