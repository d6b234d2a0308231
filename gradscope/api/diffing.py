"""Compares two runs call by call: the errors, and the first divergent layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gradscope.api._differences import (
    call_diffs,
    compared_outputs,
    findings,
    parameter_diffs,
    shapes,
)
from gradscope.api.failing import problem
from gradscope.api.opened import Options, opened, read, run_info, versions
from gradscope.comparison.alignment import Renaming, align_parameters
from gradscope.comparison.compared_files import compared_records, kind_of
from gradscope.config.loaded_config import LoadedConfig
from gradscope.errors import ModelError, OptionError
from gradscope.explain.errors.explain_exception import explain_error
from gradscope.loading.workload import Workload
from gradscope.records.diff import REFERENCES, DiffReport
from gradscope.records.report import Report
from gradscope.records.showing import Shown
from gradscope.records.training import RunHistory
from gradscope.running.compared_runs import Divergence, diverge, in_float64
from gradscope.running.divergent_calls import FACTOR, divergent_calls, is_compiled
from gradscope.running.handover import (
    SharedSamples,
    equal_parameters,
    hand_batch,
    hand_weights,
    shared_samples,
)
from gradscope.running.rerun import StepFailed

#: Keys of a config that select other weights, or another batch.
_WEIGHTS = ("weights", "checkpoint", "seed")
_BATCH = ("input", "target", "seed")


def diff(
    a: nn.Module | LoadedConfig | str | Path | Report | RunHistory,
    b: nn.Module | LoadedConfig | str | Path | Report | RunHistory,
    inputs: Any = None,
    *,
    target: Any = None,
    inputs_b: Any = None,
    target_b: Any = None,
    loss: str | Callable[..., Any] | None = None,
    call: str | None = None,
    mode: str | None = None,
    gradient: Any = None,
    autocast: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    reference: str | None = None,
    match: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> DiffReport:
    """Run two models on the same batch; report the errors and the first divergent layer.

    Args:
        a, b: live modules, each with its own weights and its state restored, or configs: YAML
            paths or specs. With two configs, B gets A's weights unless it names others. Or two
            reports or two runs, as returned by ``inspect`` and ``load``, or their files.
        inputs: the inputs for both models. This and all options without an entry here are as in
            ``gradscope.inspect``.
        inputs_b, target_b: inputs and target of B; None: those of A. They may have the samples
            in another order, or other samples too; the common ones are compared.
        overrides: ``key=value`` pairs on top of both configs.
        reference: "float64": also run A in float64, and report the error of A and of B from it.
        match: ``A=B``, patterns for module names that differ in B.

    Returns:
        The comparison.

    Raises:
        ModelError: a model, the loss or a backward raised.
        GradscopeError: a config, a name, a pattern or a file is wrong.
    """
    given = {name for name, value in locals().items() if value is not None and value != ()}
    saved = _saved(a, b, sorted(given - {"a", "b", "match"}), match)
    if saved is not None:
        return saved
    assert isinstance(a, nn.Module | LoadedConfig | str | Path)
    assert isinstance(b, nn.Module | LoadedConfig | str | Path)
    options = Options.of(locals())
    own = options
    if inputs_b is not None:
        own = replace(options, inputs=inputs_b, target=target if target_b is None else target_b)
    return _compared((read(a, options), read(b, own)), (options, own), match, reference)


def _saved(a: Any, b: Any, asked: Sequence[str], match: Sequence[str]) -> DiffReport | None:
    """Compare two records, or their files; return None for models.

    Raises:
        OptionError: an option in ``asked`` needs the models to run, or one of the two is a model.
    """
    records = [isinstance(one, Shown) for one in (a, b)]
    modules = [isinstance(one, nn.Module) for one in (a, b)]
    words = [str(one) for one in (a, b) if isinstance(one, str | Path)]
    kind = None if any(modules) else kind_of(words)
    if not any(records) and kind is None:
        return None
    if any(modules):
        raise OptionError(
            "a live model cannot be compared with a record",
            help="compare two models, or `gradscope.inspect(model, …)` with the report",
        )
    if asked:
        name = kind.name if kind is not None and not any(records) else "a record"
        raise OptionError(f"{name} cannot run again, which `{asked[0]}` needs", help="drop it")
    if any(records):
        return compared_records(a, b, match)
    return None if kind is None else kind.compared([str(a), str(b)], match)


def _compared(
    sources: tuple[nn.Module | LoadedConfig, nn.Module | LoadedConfig],
    options: tuple[Options, Options],
    match: Sequence[str],
    reference: str | None,
) -> DiffReport:
    if reference not in (None, *REFERENCES):
        known = ", ".join(f"`{one}`" for one in REFERENCES)
        raise OptionError(f"unknown reference `{reference}`", help=f"one of {known}")
    renamings = [Renaming(text) for text in match]
    with opened(sources[0], options[0], Report) as a, opened(sources[1], options[1], Report) as b:
        if "meta" in (a.device.type, b.device.type):
            raise OptionError("`meta` has only shapes: nothing to compare", help="use `cpu`")
        names = align_parameters(shapes(a), shapes(b), renamings)
        samples, notices = _same_batch(sources, options, (a, b))
        notices += _same_weights(sources, (a, b), names)
        files = [one.file if isinstance(one, LoadedConfig) else None for one in sources]
        outputs_only = is_compiled(a) != is_compiled(b)
        if outputs_only and samples is not None:
            raise OptionError(
                "one of the two is compiled: another batch needs its calls, which gradscope "
                "cannot observe",
                help="compare models that are not compiled",
            )
        wide = None if reference is None else in_float64(a)
        whose = {id(a): files[0] or "A", id(b): files[1] or "B", id(wide): "A in float64"}
        try:
            if outputs_only:
                report = compared_outputs(a, b, names, wide)
            else:
                found = diverge(a, b, names, renamings, samples, wide)
                report = _report(found, (a, b), names)
        except StepFailed as failed:
            raise _explained(failed, whose[id(failed.workload)]) from failed.__cause__
        return replace(
            report,
            a=replace(report.a, file=files[0]),
            b=replace(report.b, file=files[1]),
            notices=(*notices, *report.notices),
            reference=report.reference or reference,
        )


_Sources = tuple[nn.Module | LoadedConfig, nn.Module | LoadedConfig]


def _keys(sources: _Sources) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the two configs as mappings; empty for a live module."""
    one, other = (
        {} if isinstance(each, nn.Module) else each.config.model_dump(mode="json")
        for each in sources
    )
    return one, other


