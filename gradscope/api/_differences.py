"""Rows of a comparison's report, from its runs; and its findings, by the first divergent calls."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch

from gradscope.api.opened import run_info, versions
from gradscope.capture.differences import Difference, difference
from gradscope.capture.names import modules_by_name, named_parameters, written_class
from gradscope.comparison.alignment import CallKey
from gradscope.comparison.reports import LOOK, only_in_one, other_weight
from gradscope.errors import OptionError
from gradscope.loading.workload import Workload
from gradscope.records.diff import CallDiff, DiffReport, ParameterDiff, TensorDiff
from gradscope.records.report import Finding
from gradscope.records.run import RunInfo
from gradscope.records.tensors import finite_or_none
from gradscope.running.compared_runs import Comparison, Divergence, in_float64
from gradscope.running.divergent_calls import (
    FACTOR,
    DivergentCall,
    Noise,
    OutputDiff,
    OutputsDivergence,
    compare_outputs,
    gradient_noise,
    is_compiled,
    parameter_noise,
    value_noise,
)
from gradscope.running.probed_step import ProbeKey

#: A parameter's gradient with a larger error than this counts as another gradient: msprobe's bound
#: for an error from exact inputs.
_LOST = 0.1
# : A's own gradient counts as reliable if changed last bits of all numbers move it by less than
# this.
_SURE = 1e-2


def findings(
    report: DiffReport, forward: Sequence[DivergentCall], backward: Sequence[DivergentCall]
) -> Iterator[Finding]:
    """Yield findings forward, backward, then those that no single layer explains."""
    if forward:
        yield _diverges(report, "GD101", "forward-diverges", forward)
    if backward:
        yield _diverges(report, "GD102", "backward-diverges", backward)
    yield from only_in_one(report)
    if not forward and not backward:
        yield from _lost(report)


def _diverges(report: DiffReport, code: str, rule: str, places: Sequence[DivergentCall]) -> Finding:
    first = places[0]
    name, call = first.call or ("", 0)
    others = list(dict.fromkeys(_place_words(p) for p in places[1:] if p.call != first.call))
    more = f"; {_some(others)} diverge too" if others else ""
    known = figures(first.own, first.noise)
    value, threshold, source = known or (None, None, None)
    return Finding(
        code=code,
        rule=rule,
        severity="error",
        name=name,
        call=call,
        message=_message(first, rule == "forward-diverges") + other_weight(report, name) + more,
        advice=LOOK if first.call else "compare the losses of A and B",
        value=value,
        threshold=threshold,
        source=source,
        cause="loss" if first.call is None else "batch" if first.batch else "layer",
    )


def _message(place: DivergentCall, forward: bool) -> str:
    diff = off(place.own, place.noise)
    if place.batch:
        return f"B's model gets another batch: {diff}"
    if place.call is None:
        what = "the loss" if forward else "the gradient that the loss sends to the output"
        return f"with A's output as its input, {what} is {diff}"
    given = "with A's inputs" if forward else "with A's inputs and A's output gradient"
    if place.parameter is not None:
        what = f"the gradient of `{place.parameter}`"
    elif place.beside is not None:
        side = "before" if place.before else "after"
        beside = place.beside[0] + (f" #{place.beside[1]}" if place.beside[1] else "")
        what = f"the result of its code right {side} `{beside}`"
        what += "" if forward else ", in backward,"
    else:
        what = "its output" if forward else "its input gradient"
    return f"{given}, {what} is {diff}"


def off(own: Difference, noise: Noise) -> str:
    """Describe the error of a tensor, by the measure that exceeds the noise most."""
    if not math.isfinite(own.error):
        return "NaN or Inf in one run only"
    value, _ = noise.limit(own)
    words = f"off by a relative error of {own.error:.1e}"
    if value == own.error:
        return words
    larger = "larger" if own.scale > 0 else "smaller"
    return f"{larger} in all elements, by {value:.1e}"


def figures(own: Difference, noise: Noise) -> tuple[float, float, str] | None:
    """Return the value, the threshold rounded to one digit, and its source; None if the value is
    not finite.

    Only one digit of the noise is reliable: another processor measures another noise.
    """
    value, limit = noise.limit(own)
    if not math.isfinite(value):
        return None
    rounded = float(f"{limit:.1g}")
    times = limit / (noise.error if value == own.error else noise.scale)
    return value, rounded if rounded < value else limit, f"{times:g} times the noise of A"


def _lost(report: DiffReport) -> Iterator[Finding]:
    """Yield gradients that B loses to rounding although no layer diverges."""
    lost = [p for p in report.parameters if _error(p) > _LOST and _noise(p) < _SURE]
    if not lost:
        return
    worst = max(lost, key=_error)
    yield Finding(
        code="GD105",
        rule="gradient-lost",
        severity="warning",
        name=worst.name,
        message=f"its gradient is off by {100 * _error(worst):.0f} %, but no layer diverges: "
        f"accumulated rounding does this to {len(lost)} of {len(report.parameters)} parameters",
        advice="keep the layers where errors grow in a wider dtype, or accept the error",
        value=_error(worst),
        threshold=_LOST,
        source="msprobe: an error of 0.1",
    )


def _error(parameter: ParameterDiff) -> float:
    return (parameter.gradient and parameter.gradient.error) or 0.0


def _noise(parameter: ParameterDiff) -> float:
    return (parameter.gradient and parameter.gradient.noise) or 0.0


def _place_words(place: DivergentCall) -> str:
    return "the loss" if place.call is None else f"`{place.call[0] or 'the model'}`"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


#: Why a gradient is not compared.
_SUMMED = "of other samples"


def shapes(workload: Workload) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter, by its first name."""
    named = named_parameters(workload.model).items()
    return {name.name: tuple(parameter.shape) for parameter, name in named}


