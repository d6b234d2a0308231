"""Compares two training runs: finds the first divergent step, layer and parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.comparison.reports import (
    ComparedModel,
    compare_models,
    update_error,
    worst_update,
)
from gradscope.comparison.saved_pair import Accuracy
from gradscope.errors import OptionError
from gradscope.records.diff import DiffReport, ParameterDiff
from gradscope.records.report import Finding
from gradscope.records.run import RunInfo
from gradscope.records.tensors import NormSeries, number_or_none
from gradscope.records.training import TrainingStep
from gradscope.rules import explained
from gradscope.runfile.reader import RunFile


def largest_difference(a: RunFile, b: RunFile, step: int, limit: float) -> str:
    """Return the largest difference in words: ``the gradient of `fc.weight` differs most: 0.5 in A,
    0.7 in B``; "" without one.

    Args:
        a: the reference.
        b: the run to compare with it.
        step: the step.
        limit: the relative error from which two norms differ.
    """
    theirs = b.norm_series()
    found: list[tuple[float, str, float, float]] = []
    for key, one in a.norm_series().items():
        ours, other = _at(one, step), _at(theirs.get(key, NormSeries()), step)
        if ours is None or other is None or ours == other:
            continue
        error = abs(other - ours) / (ours or other)
        if error > limit:
            found.append((error, key[1], ours, other))
    if not found:
        return ""
    error, name, ours, other = max(found)
    return f"the gradient of `{name}` differs most: {ours:.4g} in A, {other:.4g} in B"


def _at(norms: NormSeries, step: int) -> float | None:
    if step not in norms.steps:
        return None
    return number_or_none(norms.gradient[norms.steps.index(step)])


#: Tolerance between the ratio of the gradients and that of the process counts.
_NEAR = 0.01
_SIGNS = {
    "loss": "the loss",
    "gradient_norm": "the gradient norm",
    "clipped_norm": "the gradient norm after clipping",
    "loss_scale": "the loss scale",
}


@dataclass(frozen=True, slots=True)
class _Metric:
    """A step metric of one step in both runs; None if it is not a number, such as a loss of NaN."""

    step: int
    name: str
    a: float | str | None
    b: float | str | None

    @property
    def error(self) -> float | None:
        """Return |b − a| / |a|; None if it does not exist."""
        if self.a == self.b:
            return 0.0
        if not isinstance(self.a, float | int) or not isinstance(self.b, float | int) or not self.a:
            return None
        return abs(self.b - self.a) / abs(self.a)


def compare_runs(a: RunFile, b: RunFile, match: Sequence[str] = ()) -> DiffReport:
    """Find the first step where two runs diverge, in step metrics and in sampled layers.

    Args:
        a: the reference.
        b: the run to compare with it. Each model is combined over ranks. The tables show the
            first divergent model.
        match: ``A=B``, patterns of module names that differ in B.

    Raises:
        OptionError: they have no common step, or no common model.
        ConfigError: a file is damaged.
    """
    steps = _common(a, b)
    sampled = sorted({*a.sampled} & {*b.sampled} & {*steps})
    compared = compare_models(sampled, a, b, match)
    report = _report(a, b, steps, sampled, compared)
    processes = a.run.world_size, b.run.world_size
    found = tuple(_findings(a, b, report, processes, steps, compared))
    return replace(report, findings=found, status="findings" if found else "ok")


def _common(a: RunFile, b: RunFile) -> dict[int, tuple[TrainingStep, TrainingStep]]:
    ours, theirs = ({step.step: step for step in run.steps()} for run in (a, b))
    for run, recorded in ((a, ours), (b, theirs)):
        if not recorded:
            raise OptionError(
                f"`{run.source}` has no step", help=f"`gradscope show {run.source}` says why"
            )
    steps = {number: (step, theirs[number]) for number, step in ours.items() if number in theirs}
    if not steps:
        raise OptionError(
            f"`{a.source}` and `{b.source}` have no step in common",
            help=f"`gradscope show {a.source}` lists its steps",
        )
    return steps


def _report(
    a: RunFile,
    b: RunFile,
    steps: dict[int, tuple[TrainingStep, TrainingStep]],
    sampled: Sequence[int],
    compared: ComparedModel | None,
) -> DiffReport:
    notices = [
        f"{len(steps)} steps are recorded in both runs and compared, "
        f"{len(sampled)} of them by layer"
    ]
    runs = _info(a), _info(b)
    last = steps[max(steps)]
    if compared is None:
        notices.append("no step was sampled in both: give both runs the same `--every N`")
        half = Accuracy.of("float32").half
        report = DiffReport("ok", *runs, step=half, factor=1.0, measured="statistics")
    else:
        report, last = compared.report, steps[compared.step]
        notices.append(f"the tables are of {compared.where}")
        notices += [
            f"{name}: not compared: the other run has no such model" for name in compared.alone
        ]
        runs = (
            replace(runs[0], dtype=report.a.dtype, device=report.a.device),
            replace(runs[1], dtype=report.b.dtype, device=report.b.device),
        )
    return replace(
        report,
        a=runs[0],
        b=runs[1],
        notices=tuple(notices),
        losses=(last[0].loss, last[1].loss),
    )


def _info(run: RunFile) -> RunInfo:
    """Return the run's settings, with the script in place of the model."""
    made = run.run
    script = " ".join([made.script, *made.arguments])
    device = made.device or "cpu"
    return RunInfo(
        *(script, device, "float32", "train"),
        seed=0,
        steps=made.steps,
        loss="",
        file=str(run.path),
    )


