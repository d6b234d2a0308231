"""Two training runs → a comparison: the first step in which they part, and the layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.comparison.gaps import Accuracy
from gradscope.comparison.reports import compare_reports
from gradscope.errors import OptionError
from gradscope.records.diff import DiffReport
from gradscope.records.report import Finding
from gradscope.records.run import RunInfo
from gradscope.records.training import TrainingStep
from gradscope.runfile.reader import RunFile

_SIGNS = {
    "loss": "the loss",
    "gradient_norm": "the gradient's norm",
    "clipped_norm": "the gradient's norm as the optimizer got it",
    "loss_scale": "the loss scale",
}


@dataclass(frozen=True, slots=True)
class _Sign:
    """A vital sign of one step in both runs; None is no number, as where a loss is not finite."""

    step: int
    name: str
    a: float | str | None
    b: float | str | None

    @property
    def error(self) -> float | None:
        """|b − a| / |a|; None where there is no such number."""
        if self.a == self.b:
            return 0.0
        if not isinstance(self.a, float | int) or not isinstance(self.b, float | int) or not self.a:
            return None
        return abs(self.b - self.a) / abs(self.a)


def compare_runs(a: RunFile, b: RunFile, match: Sequence[str] = ()) -> DiffReport:
    """Where two runs part: by the vital signs of their steps, and by the layers of those looked at.

    Args:
        a: what is compared with.
        b: what is held against it; of either the lowest rank counts, and its first model.
        match: ``A=B``, patterns of module names where B has others.

    Raises:
        OptionError: they have no step in common, or their models have nothing in common.
        ConfigError: a file is damaged.
    """
    steps = _common(a, b)
    sampled = sorted({*a.sampled} & {*b.sampled} & {*steps})
    compared: tuple[int, DiffReport] | None = None
    for step in sampled:
        compared = step, _compared_at(step, a, b, match)
        if compared[1].findings:
            break
    report = _report(a, b, steps, sampled, compared)
    found = tuple(_findings(report, steps, compared))
    return replace(report, findings=found, status="findings" if found else "ok")


def _common(a: RunFile, b: RunFile) -> dict[int, tuple[TrainingStep, TrainingStep]]:
    theirs = {step.step: step for step in b.steps()}
    steps = {step.step: (step, theirs[step.step]) for step in a.steps() if step.step in theirs}
    if not steps:
        raise OptionError(
            f"`{a.path}` and `{b.path}` have no step in common",
            help="`gradscope show RUN` says which steps a run has",
        )
    return steps


def _compared_at(step: int, a: RunFile, b: RunFile, match: Sequence[str]) -> DiffReport:
    reports = [replace(run.sample(step)[0].report, status="ok") for run in (a, b)]
    names = (str(a.path), str(b.path))
    return compare_reports(reports[0], reports[1], match, files=names)


def _report(
    a: RunFile,
    b: RunFile,
    steps: dict[int, tuple[TrainingStep, TrainingStep]],
    sampled: Sequence[int],
    compared: tuple[int, DiffReport] | None,
) -> DiffReport:
    notices = [f"steps: {len(steps)} of both are compared, {len(sampled)} of them layer by layer"]
    runs = _info(a), _info(b)
    last = steps[max(steps)]
    if compared is None:
        notices.append("no step was looked at in both: give both runs the same `--every N`")
        half = Accuracy.of("float32").half
        report = DiffReport("ok", *runs, step=half, factor=1.0, measured="statistics")
    else:
        step, report = compared
        last = steps[step]
        notices.append(f"the tables are of step {step}")
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
    """The script in the place of the model."""
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
    report: DiffReport,
    steps: dict[int, tuple[TrainingStep, TrainingStep]],
    compared: tuple[int, DiffReport] | None,
) -> Iterator[Finding]:
    parted = _first_sign(steps, report.step)
    if parted is not None:
        yield _parted(parted, report.step, steps)
    if compared is not None:
        for finding in compared[1].findings:
            message = f"in step {compared[0]}, {finding.message}"
            yield replace(finding, message=message)


def _first_sign(steps: dict[int, tuple[TrainingStep, TrainingStep]], limit: float) -> _Sign | None:
    for pair in steps.values():
        for sign in _signs(*pair):
            if sign.error is None or sign.error > limit:
                return sign
    return None


def _signs(a: TrainingStep, b: TrainingStep) -> Iterator[_Sign]:
    for one, other in zip(a.learning_rates, b.learning_rates, strict=False):
        yield _Sign(a.step, "a learning rate", one, other)
    yield _Sign(a.step, "what is not finite", a.nonfinite, b.nonfinite)
    for name, words in _SIGNS.items():
        yield _Sign(a.step, words, getattr(a, name), getattr(b, name))


def _parted(
    sign: _Sign, limit: float, steps: dict[int, tuple[TrainingStep, TrainingStep]]
) -> Finding:
    off = "" if sign.error is None else f", off by {sign.error:.1e}"
    before = [step for step in steps if step < sign.step]
    grown = ""
    if before:
        worst = max((one.error or 0.0 for one in _signs(*steps[before[-1]])), default=0.0)
        grown = f"; in step {before[-1]} they were {worst:.1e} apart"
    return Finding(
        code="GD106",
        rule="runs-part",
        severity="error",
        name="",
        message=f"the runs part in step {sign.step}: {sign.name} is {_number(sign.a)} in A and "
        f"{_number(sign.b)} in B{off}{grown}",
        advice="an error that grows from step to step is rounding; one that is there at once has a "
        "cause: compare data, seeds and settings",
        value=sign.error,
        threshold=None if sign.error is None else float(f"{limit:.1g}"),
        source=None if sign.error is None else "half of the digits",
        cause="step",
    )


def _number(x: float | str | None) -> str:
    return "not there" if x is None else x if isinstance(x, str) else f"{x:.4g}"
