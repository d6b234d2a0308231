"""Tables of experiments: the gradient of each sample, micro-batches, several losses, interventions,
gradient checks; and the noise scale of a gradient in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gradscope.records.full_samples import (
    AccumulatedLayer,
    Accumulation,
    AccumulationCause,
    Change,
    GradientCheck,
    GradientNoise,
    PerSample,
    SampleGradient,
    SharedLayer,
    TaskGradients,
)
from gradscope.records.report import Report
from gradscope.records.training import RunNoise
from gradscope.reporters.header import label, some_names
from gradscope.reporters.views import View
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import NOT_THERE, count, number, plural
from gradscope.typeset.tables import KEEP, Cell, Heading, Table, of_columns, of_rows
from gradscope.typeset.text import plain

#: Number of rows, unless a view has another.
_ROWS = 16
_NAMED = 4
_COLUMNS = (
    Heading("sample"),
    Heading("loss", keep=KEEP - 10),
    Heading("grad norm"),
    Heading("share"),
    Heading("cosine", keep=KEEP - 20),
    Heading("largest in", right=False, wraps=True, keep=KEEP - 30),
)


def per_sample(report: Report, view: View) -> Table | None:
    """Return the table of samples, the largest share of the gradient first, of either sign."""
    found = report.per_sample
    if found is None:
        return None
    most = _ROWS if view.top is None else view.top
    ordered = sorted(found.samples, key=_weight, reverse=True)
    rows = tuple(_row(sample) for sample in ordered[:most])
    legend = tuple(_shares_legend(found, len(rows)))
    return Table("samples", _COLUMNS, rows, "the largest share first", legend)


def _weight(sample: SampleGradient) -> float:
    return float("inf") if sample.share is None else abs(sample.share)


def _row(sample: SampleGradient) -> tuple[Cell, ...]:
    layers = ", ".join(f"{label(name)} {share:.0%}" for name, share in sample.layers)
    cosine = NOT_THERE if sample.cosine is None else f"{sample.cosine:.3f}"
    return (
        Cell(str(sample.index)),
        Cell(number(sample.loss)),
        Cell(number(sample.norm)),
        Cell(NOT_THERE if sample.share is None else f"{sample.share:.1%}"),
        Cell(cosine),
        Cell(layers or NOT_THERE),
    )


def _shares_legend(found: PerSample, shown: int) -> Iterator[str]:
    count = len(found.samples)
    if shown < count:
        yield f"{shown} of {plural(count, 'sample')}, the largest share first"
    yield "share: of the batch's gradient, along its direction; all shares add up to 100 %"
    yield "cosine: with the sum of all other samples' gradients"
    if found.rest and found.norm and found.rest > 1e-3 * found.norm:
        yield (
            f"{number(found.rest)} of the gradient comes from no sample, such as a penalty on "
            "weights"
        )
    if found.mixing:
        names = some_names([label(name) for name in found.mixing], _NAMED)
        yield f"samples are not independent: {names} normalise over the batch"
    for noise in found.noise[:1]:
        yield noise_scale(noise, count, plural(count, "sample"))


#: Number of rows shown by default, and of names in a list.
_EDITS, _LAYERS, _NAMES = 20, 10, 4


def interventions(report: Report, view: View) -> Table | None:
    """Return a row for each changed tensor; with ``top``, those that changed most."""
    found: Sequence[Change] = report.interventions
    if not found:
        return None
    if view.top is not None:
        found = sorted(found, key=_size, reverse=True)
    shown = found[: _EDITS if view.top is None else view.top]
    left = f"{len(shown)} of {plural(len(found), 'tensor')} shown" * (len(shown) < len(found))
    columns: list[tuple[Heading, Callable[[Change], str | Cell]]] = [
        (Heading("layer", False, wraps=True), _changed),
        (Heading("at", False, KEEP - 10), lambda change: plain(change.at)),
        (Heading("do", False, KEEP - 5), _done),
        (Heading("before"), lambda change: number(getattr(change.before, "norm", None))),
        (Heading("after"), lambda change: number(getattr(change.after, "norm", None))),
        (Heading("factor", keep=KEEP - 8), lambda change: number(change.factor)),
        (
            Heading("note", False, KEEP - 30, prose=True),
            lambda c: Cell(plain(c.note or ""), "warn"),
        ),
    ]
    legend = ("factor: the norm after, divided by the norm before",)
    return of_rows("interventions", shown, columns, caption=left, legend=legend)


def _size(change: Change) -> float:
    """Return the distance of a factor from 1; -1 without a factor."""
    return -1.0 if change.factor is None else abs(change.factor - 1)


def _changed(change: Change) -> str:
    arrow = " ← " if change.at == "grad_input" else " → "
    path = f"{arrow}{plain(change.path)}" if change.path else ""
    return f"{label(change.name, change.call or 0)}{path}"


def _done(change: Change) -> str:
    return plain(change.do) + (f" {change.value:g}" if change.value is not None else "")


def accumulation(report: Report, view: View) -> Table | None:
    """Return the layers whose gradients differ, the largest difference first, with every cause
    below."""
    found = report.accumulation
    if found is None or found.equal:
        return None
    differ = [layer for layer in found.layers if layer.error > found.tolerance]
    differ.sort(key=lambda layer: -layer.error)
    columns: list[tuple[Heading, Callable[[AccumulatedLayer], str | Cell]]] = [
        (Heading("layer", False, wraps=True), lambda layer: label(layer.name)),
        (Heading("parameters", keep=KEEP - 20), lambda layer: count(layer.parameters)),
        (Heading("difference"), lambda layer: Cell(number(layer.error), "bad")),
        (Heading("because of", False, prose=True), lambda one: ", ".join(map(plain, one.causes))),
    ]
    shown = differ[: _LAYERS if view.top is None else view.top]
    caption = f"{len(differ)} of {plural(len(found.layers), 'layer')} differ"
    legend = tuple(_causes(found))
    return of_rows("accumulation", shown, columns, caption=caption, legend=legend)


def adds_up(report: Report) -> Line | None:
    """Return the line on micro-batches that must equal the batch; None without the test."""
    found = report.accumulation
    if found is None:
        return None
    sizes = f"of {found.sizes[0]}" if len(set(found.sizes)) == 1 else "of " + _listed(found)
    parts = f"{plural(len(found.sizes), 'micro-batch', 'micro-batches')} {sizes}"
    measured = f"(largest relative difference {number(found.error)}, in {plain(found.dtype)})"
    if found.equal:
        text = f"the gradients of {parts} add up to those of the batch {measured}"
        return Line(text, "accumulation:", "good")
    text = f"the gradients of {parts} do not add up to those of the batch {measured}"
    return Line(text, "accumulation:", "warn")


def _listed(found: Accumulation) -> str:
    return f"{', '.join(map(str, found.sizes[:-1]))} and {found.sizes[-1]}"


def _causes(found: Accumulation) -> Iterator[str]:
    yield "difference: of the gradients, relative to that of the full batch"
    for cause in found.causes:
        yield f"{cause.kind}: {plain(cause.message)}{_names(cause)}; {plain(cause.advice)}"


def _names(cause: AccumulationCause) -> str:
    return f" ({some_names(map(label, cause.names), _NAMES)})" if cause.names else ""


def tasks(report: Report, view: View) -> Table | None:
    """Return norms by loss and cosines by pair; with ``top``, the layers where losses disagree
    most."""
    found = report.tasks
    if found is None:
        return None
    names = [plain(name) for name in found.tasks]
    layers = list(found.layers)
    if view.top is not None:
        layers = sorted(layers, key=_worst)[: view.top]
    layers = [found.total, *layers]
    columns: list[tuple[Heading, list[str] | list[Cell]]] = [
        (
            Heading("layer", False, wraps=True),
            ["all that is shared" if one.name is None else label(one.name) for one in layers],
        ),
        (Heading("parameters", keep=KEEP - 40), [count(one.parameters) for one in layers]),
    ]
    for i, name in enumerate(names):
        heading = Heading(f"grad {name}", keep=KEEP - 10 - i)
        columns.append((heading, [number(one.norms[i]) for one in layers]))
    for i, (a, b) in enumerate(found.pairs):
        heading = Heading(f"cos {names[a]}·{names[b]}", keep=KEEP - 20 - i)
        columns.append((heading, [_cosine(one.cosines[i]) for one in layers]))
    about = {"caption": "each loss separately", "legend": tuple(_legend(found))}
    return of_columns("tasks", columns, **about)


def _worst(layer: SharedLayer) -> float:
    return min((cosine for cosine in layer.cosines if cosine is not None), default=2.0)


def _cosine(cosine: float | None) -> Cell:
    """Return a cosine's cell; below zero it has the colour of a warning, because a step for one
    loss undoes the other's."""
    if cosine is None:
        return Cell(NOT_THERE)
    return Cell(f"{cosine:.3f}", "warn" if cosine < 0 else "")


