"""Optional parts of a report, made on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from gradscope import progress
from gradscope.capture.graph import edge_of, walk
from gradscope.capture.hooks import select_layers
from gradscope.capture.names import named_parameters
from gradscope.capture.nodes import located, stacks_recorded
from gradscope.errors import Interrupted, first_line, interruption
from gradscope.explain.precision import forecast
from gradscope.explain.shared.frames import locate
from gradscope.explain.units import unit_activity
from gradscope.loading.workload import Workload
from gradscope.records.report import Finding, Report
from gradscope.rules import RuleSettings, diagnose, wanted
from gradscope.running import costs
from gradscope.running.accumulation import accumulation
from gradscope.running.gradcheck import gradient_checks
from gradscope.running.gradients import task_gradients
from gradscope.running.histograms import histograms
from gradscope.running.rerun import rerun
from gradscope.running.sketching import sketches
from gradscope.running.step import Step, as_found, repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Optional parts of a report; ``gradscope.inspect`` and ``gradscope.check`` describe them.

    If a full sample computes a part, the full sample has the name of its field.
    """

    chain: Sequence[str] = ()
    verify: bool = False
    tasks: bool = False
    per_sample: bool = False
    costs: bool = False
    histogram: Sequence[str] = ()
    gradcheck: Sequence[str] = ()
    sketch: bool = False
    precision: bool = False

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> Extras:
        """Select the extras among an entry's keywords."""
        return cls(**{f.name: keywords[f.name] for f in fields(cls) if f.name in keywords})

    @property
    def reruns(self) -> list[str]:
        """Return the names of the set extras that need more runs of the step."""
        return [f.name for f in fields(self) if f.name != "chain" and getattr(self, f.name)]

    @property
    def set_names(self) -> set[str]:
        """Return the names of the set extras."""
        return {f.name for f in fields(self) if getattr(self, f.name)}


def diagnosed(
    workload: Workload,
    report: Report,
    rules: RuleSettings,
    extras: Extras,
    *,
    only: Sequence[str] = ("**",),
    last: int = 0,
    first_nonfinite: int | None = None,
) -> Report:
    """Return the report with its findings and the results of the full samples.

    Args:
        workload: the workload of the run, with its model restored.
        report: the report of the first pass, complete or not.
        rules: the rules to run, and their thresholds.
        extras: records that are always added.
        only: patterns of the layers whose findings count.
        last: the number of the last step that began.
        first_nonfinite: the number of the first of several steps whose loss or gradients had a NaN
            or Inf; None without one.

    Raises:
        Interrupted: Ctrl-C in a full sample; ``.report`` has the findings without it.
    """
    run = _Run(workload, last, first_nonfinite, extras)
    set_names = extras.set_names
    if workload.accumulate > 1 and workload.device.type != "meta":
        set_names |= {"accumulation"}
    asked = {*wanted(report, rules), *set_names}
    stopped: KeyboardInterrupt | None = None
    notices = list[str]()
    if workload.parallel is not None:
        notices += _untaken(asked)
    for one in _FULL_SAMPLES if workload.parallel is None else ():
        too_early = one.after_a_full_step and report.error is not None
        if not asked & one.names or stopped is not None or too_early:
            continue
        try:
            with progress.within(f"full sample: {one.words}"):
                report = replace(report, **one.take(run, report, asked & one.names))
            # A gradient with a known cause needs no full sample.
            asked = {*wanted(report, rules), *set_names}
        except KeyboardInterrupt as error:
            stopped = error
        except Exception as error:
            # The first pass is still valid, and so are all rules that need only the first pass.
            notices.append(f"{one.words}: the full sample failed: {first_line(error)}")
    run_info = replace(report.run, notices=(*report.run.notices, *notices))
    report = replace(report, run=run_info)
    findings = _of_layers(workload.model, only, diagnose(report, rules))
    status = "findings" if findings and report.status == "ok" else report.status
    report = replace(report, findings=findings, status=status)
    if stopped is not None:
        reason = f"{interruption(stopped)} during the full sample"
        raise Interrupted(reason, "the findings so far are shown", report=report)
    return report


def _untaken(asked: set[str]) -> list[str]:
    """Return a notice on full samples that several processes cannot take."""
    words = [one.words for one in _FULL_SAMPLES if asked & one.names]
    if not words:
        return []
    return [
        f"no full sample with several processes: {'; '.join(words)}. Run in one process: "
        "`parallel=null`"
    ]