def call_diffs(found: Divergence) -> Iterator[CallDiff]:
    """Yield a row for each output of each call that A and B have, in the order of A's forward."""
    names, references = {a: b[0] for b, a in found.aligned.items()}, _references(found)
    inputs: dict[CallKey, list[ProbeKey]] = {}
    for key in found.tape.gradients:
        if not key.output:
            inputs.setdefault((key.name, key.call), []).append(key)
    for key, tensor in found.tape.values.items():
        call = (key.name, key.call)
        if not key.output or call not in names:
            continue
        gradient = None
        if key in found.tape.gradients:
            gradient = _diff(found.free_running.gradients.get(key), found.doubt.gradients.get(key))
            if key in found.free_running.summed:
                gradient = TensorDiff(note=_SUMMED)
            gradient = _with_worst(gradient, found, inputs.get(call, []))
            gradient = _with_references(gradient, [run.gradients.get(key) for run in references])
        yield CallDiff(
            name=key.name,
            type=found.calls[0][call].type,
            call=key.call,
            path=key.path,
            shape=tuple(tensor.shape),
            activation=_with_references(
                _activation(found, key), [run.values.get(key) for run in references]
            ),
            gradient=gradient,
            name_b=None if names[call] == key.name else names[call],
        )


def _activation(found: Divergence, key: ProbeKey) -> TensorDiff:
    diff = _diff(found.free_running.values.get(key), found.doubt.values.get(key))
    if key in found.free_running.summed:
        return TensorDiff(note=_SUMMED)
    if key in found.free_running.shapes:
        return replace(diff, note=f"B's shape is {list(found.free_running.shapes[key])}")
    own = found.teacher_forced.values.get(key)
    return diff if own is None else _with_own(diff, own, value_noise(found, key))


def _with_worst(diff: TensorDiff, found: Divergence, inputs: list[ProbeKey]) -> TensorDiff:
    """Return the difference with the teacher-forced error of the input gradient that exceeds the
    noise most.
    """
    owns = [
        (own, gradient_noise(found, k))
        for k in inputs
        if (own := found.teacher_forced.gradients.get(k))
    ]
    if not owns:
        return diff
    return _with_own(diff, *max(owns, key=lambda pair: pair[0].error / pair[1].error))


