"""Where two saved runs part first, forward and backward → findings."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.comparison.alignment import CallKey
from gradscope.comparison.findings import LOOK, only_in_one, other_weight
from gradscope.comparison.pair import SavedPair
from gradscope.comparison.saved import TensorKey, timeline
from gradscope.records.diff import DiffReport
from gradscope.records.report import Finding


def findings(pair: SavedPair, report: DiffReport) -> Iterator[Finding]:
    """The first place forward; else the first backward. Then what is in one of the two alone."""
    forward, backward = _forward(pair), _backward(pair)
    if forward is not None:  # all gradients follow, and say nothing of their own
        yield _finding(pair, report, forward, "GD101", "forward-departs")
    elif backward is not None:
        yield _finding(pair, report, backward, "GD102", "backward-departs")
    yield from only_in_one(report)


def _forward(pair: SavedPair) -> TensorKey | None:
    """The first tensor that departs, as time goes: what a call is given, then what it returns."""
    for call, done in timeline(pair.a.report.calls):
        tensors = call.outputs if done else call.inputs
        for tensor in tensors:
            key = TensorKey((call.name, call.call), "output" if done else "input", tensor.path)
            if _departs(pair, key):
                return key
    return None


def _backward(pair: SavedPair) -> TensorKey | None:
    """The same from the loss back: what comes to a call, its parameters, what it sends on."""
    parameters: dict[CallKey, list[str]] = {}
    for parameter in pair.a.report.parameters:
        parameters.setdefault(_owner(pair, parameter.name), []).append(parameter.name)
    for call, done in reversed([*timeline(pair.a.report.calls)]):
        key = call.name, call.call
        if not done:
            for name in parameters.get(key, []):
                gradient = TensorKey(None, "gradient", name)
                if _departs(pair, gradient) and not _cancels(pair, name):
                    return gradient
        kind = "grad_output" if done else "grad_input"
        for tensor in call.outputs if done else call.inputs:
            if _departs(pair, TensorKey(key, kind, tensor.path)):
                return TensorKey(key, kind, tensor.path)
    return None


def _departs(pair: SavedPair, key: TensorKey) -> bool:
    if key.call is not None and key.call not in pair.calls:
        return False
    gap = pair.gap(key)
    return gap is not None and gap.departs


def _cancels(pair: SavedPair, parameter: str) -> bool:
    """Whether a gradient is rounding beside those of its module, as a bias's before a BatchNorm.

    Sketches know their noise; statistics do not.
    """
    if pair.sketched:
        return False
    module = parameter.rpartition(".")[0]
    norms = {
        p.name: p.gradient.norm or 0.0
        for p in pair.a.report.parameters
        if p.gradient is not None and p.name.rpartition(".")[0] == module
    }
    return norms.get(parameter, 0.0) < pair.accuracy.half * max(norms.values(), default=0.0)


def _owner(pair: SavedPair, parameter: str) -> CallKey:
    """The call whose module has the parameter, or the nearest one around it."""
    name = parameter.rpartition(".")[0]
    while name and (name, 0) not in pair.a.alike:
        name = name.rpartition(".")[0]
    return name, 0


def _finding(pair: SavedPair, report: DiffReport, key: TensorKey, code: str, rule: str) -> Finding:
    call = _owner(pair, key.path) if key.call is None else key.call
    gap = pair.gap(key)
    assert gap is not None
    name, number, cause, what = *call, "layer", _WHAT[key.kind].format(path=key.path)
    if key.kind == "input" and not name:
        cause, what = "batch", "what the model is called with"
    elif key.kind == "grad_output" and not name:
        cause, what = "loss", "the gradient that the loss sends to the output"
    elif key.kind in ("input", "grad_output"):  # code between two calls, of the module around them
        what = f"{what} `{name}`"
        name, number = name.rpartition(".")[0], 0
    limit = None if gap.noise is None else gap.noise * report.factor
    known = gap.error is not None and limit is not None
    off = f"off by {gap.error:.1e} of itself" if gap.error is not None else f"{gap.note}"
    if report.measured == "statistics" and gap.error is not None:
        off = f"off by {gap.error:.1e} of itself at least"
    return Finding(
        code=code,
        rule=rule,
        severity="error",
        name=name,
        call=number,
        message=f"the first that departs is {what}: {off}{other_weight(report, name)}",
        advice=LOOK if cause == "layer" else f"make both of one {cause}",
        value=gap.error if known else None,
        threshold=float(f"{limit:.1g}") if known and limit is not None else None,
        source=_SOURCES[report.measured] if known else None,
        cause=cause,
    )


_WHAT = {
    "input": "what its own code gives to",
    "output": "what it returns",
    "grad_output": "the gradient that its own code sends to",
    "gradient": "the gradient of `{path}`",
    "grad_input": "the gradient that it sends back",
}
_SOURCES = {
    "sketches": "twice the noise that was measured with the sketches",
    "statistics": "half of the digits",
}
