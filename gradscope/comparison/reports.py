"""Compares two saved reports, by sketches or statistics, and finds their first divergence.

The models of two training runs are compared in the same way, in each step that both sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.comparison.alignment import CallKey
from gradscope.comparison.saved_pair import SKETCH_FACTOR, SavedPair, SavedRun, TensorKey, timeline
from gradscope.errors import OptionError
from gradscope.patterns import Named, matching
from gradscope.records.diff import CallDiff, DiffReport, ParameterDiff, TensorDiff
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Finding, Report
from gradscope.runfile.reader import RunFile

LOOK = "compare the code, the arguments and the dtype of this module in A and B"
#: The advice for two runs in which a weight of the divergent layer was already different.
_LOOK_EARLIER = (
    "compare the initial weights and the optimizers: the weight differs before this step"
)


def only_in_one(report: DiffReport) -> Iterator[Finding]:
    """Yield findings on names that only one of the two has."""
    for code, whose, names in (("GD103", "A", report.only_a), ("GD104", "B", report.only_b)):
        if names:
            yield Finding(
                code=code,
                rule=f"only-in-{whose.lower()}",
                severity="warning",
                name=names[0],
                message=f"{len(names)} modules and parameters are only in {whose}, and not "
                f"compared: {', '.join(names[:4])}{', …' if len(names) > 4 else ''}",
                advice="map the names with `--match 'A=B'`",
            )


def other_weight(report: DiffReport, name: str) -> str:
    """Return the module's first parameter whose value differs from A's."""
    for one in report.parameters:
        module, _, own = one.name.rpartition(".")
        if module == name and (one.value.error or 0) > report.step:
            return f"; its `{own}` differs from A's by {one.value.error:.1e}"
    return ""


#: If a tensor has much noise (a bias's gradient before a BatchNorm), less is not a divergence.
_VAGUE = 0.1


def findings(pair: SavedPair, report: DiffReport) -> Iterator[Finding]:
    """Yield the first divergence in forward, else in backward; then names that only one run has."""
    if forward := _forward(pair):  # all gradients follow, and add no information
        yield _finding(pair, report, forward, "GD101", "forward-diverges")
    elif backward := _backward(pair):
        yield _finding(pair, report, backward, "GD102", "backward-diverges")
    yield from only_in_one(report)


@dataclass(frozen=True, slots=True)
class _DivergentTensor:
    """The tensor, its error, and the error from which it counts; None: unknown.

    ``larger`` is True or False if every element is larger or smaller.
    """

    key: TensorKey
    value: float | None
    limit: float | None
    larger: bool | None = None


def _forward(pair: SavedPair) -> _DivergentTensor | None:
    """Return the first divergent tensor in time: a call's inputs, then its outputs."""
    for call, done in timeline(pair.a.report.calls):
        given = _given(call, "input") if done else []
        for key in _given(call, "output" if done else "input"):
            if divergence := _divergence(pair, key, given):
                return divergence
    return None


def _given(call: ModuleCall, kind: str) -> list[TensorKey]:
    """Return the tensors of a kind."""
    tensors = call.inputs if kind.endswith("input") else call.outputs
    return [TensorKey((call.name, call.call), kind, tensor.path) for tensor in tensors]


def _backward(pair: SavedPair) -> _DivergentTensor | None:
    """Return the same from the loss back: a call's output gradient, parameters, input gradient."""
    parameters: dict[CallKey, list[str]] = {}
    for parameter in pair.a.report.parameters:
        parameters.setdefault(_owner(pair, parameter.name), []).append(parameter.name)
    rounding = _rounding(pair)
    for call, done in reversed([*timeline(pair.a.report.calls)]):
        made, given = _given(call, "grad_output"), list[TensorKey]()
        if not done:
            given = [*made, *_given(call, "input"), *_given(call, "output")]
            names = parameters.get((call.name, call.call), [])
            made = [TensorKey(None, "gradient", name) for name in names if name not in rounding]
            made += _given(call, "grad_input")
        for key in made:
            if divergence := _divergence(pair, key, given):
                return divergence
    return None


