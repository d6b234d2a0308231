"""Two runs of which one is compiled → a comparison of what comes out of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gradscope.api._divergence_findings import figures, off
from gradscope.api.runs import run_info, versions
from gradscope.capture.differences import difference
from gradscope.capture.names import named_parameters
from gradscope.loading import Workload
from gradscope.records.diff import CallDiff, DiffReport, ParameterDiff, TensorDiff
from gradscope.records.report import Finding
from gradscope.records.run import RunInfo
from gradscope.running.divergent_calls import FACTOR
from gradscope.running.outputs_only import OutputDiff, OutputsDivergence, compare_outputs


def compared_outputs(a: Workload, b: Workload, names: dict[str, str]) -> DiffReport:
    """The outputs of the model and the gradients of its parameters; ``names`` has A's by B's.

    Raises:
        StepFailed: one of the two raised.
    """
    found = compare_outputs(a, b, names)
    judged = tuple(_findings(found))
    kind = type(a.model).__name__
    return DiffReport(
        status="findings" if judged else "ok",
        a=_run_info(a),
        b=_run_info(b),
        versions=versions(),
        notices=("one of the two is compiled: only outputs and parameter gradients are compared",),
        losses=(_loss(found, 0), _loss(found, 1)),
        step=found.step,
        factor=FACTOR,
        measured="outputs",
        calls=tuple(
            CallDiff("", kind, 0, path, tuple(one.tensor.shape), _diff(one), None)
            for path, one in found.outputs.items()
        ),
        parameters=tuple(_parameters(found, a, b, names)),
        findings=judged,
    )


def _parameters(
    found: OutputsDivergence, a: Workload, b: Workload, names: dict[str, str]
) -> Iterator[ParameterDiff]:
    ours, theirs = ({n.name: p for p, n in named_parameters(w.model).items()} for w in (a, b))
    by_a = {known: name for name, known in names.items()}
    for name, one in found.parameters.items():
        value = difference(ours[name], theirs[by_a[name]])
        yield ParameterDiff(
            name=name,
            shape=tuple(one.tensor.shape),
            value=TensorDiff(_number(value.error), value.cosine, _number(value.largest)),
            gradient=_diff(one),
            name_b=None if by_a[name] == name else by_a[name],
        )


def _findings(found: OutputsDivergence) -> Iterator[Finding]:
    """The output that is farthest off, else the gradient."""
    outputs = [(path, one) for path, one in found.outputs.items() if one.diverges]
    gradients = [(name, one) for name, one in found.parameters.items() if one.diverges]
    if outputs:
        path, worst = max(outputs, key=_times)
        what = f"its output `{path}`" if path else "its output"
        yield _finding("GD101", "forward-diverges", "", what, worst)
    elif gradients:
        name, worst = max(gradients, key=_times)
        more = (
            f" (and {len(gradients) - 1} more of {len(found.parameters)})" if gradients[1:] else ""
        )
        yield _finding("GD102", "backward-diverges", name, f"its gradient{more}", worst)


def _times(entry: tuple[str, OutputDiff]) -> float:
    """So many times the limit."""
    if entry[1].diff is None:
        return math.inf
    value, limit = entry[1].noise.limit(entry[1].diff)
    return value / limit


def _finding(code: str, rule: str, name: str, what: str, worst: OutputDiff) -> Finding:
    known = None if worst.diff is None else figures(worst.diff, worst.noise)
    value, threshold, source = known or (None, None, None)
    how = "missing, or has another shape" if worst.diff is None else off(worst.diff, worst.noise)
    return Finding(
        code=code,
        rule=rule,
        severity="error",
        name=name,
        message=f"{what} is {how}",
        advice="compile with `backend='eager'` and `backend='aot_eager'`: which one diverges?",
        value=value,
        threshold=threshold,
        source=source,
        cause="compiler",
    )


def _run_info(workload: Workload) -> RunInfo:
    """Without the notice that compiled code runs eagerly."""
    info = run_info(workload, (), steps=1)
    notices = tuple(notice for notice in info.notices if not notice.startswith("torch.compile:"))
    return replace(info, notices=notices)


def _diff(one: OutputDiff) -> TensorDiff:
    if one.diff is None:
        return TensorDiff(note="B has none of this shape", diverges=True)
    diff = one.diff
    largest, noise = _number(diff.largest), _number(one.noise.error)
    return TensorDiff(_number(diff.error), diff.cosine, largest, noise, diverges=one.diverges)


def _loss(found: OutputsDivergence, which: int) -> float | None:
    loss = found.losses[which]
    return float(loss) if loss.numel() == 1 and not loss.is_complex() else None


def _number(x: float) -> float | None:
    return x if math.isfinite(x) else None