def parameter_diffs(
    found: Divergence, workloads: tuple[Workload, Workload], names: dict[str, str]
) -> Iterator[ParameterDiff]:
    """Yield a row for each parameter that A and B have, in A's order; ``names`` maps B's names to
    A's."""
    ours, theirs = (
        {named.name: p for p, named in named_parameters(w.model).items()} for w in workloads
    )
    by_a, references = {known: name for name, known in names.items()}, _references(found)
    for name, parameter in ours.items():
        other = by_a.get(name)
        if other is None:
            continue
        arrived = found.tape.arrived.get(name), found.free_running.arrived.get(other)
        gradient = None
        if any(one is not None for one in arrived):
            gradient = _diff(
                found.free_running.parameters.get(name), found.doubt.parameters.get(name)
            )
            if found.samples and not found.samples.complete:
                gradient = TensorDiff(note=_SUMMED)
            own = found.teacher_forced.parameters.get(name)
            if own is not None:
                gradient = _with_own(gradient, own, parameter_noise(found, name))
            gradient = _with_references(gradient, [run.parameters.get(name) for run in references])
        yield ParameterDiff(
            name=name,
            shape=tuple(parameter.shape),
            value=_diff(difference(parameter, theirs[other]), None),
            gradient=gradient,
            name_b=None if other == name else other,
        )


def _diff(free_running: Difference | None, doubt: Difference | None) -> TensorDiff:
    if free_running is None:
        return TensorDiff(note="B has none")
    note = None if math.isfinite(free_running.error) else "A is all zeros, or A or B has NaN or Inf"
    noise = None if doubt is None else finite_or_none(doubt.error)
    return TensorDiff(
        finite_or_none(free_running.error),
        free_running.cosine,
        finite_or_none(free_running.largest),
        noise,
        note=note,
    )


def _with_own(diff: TensorDiff, own: Difference, noise: Noise) -> TensorDiff:
    return replace(
        diff,
        teacher_forced=finite_or_none(own.error),
        teacher_forced_noise=finite_or_none(noise.error),
        diverges=noise.exceeded(own),
    )


def _references(found: Divergence) -> list[Comparison]:
    """Compare A and B with the reference, if there is one."""
    return [found.reference.a, found.reference.b] if found.reference else []


def _with_references(diff: TensorDiff, errors: Sequence[Difference | None]) -> TensorDiff:
    """Return the difference with the errors of A and of B from the reference."""
    if not errors:
        return diff
    a, b = (None if one is None else finite_or_none(one.error) for one in errors)
    return replace(diff, reference_a=a, reference_b=b)


def compared_outputs(
    a: Workload, b: Workload, names: dict[str, str], wide: Workload | None
) -> DiffReport:
    """Compare the outputs of the model and the gradients of its parameters.

    ``names`` maps B's names to A's. ``wide`` is the reference; without it, a divergence is compared
    with A in float64, to find out which one is off.

    Raises:
        StepFailed: one of the two raised.
    """
    found = compare_outputs(a, b, names, wide)
    judged = tuple(_findings(found))
    if judged and wide is None and a.dtype != torch.float64 and a.device.type != "mps":
        try:
            wide = in_float64(a)
        except OptionError:  # the model cannot be copied
            pass
        else:
            found = compare_outputs(a, b, names, wide)
            judged = tuple(_findings(found))
    kind = type(a.model).__name__
    return DiffReport(
        status="findings" if judged else "ok",
        a=_run_info(a),
        b=_run_info(b),
        versions=versions(),
        notices=(_notice(found, b),),
        losses=(_loss(found, 0), _loss(found, 1)),
        step=found.step,
        factor=FACTOR,
        measured="outputs",
        reference=None if wide is None else "float64",
        calls=tuple(
            CallDiff("", kind, 0, path, tuple(one.tensor.shape), _output_diff(one), None)
            for path, one in found.outputs.items()
        )
        + tuple(_inside(found, b)),
        parameters=tuple(_parameters(found, a, b, names)),
        findings=judged,
    )


def _notice(found: OutputsDivergence, b: Workload) -> str:
    if found.calls:
        return "B is compiled: a call's difference includes those of the calls before it"
    why = "one of the two is compiled: only outputs and parameter gradients are compared"
    return f"{why}; it was compiled before" if is_compiled(b) else why


def _inside(found: OutputsDivergence, b: Workload) -> Iterator[CallDiff]:
    """Yield the calls inside compiled B."""
    modules = modules_by_name(b.model)
    for key, one in found.calls.items():
        if key.name and key.output:  # the outputs of the model have their rows
            kind = written_class(modules[key.name]).__name__
            shape = tuple(one.value.tensor.shape)
            back = None if one.gradient is None else _output_diff(one.gradient)
            diff = _output_diff(one.value)
            yield CallDiff(key.name, kind, key.call, key.path, shape, diff, back)


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
            value=TensorDiff(
                finite_or_none(value.error), value.cosine, finite_or_none(value.largest)
            ),
            gradient=_output_diff(one),
            name_b=None if by_a[name] == name else by_a[name],
        )