def _legend(found: TaskGradients) -> Iterator[str]:
    if not found.layers:
        yield "the losses share no parameter"
    yield "grad: norm of that loss's gradient at the parameters that several losses reach"
    yield "cos: 1 same direction, 0 orthogonal, below 0 opposed"
    if found.alone:
        named = [f"{name or 'the model'} ({task})" for name, task in found.alone]
        yield f"reached by one loss only: {some_names(named, _NAMES)}"


_TONES = {"right": "good", "wrong": "bad", "non-deterministic": "bad", "kink": "warn"}
_DIRECTION = (
    "backward, differences: the derivative in one random direction, by the layer's backward and by"
    " finite differences, in float64"
)


def gradient_checks(report: Report, view: View) -> Table | None:
    """Return a row for each derivative that was checked."""
    checks = report.gradient_checks
    if not checks:
        return None
    counts = Counter(check.verdict for check in checks)
    caption = ", ".join(f"{many} {verdict}" for verdict, many in counts.items())
    columns: list[tuple[Heading, Callable[[GradientCheck], str | Cell]]] = [
        (Heading("layer", False, wraps=True), lambda check: label(check.name, check.call)),
        (Heading("type", False, KEEP - 30), lambda check: plain(check.type)),
        (Heading("by", False), lambda check: plain(check.input) or NOT_THERE),
        (
            Heading("verdict", False),
            lambda check: Cell(plain(check.verdict), _TONES.get(check.verdict, "warn")),
        ),
        (Heading("backward", keep=KEEP - 10), lambda check: number(check.backward)),
        (Heading("differences", keep=KEEP - 10), lambda check: number(check.differences)),
        (Heading("note", False, KEEP - 8, prose=True), lambda check: plain(check.note or "")),
    ]
    about = {"caption": plain(caption), "legend": (_DIRECTION,)}
    return of_rows("gradient checks", checks, columns, **about)


