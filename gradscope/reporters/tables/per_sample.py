"""Makes a table of the gradient of each sample, the largest share first."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.full_samples import GradientNoise, PerSample, SampleGradient
from gradscope.records.report import Report
from gradscope.reporters.header import label, some_names
from gradscope.reporters.views import View
from gradscope.typeset.numbers import NOT_THERE, number, plural
from gradscope.typeset.tables import KEEP, Cell, Heading, Table

#: Number of rows, unless a view has another.
_ROWS = 16
_NAMES = 4
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
    legend = tuple(_legend(found, len(rows)))
    return Table("samples", _COLUMNS, rows, "each sample by itself", legend)


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


def _legend(found: PerSample, shown: int) -> Iterator[str]:
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
        names = some_names([label(name) for name in found.mixing], _NAMES)
        yield f"samples are not independent: {names} normalise over the batch"
    for noise in found.noise[:1]:
        yield _noise(noise, count)


def _noise(noise: GradientNoise, batch: int) -> str:
    """Return the noise scale, with its meaning for the batch's size."""
    high = "or more" if noise.high is None else f"to {noise.high:.0f}"
    interval = f"95 % interval: {noise.low:.0f} {high}"
    if noise.value is None:
        return f"noise scale: unknown ({interval}); {plural(batch, 'sample')} are too few"
    said = f"noise scale: {noise.value:.0f} samples ({interval})"
    if noise.low > batch:
        return f"{said}: a batch larger than {batch} would still pay"
    if noise.high is not None and noise.high < batch:
        return f"{said}: a batch larger than {batch} gains little"
    return said
