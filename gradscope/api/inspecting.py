"""The entries that make a report: ``inspect`` for its tables, ``check`` for its findings only.

The reports of several processes on one step are combined after all have run it. No rank waits for
another while the step runs. Each rank puts its record into the launcher's store, also after a
failure. Rank 0 reads all records, and stores the combined report for the others. A failing rank
reports first and leaves the group, so that no rank waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.api.failing import explained_failure, fail, is_users, problem
from gradscope.api.full_samples import Extras, diagnosed
from gradscope.api.opened import Options, opened, read, run_info, versions, without
from gradscope.capture.facts import unregistered
from gradscope.capture.hooks import select_layers
from gradscope.capture.names import named_modules, named_parameters
from gradscope.config.loaded_config import LoadedConfig
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
    # A wrong pattern is reported before anything runs.
    for patterns in (only, extras.histogram, extras.gradcheck):
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
        if extras.tasks and observation.failure is None and len(report.losses) < 2:
            raise OptionError(
                f"`tasks` compares several losses, and `{report.run.loss}` is a single one",
                help="return a mapping from the model or the `loss`: `{'name': loss, …}`",
            )
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
    # With several processes, gathered full parameters are no longer parameters of the model.
    if observation.recorder is None or observation.failure is not None or workload.parallel:
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


def inspect(
    model: nn.Module | LoadedConfig | str | Path,
    inputs: Any = None,
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
    call: str | None = None,
    layers: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    mode: str | None = None,
    optimizer: Mapping[str, Any] | Callable[..., Any] | None = None,
    steps: int | None = None,
    gradient: Any = None,
    repeats: int | None = None,
    retain_graph: bool | None = None,
    interventions: Sequence[Mapping[str, Any]] | None = None,
    accumulate: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    chain: Sequence[str] = (),
    verify: bool = False,
    tasks: bool = False,
    per_sample: bool = False,
    costs: bool = False,
    histogram: Sequence[str] = (),
    gradcheck: Sequence[str] = (),
    sketch: bool = False,
    select: Sequence[str] | str = (),
    ignore: Sequence[str] | str = (),
    preset: str | None = None,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    allow: Sequence[str] = (),
) -> Report:
    """Run forward and backward once; record activations, gradients and findings.

    Args:
        model: a live module, whose state is restored, or a config: a YAML path or a
            spec such as ``torchvision:resnet18``.
        inputs: a tensor, a tuple or list of positional arguments, or a mapping of keyword
            arguments. None: as in the config, or inferred.
        target: the target of the loss; None: as in the config, or random classes.
        loss: a built-in's name, or a callable of (output, target) or of (output).
        call: the method that a step calls instead of forward, such as "training_step".
        layers: module-name patterns that select ``calls`` and ``parameters``.
        exclude: patterns removed from ``layers``.
        mode: "train" or "eval"; None keeps a live module's own modes.
        optimizer: a ``_target_`` mapping, or a callable that takes the parameters.
        steps: optimizer steps; the last one is recorded.
        gradient: the external vector for a loss that is not a scalar.
        repeats: backwards through one graph; gradients accumulate.
        retain_graph: as in ``Tensor.backward``.
        interventions: changes of tensors during the step, as in a config:
            ``{"layers": "conv1", "at": "grad_output", "do": "clip_norm", "value": 1.0}``.
        accumulate: the number of micro-batches; the report says whether their gradients add up to
            the batch's.
        device, dtype: the device and dtype of a config's model; a live module stays.
        autocast: "bfloat16" or "float16".
        seed: set before the inputs are made, and before each forward.
        overrides: ``key=value`` pairs on top of a config.
        chain: layers to record with their autograd chain back to the leaves.
        verify: also run two plain steps, and check whether gradients are bit-identical.
        tasks: also compute the gradients of each loss separately, if there are several.
        per_sample: also split the gradient by sample: the loss, the norm and the share of
            each, and the gradient's noise scale.
        costs: also measure the seconds and floating-point operations of each call.
        histogram: layers with histograms of outputs, parameters and gradients.
        gradcheck: layers to compare with finite differences, in float64.
        sketch: also keep a random projection of every tensor, to compare saved reports.
        select, ignore: rules to run or to leave out, by code, prefix of codes, or name.
        preset: thresholds of another tool: "sagemaker", "deepchecker" or "autotrainer".
        thresholds: thresholds by rule and name, as in ``{"GS201": {"share": 0.3}}``.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        The report.

    Raises:
        ModelError: the model, the loss or the optimizer raised; ``.report`` has the records so far,
            ``__cause__`` is the exception.
        GradscopeError: the config, a name, a pattern or a file is wrong.
    """
    extras = Extras.of(locals())
    patterns = without(layers, exclude)
    options = Options.of(locals(), layers=None if patterns == ("**",) else patterns)
    source = read(model, options)
    rules = rule_settings(source, thresholds, select=select, ignore=ignore, preset=preset)
    with opened(source, options, Report, parallel=True) as workload:
        file = source.file if isinstance(source, LoadedConfig) else None
        return report_of(workload, rules, extras, file=file)


def rule_settings(
    source: nn.Module | LoadedConfig,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    **options: Any,
) -> RuleSettings:
    """Return the config's ``rules`` (none for a live module), overridden by options and thresholds.

    Raises:
        GradscopeError: a rule or a threshold does not exist.
    """
    own = {"thresholds": {code: dict(limits) for code, limits in (thresholds or {}).items()}}
    if isinstance(source, nn.Module):
        return RuleSettings.of(own, **options)
    in_config = source.config.model_dump(mode="json")["rules"]
    settings = RuleSettings.of(in_config, source.place, **options)
    merged = {code: dict(limits) for code, limits in settings.thresholds.items()}
    for code, limits in RuleSettings.of(own).thresholds.items():
        merged[code] = merged.get(code, {}) | dict(limits)
    return replace(settings, thresholds=merged)


def check(
    model: nn.Module | LoadedConfig | str | Path,
    inputs: Any = None,
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
    call: str | None = None,
    select: Sequence[str] | str = (),
    ignore: Sequence[str] | str = (),
    preset: str | None = None,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    layers: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    precision: bool = False,
    mode: str | None = None,
    optimizer: Mapping[str, Any] | Callable[..., Any] | None = None,
    steps: int | None = None,
    gradient: Any = None,
    repeats: int | None = None,
    retain_graph: bool | None = None,
    device: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> Report:
    """Run a model, and report its problems: the ``findings``.

    All layers are checked, also those that the config's ``layers`` leaves out of the tables.

    Args:
        model: a live module, whose state is restored, or a config: a YAML path or a
            spec such as ``torchvision:resnet18``.
        inputs: as for ``gradscope.inspect``, as are all options that are not named here.
        target: the target of the loss.
        loss: a built-in's name, or a callable of (output, target) or of (output).
        call: the method that a step calls instead of forward, such as "training_step".
        select, ignore: rules to run or to leave out, by code, prefix of codes, or name.
        preset: thresholds of another tool: "sagemaker", "deepchecker" or "autotrainer".
        thresholds: thresholds by rule and name, as in ``{"GS201": {"share": 0.3}}``.
        layers: module-name patterns; findings of other layers are left out.
        exclude: patterns removed from ``layers``.
        precision: also forecast the values lost in narrower dtypes: the report's ``precision``.

    Returns:
        The report; its ``status`` is "findings" if there are any, else "ok".

    Raises:
        ModelError: the model, the loss or the optimizer raised; ``.report`` has the findings so
            far, with the status "failed".
        GradscopeError: the config, a name, a pattern or a file is wrong.
    """
    options = Options.of(locals())
    source = read(model, options)
    rules = rule_settings(source, thresholds, select=select, ignore=ignore, preset=preset)
    with opened(source, options, Report) as workload:
        workload.layers = ("**",)
        file = source.file if isinstance(source, LoadedConfig) else None
        extras = Extras(precision=precision)
        return report_of(workload, rules, extras, file=file, only=without(layers, exclude))
