"""Makes findings of the first divergence of two saved runs, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradscope.comparison.alignment import CallKey
from gradscope.comparison.estimated_differences import SKETCH_FACTOR
from gradscope.comparison.saved_pair import SavedPair, TensorKey, timeline
from gradscope.records.diff import DiffReport
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Finding

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


#: For a tensor with so much noise, as a bias's gradient before a BatchNorm, less is no divergence.
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
    """Return gradients that are rounding compared with another one of their module, such as a
    bias's before a BatchNorm.

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
    look = _LOOK_EARLIER if weight else LOOK
    return Finding(
        code=code,
        rule=rule,
        severity="error",
        name=name,
        call=number,
        message=f"the first divergence is {what}: {off}{weight}",
        advice=look if cause == "layer" else f"give both the same {cause}",
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