def noise_scale(noise: GradientNoise | RunNoise, batch: int, seen: str) -> str:
    """Return the noise scale, with its meaning for the batch's size.

    Args:
        noise: the estimate.
        batch: the number of samples in the batch.
        seen: the source of the estimate, such as "6 samples".
    """
    high = "or more" if noise.high is None else f"to {noise.high:.0f}"
    interval = f"95 % interval: {noise.low:.0f} {high}"
    if noise.value is None:
        return f"noise scale: unknown ({interval}); {seen} are too few"
    estimate = f"noise scale: {noise.value:.0f} samples ({interval})"
    if noise.low > 4 * batch:
        return f"{estimate}: a batch 4 times as large as {batch} would still pay"
    if noise.low > batch:
        return f"{estimate}: a batch larger than {batch} would still pay"
    if noise.high is not None and noise.high < batch:
        return f"{estimate}: a batch larger than {batch} gains little"
    return estimate


def noise_of_run(noise: RunNoise) -> str:
    """Return the noise scale of a run, and the parts of the gradient that it comes from."""
    parts = "rank" if noise.by_ranks else "micro-batch"
    several = plural(noise.parts, parts, "ranks" if noise.by_ranks else "micro-batches")
    seen = f"{plural(noise.steps, 'sampled step')} with {several} of {count(noise.size)}"
    estimate = noise_scale(noise, noise.size * noise.parts, seen)
    return estimate if noise.value is None else f"{estimate}; from {seen}"