def _divergence(
    pair: SavedPair, key: TensorKey, given: Sequence[TensorKey]
) -> _DivergentTensor | None:
    """Return the divergence of a tensor computed from the tensors ``given``; None without one."""
    if key.call is not None and key.call not in pair.calls:
        return None
    diff = pair.diff(key)
    if diff is None:
        return None
    if diff.diverges:
        factor = SKETCH_FACTOR if pair.sketched else 1.0
        return _DivergentTensor(
            key, diff.error, None if diff.noise is None else factor * diff.noise
        )
    noise = pair.own_noise(key, given)
    if not diff.error or noise is None or diff.error <= noise or noise > _VAGUE:
        return None
    if diff.error > SKETCH_FACTOR * noise:
        return _DivergentTensor(key, diff.error, SKETCH_FACTOR * noise)
    scale = pair.scale(key)  # rounding goes both ways: it shows less in it than in all errors
    return _DivergentTensor(key, abs(scale), noise, scale > 0) if abs(scale) > noise else None


def _rounding(pair: SavedPair) -> set[str]:
    """Return gradients that are only rounding relative to another gradient of their module, such as
    those of a bias before a BatchNorm.

    Sketches contain their noise; statistics do not.
    """
    norms = {
        p.name: p.gradient.norm or 0.0
        for p in pair.a.report.parameters
        if p.gradient is not None and not pair.sketched
    }
    largest: dict[str, float] = {}
    for name, norm in norms.items():
        module = name.rpartition(".")[0]
        largest[module] = max(norm, largest.get(module, 0.0))
    half = pair.accuracy.half
    return {name for name, norm in norms.items() if norm < half * largest[name.rpartition(".")[0]]}


def _owner(pair: SavedPair, parameter: str) -> CallKey:
    """Return the call of the module that owns the parameter, or of the nearest module around it."""
    name = parameter.rpartition(".")[0]
    while name and (name, 0) not in pair.a.alike:
        name = name.rpartition(".")[0]
    return name, 0


def _finding(
    pair: SavedPair, report: DiffReport, found: _DivergentTensor, code: str, rule: str
) -> Finding:
    key = found.key
    call = _owner(pair, key.path) if key.call is None else key.call
    diff = pair.diff(key)
    assert diff is not None
    name, number, cause, what = *call, "layer", _WHAT[key.kind].format(path=key.path)
    if key.kind == "input" and not name:
        cause, what = "batch", "the input of the model"
    elif key.kind == "grad_output" and not name:
        cause, what = "loss", "the gradient that the loss sends to the output"
    elif key.kind in ("input", "grad_output"):  # code between two calls, of the module around them
        what = f"{what} `{name}`"
        name, number = name.rpartition(".")[0], 0
    value, limit = found.value, found.limit
    known = value is not None and limit is not None
    least = "at least " if report.measured == "statistics" else ""
    off = f"{diff.note}" if value is None else f"off by a relative error of {least}{value:.1e}"
    if found.larger is not None:
        larger = "larger" if found.larger else "smaller"
        off = f"{larger} in all elements, by {value:.1e}"
    weight = other_weight(report, name)
    fix = _LOOK_EARLIER if weight else LOOK
    return Finding(
        code=code,
        rule=rule,
        severity="error",
        name=name,
        call=number,
        message=f"the first divergence is {what}: {off}{weight}",
        advice=fix if cause == "layer" else f"give both the same {cause}",
        value=value if known else None,
        threshold=_rounded(limit, value) if known else None,
        source=(_NOISE if found.larger is not None else _SOURCES[report.measured])
        if known
        else None,
        cause=cause,
    )


def _rounded(limit: float | None, value: float | None) -> float | None:
    """Round to one digit, the noise's precision; but keep it below the value."""
    assert limit is not None and value is not None
    rounded = float(f"{limit:.1g}")
    return rounded if rounded < value else limit


_WHAT = {
    "input": "the input that its code passes to",
    "output": "its output",
    "grad_output": "the output gradient that its code sends to",
    "gradient": "the gradient of `{path}`",
    "grad_input": "its input gradient",
}
_NOISE = "the noise measured with the sketches"
_SOURCES = {
    "sketches": f"twice {_NOISE}",
    "statistics": "√ε of the dtype",
}


