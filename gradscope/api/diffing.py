"""Two runs compared call by call: how far they are apart, and where they part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gradscope.api._differences import call_diffs, parameter_diffs, shapes
from gradscope.api._partings import findings
from gradscope.api.failing import problem
from gradscope.api.opened import Options, opened, read
from gradscope.api.runs import run_info, versions
from gradscope.comparison.alignment import Renaming, align_parameters
from gradscope.config import LoadedConfig
from gradscope.errors import ModelError, OptionError
from gradscope.explain.errors.explain import explain_error
from gradscope.loading import Workload
from gradscope.records.diff import DiffReport
from gradscope.records.report import Report
from gradscope.running.departures import FACTOR, departures
from gradscope.running.divergence import Divergence, diverge
from gradscope.running.handover import equal_parameters, hand_batch, hand_weights
from gradscope.running.plain_calls import StepFailed

#: Keys of a config by which somebody asks for other weights, or for another batch.
_WEIGHTS = ("weights", "checkpoint", "seed")
_BATCH = ("input", "target", "seed")


def diff(
    a: nn.Module | str | Path,
    b: nn.Module | str | Path,
    inputs: Any = None,
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
    call: str | None = None,
    mode: str | None = None,
    gradient: Any = None,
    autocast: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    match: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> DiffReport:
    """Run two models on the same batch, and say how far they are apart and where they part.

    Args:
        a, b: live modules, each with its own weights and given back exactly as it was, or configs:
            YAML paths or specs. Of two configs, B gets A's weights unless it names others.
        inputs: of both, as for ``gradscope.inspect``; as are all options that are not named here.
        overrides: ``key=value`` pairs on top of both configs.
        match: ``A=B``, patterns of module names where B has others.

    Returns:
        The record that ``gradscope diff`` shows.

    Raises:
        ModelError: a model, the loss or a backward raised.
        GradscopeError: a config, a name, a pattern or a file is not right.
    """
    options = Options.of(locals())
    return _compared((read(a, options), read(b, options)), options, match)


def diff_configs(
    a: LoadedConfig,
    b: LoadedConfig,
    *,
    match: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> DiffReport:
    """The same of two configs that were read.

    Raises:
        GradscopeError: as ``diff``.
    """
    return _compared((a, b), Options(allow=allow), match)


def _compared(
    sources: tuple[nn.Module | LoadedConfig, nn.Module | LoadedConfig],
    options: Options,
    match: Sequence[str],
) -> DiffReport:
    renamings = [Renaming(text) for text in match]
    with opened(sources[0], options, Report) as a, opened(sources[1], options, Report) as b:
        _refuse_what_shows_nothing(a, b)
        names = align_parameters(shapes(a), shapes(b), renamings)
        notices = _handed_over(sources, (a, b), names)
        files = [one.file if isinstance(one, LoadedConfig) else None for one in sources]
        try:
            found = diverge(a, b, names, renamings)
        except StepFailed as failed:
            which = int(failed.workload is b)
            raise _explained(failed, files[which] or f"{'AB'[which]}") from failed.__cause__
        report = _report(found, (a, b), names)
        return replace(
            report,
            a=replace(report.a, file=files[0]),
            b=replace(report.b, file=files[1]),
            notices=(*notices, *found.notices),
        )


def _refuse_what_shows_nothing(*workloads: Workload) -> None:
    """Refuse to call equal what was not looked at.

    Raises:
        OptionError: there are no values, or one of the two is compiled.
    """
    if any(workload.device.type == "meta" for workload in workloads):
        raise OptionError("`meta` has shapes alone: there is nothing to compare", help="use `cpu`")
    compiled = [
        any(said.startswith("torch.compile") for said in run_info(workload, (), steps=1).notices)
        for workload in workloads
    ]
    if compiled[0] != compiled[1]:
        raise OptionError(
            f"{'AB'[compiled[1]]} is compiled, and would run as it was written",
            help="what the compiler makes of a model cannot be compared with it here",
        )


def _handed_over(
    sources: tuple[nn.Module | LoadedConfig, nn.Module | LoadedConfig],
    workloads: tuple[Workload, Workload],
    names: dict[str, str],
) -> list[str]:
    """Give B the weights and the batch of A where nobody asked for others; what is to be said."""
    one, other = (
        {} if isinstance(each, nn.Module) else each.config.model_dump(mode="json")
        for each in sources
    )
    said = []
    if all(one.get(key) == other.get(key) for key in _BATCH):
        hand_batch(*workloads)
        said.append("batch: A's, for both")
    else:
        said.append("batch: each its own, for the configs ask for others")
    equal, every = equal_parameters(*workloads, names)
    known = f"{equal} of {every} that are no constants are equal"
    if any(workload.live for workload in workloads):
        said.append(f"weights: each its own; {known}")
    elif any(one[key] != other[key] for key in _WEIGHTS):
        said.append(f"weights: each its own, for the configs ask for others; {known}")
    elif one["model"] != other["model"] and equal:
        said.append(f"weights: B's own; {known}")
    else:
        hand_weights(*workloads, names)
        said.append("weights: A's, for both")
    if any(workload.steps > 1 for workload in workloads):
        said.append("steps: of several, the first is compared")
    return said


def _explained(failed: StepFailed, model: str) -> ModelError:
    """What the model raised, and which of the two it was."""
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
        for loss in (found.tape.loss, found.free.loss)
    ]
    report = DiffReport(
        status="ok",
        a=run_info(workloads[0], (), steps=1),
        b=run_info(workloads[1], (), steps=1),
        versions=versions(),
        losses=(losses[0], losses[1]),
        step=found.step,
        factor=FACTOR,
        calls=calls,
        parameters=parameters,
        only_a=(*_unaligned(found, 0), *missing[0]),
        only_b=(*_unaligned(found, 1), *missing[1]),
    )
    judged = tuple(findings(report, *departures(found)))
    return replace(report, findings=judged, status="findings" if judged else "ok")


def _unaligned(found: Divergence, which: int) -> list[str]:
    """The names of modules of one side that have calls which the other has not."""
    aligned = {*(found.aligned if which else found.aligned.values())}
    return list(
        dict.fromkeys(
            name or "the model" for name, n in found.calls[which] if (name, n) not in aligned
        )
    )