def _findings(found: OutputsDivergence) -> Iterator[Finding]:
    """Yield the output with the largest difference, else the gradient."""
    inside = _first_inside(found)
    if inside is not None:
        yield inside
        return
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
        finding = _finding("GD102", "backward-diverges", name, f"its gradient{more}", worst)
        yield replace(finding, location=found.kernels.get(name))


def _first_inside(found: OutputsDivergence) -> Finding | None:
    """Return the first divergent place inside compiled B: in forward, else in backward from the
    loss."""
    known = {key.name for key in found.calls}
    for key, one in found.calls.items():
        if one.value.diverges:
            name, what = key.name, f"its output `{key.path}`" if key.path else "its output"
            if not key.output:
                name = _common_module([key.name.rpartition(".")[0]], known)
                what = f"the result of its code right before `{_words(key)}`"
            finding = _finding("GD101", "forward-diverges", name, what, one.value)
            return replace(finding, call=key.call if key.output else 0, location=one.kernels[0])
    for key, one in reversed(found.calls.items()):
        if one.gradient is not None and one.gradient.diverges:
            name, call, what = key.name, key.call, "the gradient that reaches its output"
            if one.readers is not None:
                what = f"the gradient that it sends back to `{_words(key)}`"
                if len(one.readers) == 1:
                    name, call = one.readers[0]
                else:  # several, or code between two calls
                    places = [name for name, _ in one.readers] or [key.name.rpartition(".")[0]]
                    name, call = _common_module(places, known), 0
            finding = _finding("GD102", "backward-diverges", name, what, one.gradient)
            return replace(finding, call=call, location=one.kernels[1])
    return None


def _common_module(names: Sequence[str], known: Collection[str]) -> str:
    """Return the innermost known module that contains all of these modules; a single one is its
    own."""
    name = names[0]
    while name and not (name in known and all(f"{one}.".startswith(f"{name}.") for one in names)):
        name = name.rpartition(".")[0]
    return name


def _words(key: ProbeKey) -> str:
    return f"{key.name} #{key.call}" if key.call else key.name


def _times(entry: tuple[str, OutputDiff]) -> float:
    """Return the error as a multiple of its limit."""
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
        message=f"{what} is {how}{which_is_off(worst)}",
        advice="compile with `backend='eager'` and `backend='aot_eager'`: which one diverges?",
        value=value,
        threshold=threshold,
        source=source,
        cause="compiler",
    )


def which_is_off(one: OutputDiff) -> str:
    """Return which of the two is off from float64 by more than rounding; "" if it is unknown."""
    a, b = one.references
    if a is None or b is None:
        return ""
    off = [which for which, own in zip("AB", (a, b), strict=True) if one.noise.exceeded(own)]
    who = " and ".join(off) or "none of them"
    verb = "are" if len(off) > 1 else "is"
    return (
        f"; from float64, A is off by {a.error:.1e} and B by {b.error:.1e}: {who} {verb} off by "
        "more than rounding"
    )


def _run_info(workload: Workload) -> RunInfo:
    """Return the settings without the notice that compiled code runs eagerly."""
    info = run_info(workload, (), steps=1)
    notices = tuple(notice for notice in info.notices if not notice.startswith("torch.compile:"))
    return replace(info, notices=notices)


def _output_diff(one: OutputDiff) -> TensorDiff:
    if one.diff is None:
        return TensorDiff(note="B has none of this shape", diverges=True)
    diff = one.diff
    largest, noise = finite_or_none(diff.largest), finite_or_none(one.noise.error)
    found = TensorDiff(
        finite_or_none(diff.error), diff.cosine, largest, noise, diverges=one.diverges
    )
    return _with_references(found, one.references) if any(one.references) else found


def _loss(found: OutputsDivergence, which: int) -> float | None:
    loss = found.losses[which]
    return float(loss) if loss.numel() == 1 and not loss.is_complex() else None