def _findings(
    a: RunFile,
    b: RunFile,
    report: DiffReport,
    processes: tuple[int, int],
    steps: dict[int, tuple[TrainingStep, TrainingStep]],
    compared: ComparedModel | None,
) -> Iterator[Finding]:
    diverged = _first_metric(steps, report.step)
    if diverged is not None:
        of_parameters = largest_difference(a, b, diverged.step, report.step)
        yield _diverged(diverged, report.step, steps, of_parameters)
    yield from _off_by_ranks(processes, steps)
    if compared is not None:
        for finding in compared.report.findings:
            message = f"in {compared.where}, {finding.message}"
            yield replace(finding, message=message)
        worst = None if compared.report.findings else worst_update(compared.report)
        if worst is not None:
            yield _updated(worst, compared.report.step, compared.where)


def _updated(parameter: ParameterDiff, limit: float, where: str) -> Finding:
    a, b = parameter.update_ratios or (0.0, 0.0)
    return Finding(
        code="GD106",
        rule="runs-diverge",
        severity="error",
        name=parameter.name,
        message=f"in {where}, its update ratio is {a:.3e} in A and {b:.3e} in B, "
        "but its gradient is the same",
        advice="compare the optimizers: their settings and their state",
        value=update_error(parameter) if a else None,
        threshold=float(f"{limit:.1g}") if a else None,
        source="√ε of the dtype" if a else None,
        cause="optimizer",
    )


def _first_metric(
    steps: dict[int, tuple[TrainingStep, TrainingStep]], limit: float
) -> _Metric | None:
    for pair in steps.values():
        for metric in _metrics(*pair):
            if metric.error is None or metric.error > limit:
                return metric
    return None


def _metrics(a: TrainingStep, b: TrainingStep) -> Iterator[_Metric]:
    for one, other in zip(a.learning_rates, b.learning_rates, strict=False):
        yield _Metric(a.step, "a learning rate", one, other)
    yield _Metric(a.step, "the kind of NaN or Inf", a.nonfinite, b.nonfinite)
    for name, words in _SIGNS.items():
        both = getattr(a, name), getattr(b, name)
        if not (name.endswith("norm") and None in both):  # not finite (reported above), or not read
            yield _Metric(a.step, words, *both)


def _diverged(
    metric: _Metric,
    limit: float,
    steps: dict[int, tuple[TrainingStep, TrainingStep]],
    of_parameters: str,
) -> Finding:
    off = "" if metric.error is None else f" (relative error {metric.error:.1e})"
    before = [step for step in steps if step < metric.step]
    grown = ""
    if before:
        worst = max((one.error or 0.0 for one in _metrics(*steps[before[-1]])), default=0.0)
        grown = f"; in step {before[-1]} the relative error was {worst:.1e}"
    return Finding(
        code="GD106",
        rule="runs-diverge",
        severity="error",
        name="",
        message=(
            f"the runs diverge in step {metric.step}: {metric.name} is {_number(metric.a)} in A "
            f"and {_number(metric.b)} in B{off}{grown}"
        )
        + (of_parameters and f"; {of_parameters}"),
        advice=(
            "an error that grows over the steps is rounding; a sudden one has a cause: compare "
            "data, seeds and settings"
        ),
        value=metric.error,
        threshold=None if metric.error is None else float(f"{limit:.1g}"),
        source=None if metric.error is None else "√ε of the dtype",
        cause="step",
    )


def _off_by_ranks(
    processes: tuple[int, int], steps: dict[int, tuple[TrainingStep, TrainingStep]]
) -> Iterator[Finding]:
    """Yield a finding if the first gradients differ by exactly the ratio of process counts."""
    one, other = steps[min(steps)]
    a, b, factor = one.gradient_norm, other.gradient_norm, processes[1] / processes[0]
    if not a or not b or factor == 1:
        return
    larger = abs(b / a / factor - 1) < _NEAR
    if not larger and abs(b / a * factor - 1) >= _NEAR:
        return
    more, least = max(factor, 1 / factor), "larger" if b > a else "smaller"
    summed = (b > a) == (factor > 1)
    cause = "summed over ranks" if summed else "divided by their number twice"
    rule = explained("GD107")
    yield rule.finding(
        "",
        f"in step {one.step}, B's gradient is {least} by {more:.4g}, the ratio of the numbers of "
        f"processes ({processes[0]} in A, {processes[1]} in B): with more processes it is {cause}",
        value=b / a,
        threshold=factor if larger else 1 / factor,
        cause="sum" if summed else "twice",
    )


def _number(x: float | str | None) -> str:
    return "missing" if x is None else x if isinstance(x, str) else f"{x:.4g}"
