"""Runs a workload, and makes its report with findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.api.failing import explained_failure, fail, is_users
from gradscope.api.full_samples import Extras, diagnosed
from gradscope.api.gathering import report_of_several
from gradscope.api.opened import run_info, versions
from gradscope.capture.facts import unregistered
from gradscope.capture.hooks import select_layers
from gradscope.capture.names import named_modules, named_parameters
from gradscope.errors import OptionError
from gradscope.loading import Workload
from gradscope.records.modules import Unregistered
from gradscope.records.report import Report
from gradscope.records.run import Totals
from gradscope.rules import RuleSettings
from gradscope.running.observe import Observation, observe


def report_of(
    workload: Workload,
    rules: RuleSettings,
    extras: Extras,
    *,
    file: str | None = None,
    only: Sequence[str] | None = None,
) -> Report:
    """Run a workload, and report what is wrong.

    Args:
        workload: what runs, with the patterns of the layers to record.
        rules: which rules look.
        extras: what else is recorded.
        file: what names the model.
        only: layer patterns; findings of others are left out. None: the workload's layers.

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
    except KeyboardInterrupt as interrupt:  # what was recorded is not lost
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
        unregistered=_unregistered(workload, observation),
        interventions=observation.interventions,
    )


def _unregistered(workload: Workload, observation: Observation) -> tuple[Unregistered, ...]:
    """What gets a gradient and is no parameter, once the model is as it was before the run."""
    if observation.recorder is None or observation.failure is not None:
        return ()
    if (
        workload.parallel is not None
    ):  # full parameters that were gathered are no parameters any more
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