def compare_reports(
    a: Report,
    b: Report,
    match: Sequence[str] = (),
    *,
    files: tuple[str, str] = ("A", "B"),
) -> DiffReport:
    """Return the errors of two saved runs, and their first divergence.

    Args:
        a: the reference.
        b: the report to compare with it.
        match: ``A=B``, patterns of module names that differ in B.
        files: their paths.

    Raises:
        OptionError: a run failed, or they have nothing in common.
        ConfigError: a sketch is damaged.
    """
    notices = []
    if _share(a) != _share(b):
        notices.append("calls are not compared: with several processes they belong to one rank")
        a, b = replace(a, calls=()), replace(b, calls=())
    pair = SavedPair.of(SavedRun.of(a, files[0]), SavedRun.of(b, files[1]), match)
    report = DiffReport(
        status="ok",
        a=replace(a.run, file=files[0]),
        b=replace(b.run, file=files[1]),
        versions=b.versions,
        notices=(*notices, *_notices(pair)),
        losses=(a.loss, b.loss),
        step=pair.accuracy.step if pair.sketched else pair.accuracy.half,
        factor=SKETCH_FACTOR if pair.sketched else 1.0,
        measured="sketches" if pair.sketched else "statistics",
        calls=tuple(_call_diffs(pair)),
        parameters=tuple(_parameter_diffs(pair)),
        only_a=(*_alone(pair.a, {*pair.calls}), *_missing(pair.a, {*pair.parameters})),
        only_b=(
            *_alone(pair.b, {*pair.calls.values()}),
            *_missing(pair.b, {*pair.parameters.values()}),
        ),
    )
    found = tuple(findings(pair, report))
    return replace(report, findings=found, status="findings" if found else "ok")


def _share(report: Report) -> tuple[object, ...] | None:
    """Return the process whose part the report holds; None for a full report."""
    run = report.parallel
    return None if run is None else (run.kind, run.axes, run.rank)


def _notices(pair: SavedPair) -> Iterator[str]:
    if pair.reordered:
        yield "batch: the same numbers in another order: only norms, means and ranges are compared"
    elif not pair.sketched:
        without = [one.file for one in (pair.a, pair.b) if not one.sketches]
        yield (
            f"{' and '.join(without)}: without sketches: only norms, means and ranges are compared"
        )
    ours, theirs = pair.a.report.versions, pair.b.report.versions
    for name, version in ours.items():
        if theirs.get(name) != version:
            yield f"{name}: {version} in A, {theirs.get(name, 'none')} in B"


def _call_diffs(pair: SavedPair) -> Iterator[CallDiff]:
    for call in pair.a.report.calls:
        key = call.name, call.call
        other = pair.calls.get(key)
        if other is None:
            continue
        for tensor in call.outputs:
            activation = pair.diff(TensorKey(key, "output", tensor.path))
            yield CallDiff(
                name=call.name,
                type=call.type,
                call=call.call,
                path=tensor.path,
                shape=tensor.activation.shape,
                activation=activation or TensorDiff(note="not compared"),
                gradient=pair.diff(TensorKey(key, "grad_output", tensor.path)),
                name_b=None if other[0] == call.name else other[0],
            )


def _parameter_diffs(pair: SavedPair) -> Iterator[ParameterDiff]:
    updates = {p.name: p.update_ratio for p in pair.b.report.parameters}
    for parameter in pair.a.report.parameters:
        other = pair.parameters.get(parameter.name)
        if other is not None:
            value = pair.diff(TensorKey(None, "value", parameter.name))
            a, b = parameter.update_ratio, updates[other]
            yield ParameterDiff(
                name=parameter.name,
                shape=parameter.shape,
                value=value or TensorDiff(note="not compared"),
                gradient=pair.diff(TensorKey(None, "gradient", parameter.name)),
                name_b=None if other == parameter.name else other,
                update_ratios=None if a is None or b is None else (a, b),
            )


def _alone(run: SavedRun, known: set[CallKey]) -> list[str]:
    alone = (name for name, call in run.alike if (name, call) not in known)
    return list(dict.fromkeys(name or "the model" for name in alone))