def _of_layers(
    model: nn.Module, patterns: Sequence[str], findings: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """Return the findings of selected modules, of their parameters, and of modules around.

    A finding on several layers has the name of the module around them.
    """
    if tuple(patterns) == ("**",):
        return findings
    names: set[str] = set()
    for module, named in select_layers(model, patterns).items():
        own = [name for name, _ in module.named_parameters(recurse=False)]
        for name in (named.name, *named.aliases):
            names |= {name, *(f"{name}.{parameter}".lstrip(".") for parameter in own)}
            names |= {name[:end] for end, letter in enumerate(name) if letter == "."} | {""}
    return tuple(finding for finding in findings if finding.name in names)


#: Number of other seeds to try before a module counts as never run.
_SEEDS = 3


@dataclass(frozen=True, slots=True)
class _Run:
    """The run that full samples repeat: its workload, and the numbers of its steps."""

    workload: Workload
    last: int
    first_nonfinite: int | None
    extras: Extras


_Take = Callable[[_Run, Report, Collection[str]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _FullSample:
    """A full sample: the names that rules request it by, and its additions to the report."""

    names: Set[str]
    words: str
    take: _Take
    after_a_full_step: bool = False


def _answers(run: _Run, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Explain missing or zero gradients, only in the requested states."""
    from gradscope.api.answering import explained

    with rerun(run.workload, run.last) as step:
        return {"answers": explained(step, report.parameters, states=asked)}


def _elsewhere(run: _Run, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Find parameters without a gradient that get one with other seeds or the next batch."""
    parameters = {named.name: p for p, named in named_parameters(run.workload.model).items()}
    lost = {p.name for p in report.parameters if p.requires_grad and p.gradient is None}
    found: set[str] = set()
    with rerun(run.workload, run.last) as step:
        batches = step.batch, next(step.following, step.batch)
        for number in range(1, _SEEDS + 1):
            other = replace(run.workload, seed=run.workload.seed + number, random_states=())
            with repeated(replace(step, workload=other, batch=batches[number % 2])) as again:
                loss = again.loss()
            leaves = set(walk([edge_of(loss)], set()).leaves) if loss.requires_grad else set()
            found |= {name for name in lost if parameters[name] in leaves}
            if found == lost:
                break
    return {"elsewhere": tuple(p.name for p in report.parameters if p.name in found)}


def _lines(run: _Run, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Find the user's lines that computed the loss's inputs."""
    with rerun(run.workload, run.last) as step:
        with stacks_recorded():
            loss = step.loss()
        return {"links": located(report.links, walk([edge_of(loss)], set()), locate)}


def _non_finite(run: _Run, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Find the origins of NaN and Inf."""
    from gradscope.api.answering import find_origins

    first = run.last if run.first_nonfinite is None else run.first_nonfinite
    origins = find_origins(run.workload, first)
    return {"non_finite": origins} if origins else {}


def _of_step(key: str, read: Callable[[Step, Extras], Any]) -> _Take:
    """Return a full sample that runs the last step once more: ``read`` gives the report's
    ``key``."""

    def take(run: _Run, report: Report, asked: Collection[str]) -> dict[str, Any]:
        with rerun(run.workload, run.last) as step:
            return {key: read(step, run.extras)}

    return take


def _histograms(step: Step, extras: Extras) -> Any:
    return histograms(step, select_layers(step.workload.model, extras.histogram))


def _gradient_checks(step: Step, extras: Extras) -> Any:
    return gradient_checks(step, select_layers(step.workload.model, extras.gradcheck))


def _per_sample(run: _Run, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Compute the gradient of each sample of the batch."""
    from gradscope.per_sample.step import NotSeparable, step_by_sample

    try:
        return {"per_sample": step_by_sample(run.workload, run.last)}
    except NotSeparable as why:
        notice = f"no gradients of single samples: {why}"
        return {"run": replace(report.run, notices=(*report.run.notices, notice))}


def _leaks(run: _Run, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Find dependencies of each output that must not exist."""
    from gradscope.leaks.judge import judge
    from gradscope.leaks.subject import Wishes

    with as_found(run.workload, weights=False):
        run.workload.model.eval()
        axes = judge(run.workload, Wishes()).axes
    unknown = [one.axis for one in axes if one.verdict == "not-judged"]
    if not unknown:
        return {"leaks": axes}
    notice = f"leaks not judged: {', '.join(unknown)}; `gradscope leaks` gives the reasons"
    return {"leaks": axes, "run": replace(report.run, notices=(*report.run.notices, notice))}


def _costs(run: _Run, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Measure the cost of each call's forward: seconds and FLOPs."""
    with rerun(run.workload, run.last) as step:
        took, counted = costs.seconds(step), costs.flops(step)
    calls = (
        replace(c, seconds=took.get((c.name, c.call)), flops=counted.get((c.name, c.call)))
        for c in report.calls
    )
    return {"calls": tuple(calls)}


def _sketches(run: _Run, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Sketch the recorded calls' tensors and the parameters, for a later comparison."""
    chosen = select_layers(run.workload.model, run.workload.layers)
    found, remarks = sketches(run.workload, {named.name for named in chosen.values()}, run.last)
    notices = (*report.run.notices, *remarks)
    return {"sketches": found, "run": replace(report.run, notices=notices)}


_activity = _of_step("activity", lambda step, _: unit_activity(step.workload.model, step.loss))
_precision = _of_step(
    "precision", lambda step, _: forecast(step.workload.model, step.loss, step.backward)
)
_tasks = _of_step("tasks", lambda step, _: task_gradients(step))
_FULL_SAMPLES = (
    _FullSample({"missing", "zero"}, "the cause of missing or zero gradients", _answers),
    _FullSample({"elsewhere"}, "gradients with other seeds", _elsewhere),
    _FullSample({"non_finite"}, "the origin of a NaN or Inf", _non_finite),
    _FullSample({"activity"}, "dead and saturated units", _activity),
    _FullSample({"precision"}, "the losses of other dtypes", _precision),
    _FullSample({"tasks"}, "the gradients of each loss", _tasks, True),
    _FullSample({"per_sample"}, "the gradient of each sample", _per_sample, True),
    _FullSample({"lines"}, "the lines of the loss's inputs", _lines),
    _FullSample({"leaks"}, "the dependencies of each output", _leaks, True),
    _FullSample({"costs"}, "the cost of each call", _costs, True),
    _FullSample({"histogram"}, "histograms", _of_step("histograms", _histograms), True),
    _FullSample({"sketch"}, "sketches of the tensors", _sketches, True),
    _FullSample(
        {"gradcheck"},
        "backward of the selected layers",
        _of_step("gradient_checks", _gradient_checks),
        True,
    ),
    _FullSample(
        {"accumulation"},
        "accumulated gradients",
        lambda run, *_: {"accumulation": accumulation(run.workload, run.last)},
        True,
    ),
)