def _same_batch(
    sources: _Sources, options: tuple[Options, Options], workloads: tuple[Workload, Workload]
) -> tuple[SharedSamples | None, list[str]]:
    """Give B the batch of A, unless another was requested; else use the samples that both have."""
    one, other = _keys(sources)
    if options[0] is options[1] and all(one.get(key) == other.get(key) for key in _BATCH):
        hand_batch(*workloads)
        return None, ["batch: A's, for both"]
    samples = shared_samples(*workloads)
    if samples is None:
        return None, ["batch: A and B each use their own, as requested"]
    if samples.complete:
        return samples, ["batch: B has A's samples in another order; equal samples are compared"]
    ours, theirs = samples.sizes
    notice = (
        f"batch: {ours} samples in A and {theirs} in B; the {len(samples.a)} that both have are "
        "compared"
    )
    return samples, [notice]


def _same_weights(
    sources: _Sources, workloads: tuple[Workload, Workload], names: dict[str, str]
) -> list[str]:
    """Give B the weights of A, unless the config asks for others; returns notices."""
    (one, other), notices = _keys(sources), list[str]()
    equal, every = equal_parameters(*workloads, names)
    known = f"{equal} of {every} (without constants) are equal"
    if any(workload.live for workload in workloads):
        notices.append(f"weights: A and B each use their own; {known}")
    elif any(one[key] != other[key] for key in _WEIGHTS):
        notices.append(f"weights: A and B each use their own, as the configs require; {known}")
    elif one["model"] != other["model"] and equal:
        notices.append(f"weights: B's own; {known}")
    else:
        hand_weights(*workloads, names)
        notices.append("weights: A's, for both")
    if any(workload.steps > 1 for workload in workloads):
        notices.append("steps: only the first one is compared")
    return notices


def _explained(failed: StepFailed, model: str) -> ModelError:
    """Return the model's error, with a note on which of the two models raised it."""
    cause = failed.__cause__ or failed
    record = explain_error(cause, failed.phase, [], failed.workload.model)
    raised = problem(record)
    note = f"of the model {model}"
    return ModelError(replace(raised, notes=(note, *failed.notes, *raised.notes)))


def _report(
    found: Divergence, workloads: tuple[Workload, Workload], names: dict[str, str]
) -> DiffReport:
    calls = tuple(call_diffs(found))
    parameters = tuple(parameter_diffs(found, workloads, names))
    missing = (
        [name for name in shapes(workloads[0]) if name not in names.values()],
        [name for name in shapes(workloads[1]) if name not in names],
    )
    losses = [
        float(loss) if loss.numel() == 1 and not loss.is_complex() else None
        for loss in (found.tape.loss, found.free_running.loss)
    ]
    report = DiffReport(
        status="ok",
        a=run_info(workloads[0], (), steps=1),
        b=run_info(workloads[1], (), steps=1),
        versions=versions(),
        losses=(losses[0], losses[1]),
        notices=found.notices,
        step=found.step,
        factor=FACTOR,
        calls=calls,
        parameters=parameters,
        only_a=(*_unaligned(found, 0), *missing[0]),
        only_b=(*_unaligned(found, 1), *missing[1]),
    )
    judged = tuple(findings(report, *divergent_calls(found)))
    return replace(report, findings=judged, status="findings" if judged else "ok")


def _unaligned(found: Divergence, which: int) -> list[str]:
    """Return the modules of one side with calls that the other side lacks."""
    aligned = {*(found.aligned if which else found.aligned.values())}
    return list(
        dict.fromkeys(
            name or "the model" for name, n in found.calls[which] if (name, n) not in aligned
        )
    )