def _missing(run: SavedRun, known: set[str]) -> list[str]:
    return [p.name for p in run.report.parameters if p.name not in known]


def of_layers(report: DiffReport, layers: Sequence[str], exclude: Sequence[str]) -> DiffReport:
    """Return the report with the rows of some layers only.

    Its findings stay, because they are about the full models.

    Args:
        report: the report of full models.
        layers: patterns of A's module names; empty: all.
        exclude: patterns to take out.

    Raises:
        LayerError: a pattern matches no compared layer.
    """
    if not layers and not exclude:
        return report
    types = {_module(parameter.name): "" for parameter in report.parameters}
    types |= {call.name: call.type for call in report.calls}
    names = [Named(name, types=(kind,)) for name, kind in types.items()]
    patterns = (*(layers or ("**",)), *(f"!{pattern}" for pattern in exclude))
    chosen = {named.name for named in matching(patterns, names)}
    return replace(
        report,
        calls=tuple(call for call in report.calls if call.name in chosen),
        parameters=tuple(p for p in report.parameters if _module(p.name) in chosen),
    )


def _module(parameter: str) -> str:
    return parameter.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One model in one step of both runs.

    Attributes:
        model: its name, if there are several.
        alone: the models of A or B without a counterpart.
    """

    step: int
    model: str
    report: DiffReport
    alone: Sequence[str]

    @property
    def diverges(self) -> bool:
        return bool(self.report.findings) or worst_update(self.report) is not None

    @property
    def where(self) -> str:
        return f"step {self.step}" + (f" of {self.model}" if self.model else "")


def compare_models(
    sampled: Sequence[int], a: RunFile, b: RunFile, match: Sequence[str]
) -> ComparedModel | None:
    """Return the first divergent model, in the first step with one; else a model of the last step.

    Raises:
        OptionError: no model can be compared in any step.
    """
    pairs = _pairs([model.name for model in a.models], [model.name for model in b.models])
    several = len(a.models) > 1 or len(b.models) > 1
    alone = dict.fromkeys(model.name for model in a.models if model.name not in pairs)
    alone |= dict.fromkeys(model.name for model in b.models if model.name not in pairs.values())
    last: ComparedModel | None = None
    failure: OptionError | None = None
    for step in sampled:
        ours, theirs = _reports(a, step), _reports(b, step)
        for name, other in pairs.items():
            if name not in ours or other not in theirs:
                continue
            try:
                report = compare_reports(
                    *(ours[name], theirs[other], match), files=(str(a.path), str(b.path))
                )
            except OptionError as error:  # nothing in common
                failure, alone[name] = failure or error, None
                continue
            found = ComparedModel(step, name if several else "", report, tuple(alone))
            if found.diverges:
                return found
            last = found if last is None or last.step < step else last
    if last is None and failure is not None:
        raise failure
    return None if last is None else replace(last, alone=tuple(alone))


def _pairs(a: Sequence[str], b: Sequence[str]) -> dict[str, str]:
    """Pair models by name; others by their order."""
    others = (name for name in b if name not in a)
    pairs = {name: name if name in b else next(others, None) for name in a}
    return {name: other for name, other in pairs.items() if other is not None}


def _reports(run: RunFile, step: int) -> dict[str, Report]:
    """Return the report of each model in a step, by the model's name."""
    names = {model.id: model.name for model in run.models}
    return {
        names[one.model]: replace(one.report, status="ok")
        for one in run.sample(step)
        if one.model in names
    }


def worst_update(report: DiffReport) -> ParameterDiff | None:
    """Return the parameter whose updates differ most although its gradients are equal."""
    differing = [
        one
        for one in report.parameters
        if one.gradient is not None
        and one.gradient.note is None
        and not one.gradient.diverges
        and update_error(one) > report.step
    ]
    return max(differing, key=update_error) if differing else None


def update_error(parameter: ParameterDiff) -> float:
    """Return |b − a| / a of the update ratios."""
    a, b = parameter.update_ratios or (0.0, 0.0)
    return abs(b - a) / a if a else math.inf if b else 0.0
