"""Every column that a call's rows can show, and which of them are usual."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gradscope.records.report import Report
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.reporters.report.tables import statistics
from gradscope.reporters.report.tables.call_rows import CallRow, layer
from gradscope.reporters.report.tables.columns import Column, Row, Scalar, placed
from gradscope.typeset.numbers import amount, count, number, seconds, shape, size
from gradscope.typeset.tables import KEEP
from gradscope.typeset.text import plain

#: Needs no gradient; and: requires one, but none arrived.
NOT_NEEDED, MISSING = "–", "none"

USUAL = (
    *("layer", "type", "shape", "norm", "norm_ranks", "mean", "std", "zeros", "nonfinite"),
    *("grad_out", "grad_out_ranks", "grad_in", "grad_fn", "saved", "flops", "time"),
)
#: Columns that only their own run can fill.
MEASURED = ("flops", "time")
_STATISTICS = ("norm", "mean", "std", "min", "max", "zeros", "nan", "inf")
#: The columns of a row that stands for one tensor alone.
EXACT = (
    *("name", "aliases", "type", "call", "order", "training", "notes", "direction", "path"),
    *("requires_grad", "shape", "dtype", "numel", *_STATISTICS, "has_gradient"),
    *(f"grad_{name}" for name in _STATISTICS),
    *("grad_fn", "saved_bytes"),
)
#: The higher, the longer a column stays on a narrowing terminal.
_KEEP = {
    **{"layer": KEEP, "norm": KEEP - 1, "grad_out": KEEP, "nonfinite": KEEP},
    **{
        "grad_out_ranks": 75,
        "norm_ranks": 65,
        "grad_in": 70,
        "shape": 60,
        "zeros": 50,
        "type": 40,
        "mean": 30,
        "std": 20,
    },
    **{"time": 35, "flops": 33, "params": 32, "saved": 15, "grad_fn": 10},
}


def signs(
    report: Report, columns: Sequence[Column[Row]], rows: Sequence[Row], unneeded: str
) -> list[str]:
    """What the signs in the gradients' columns mean, as far as they occur."""
    gradients = [c for c in columns if c.key.startswith("grad") and c.key != "grad_fn"]
    texts = {column.text(row) for column in gradients for row in rows}
    lines = [f"{unneeded}: needs no gradient"] if unneeded in texts else []
    if MISSING in texts:
        lines.append(f"{MISSING}: {_why_missing(report)}")
    if any(" +" in text for text in texts):
        lines.append("+n nan, +n inf: elements that are NaN or Inf, left out of the norm")
    means = [column for column in columns if column.key.endswith("mean")]
    if any(column.text(row) == statistics.NOISE for column in means for row in rows):
        lines.append(f"{statistics.NOISE}: zero, to the rounding of the values")
    for column in columns:
        if column.key in MEASURED and all(column.value(row) is None for row in rows):
            command = f"gradscope inspect MODEL --columns +{column.key}"
            lines.append(f"{column.key}: not measured: `{command}` does")
        elif column.key in _MEANINGS:
            lines.append(_MEANINGS[column.key])
    return lines


#: What a column means that its name does not say.
_MEANINGS = {
    "params": "params: elements of the parameters of the module and of all below it",
    "flops": "flops: of forward, calls inside included: matrix products, convolutions, attention",
    "norm_ranks": "norm_ranks, grad_out_ranks: the least and the largest norm among the processes",
    "time": "time: of forward, calls inside included; the fastest of three runs without recording",
}


def _why_missing(report: Report) -> str:
    """The sentence that explains a gradient which is not there."""
    if report.error is not None and report.error.phase not in ("backward", "step"):
        return f"no gradient, as the run failed before backward, in {plain(report.error.phase)}"
    return "requires a gradient, but none arrived"


def _activation(row: CallRow) -> TensorStats | None:
    return row.tensor.activation if row.tensor else None


def _output(row: CallRow) -> TensorRecord | None:
    return row.tensor if row.direction == "output" else None


def _gradient_of(
    which: Callable[[CallRow], TensorRecord | None], prefix: str
) -> Iterator[Column[CallRow]]:
    """The statistics of one gradient; the sign for its absence says which absence it is."""

    def source(row: CallRow) -> TensorStats | None:
        tensor = which(row)
        return tensor.gradient if tensor else None

    def absent(row: CallRow) -> str:
        tensor = which(row)
        if tensor is None:
            return ""
        return MISSING if tensor.requires_grad else NOT_NEEDED

    return statistics.columns(prefix, source, absent, tone)


def tone(row: object, text: str) -> str:
    """How an activation's figure is coloured."""
    if "nan" in text or "inf" in text or text == MISSING:
        return "bad"
    return "warn" if text == "100 %" else ""


def gradient_tone(row: object, text: str) -> str:
    """The same for a gradient's norm, where exactly zero is news."""
    return "warn" if text == "0" else tone(row, text)


def as_gradient(norm: Column[Row], key: str) -> Column[Row]:
    """The norm's column under a shorter key, since it stands for the full gradient."""
    return replace(norm, key=key, tone=gradient_tone)


def _fact(
    key: str,
    value: Callable[[CallRow], Scalar],
    text: Callable[[CallRow], str] | None = None,
    *,
    number: bool = False,
    once: bool = True,
) -> Column[CallRow]:
    """A column that is no statistic; ``once`` leaves all but the call's first row empty."""

    def show(row: CallRow) -> str:
        if once and not row.first:
            return ""
        exact = value(row)
        if exact is None:
            return ""
        return text(row) if text else plain(_written(exact))

    ascending = not number or key in ("order", "call")
    return Column(key, value, show, value, right=number, ascending=ascending, wraps=key == "layer")


def _written(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _over_ranks(
    key: str, ends: Callable[[TensorRecord], tuple[float, float] | None]
) -> Column[CallRow]:
    """The least and the largest norm among the processes."""

    def of(row: CallRow) -> tuple[float, float] | None:
        return ends(row.tensor) if row.direction == "output" and row.tensor else None

    def width(row: CallRow) -> float | None:
        found = of(row)
        return None if found is None else found[1] - found[0]

    def text(row: CallRow) -> str:
        return "–".join(dict.fromkeys(map(number, of(row) or ())))

    return Column(key, width, text, width)


def _saved(row: CallRow) -> int | None:
    return row.call.saved_bytes


#: What a module has and a call takes: (column, its exact value, its text).
_COSTS: tuple[tuple[str, Callable[[CallRow], Scalar], Callable[[CallRow], str]], ...] = (
    ("params", lambda row: row.call.parameters, lambda row: count(row.call.parameters or 0)),
    ("flops", lambda row: row.call.flops, lambda row: amount(row.call.flops or 0)),
    ("time", lambda row: row.call.seconds, lambda row: seconds(row.call.seconds or 0.0)),
)


def _facts() -> Iterator[Column[CallRow]]:
    yield _fact("layer", layer, layer, once=False)
    yield _fact("name", lambda row: row.call.name)
    yield _fact("aliases", lambda row: ", ".join(row.call.aliases))
    yield _fact("type", lambda row: row.call.type)
    yield _fact("call", lambda row: row.call.call, number=True)
    yield _fact("order", lambda row: row.call.order, number=True)
    yield _fact("training", lambda row: row.call.training)
    yield _fact("notes", lambda row: ", ".join(row.call.notes))
    yield _fact("direction", lambda row: row.direction or None, once=False)
    yield _fact("path", lambda row: row.tensor.path if row.tensor else None, once=False)
    yield _fact(
        "requires_grad", lambda row: row.tensor.requires_grad if row.tensor else None, once=False
    )
    yield _fact(
        "has_gradient",
        lambda row: row.tensor.gradient is not None if row.tensor else None,
        once=False,
    )
    yield _fact("grad_fn", lambda row: row.tensor.grad_fn if row.tensor else None, once=False)


def _of_tensor() -> Iterator[Column[CallRow]]:
    def about(
        key: str,
        value: Callable[[TensorStats], Scalar],
        text: Callable[[TensorStats], str] | None = None,
    ) -> Column[CallRow]:
        def exact(row: CallRow) -> Scalar:
            stats = _activation(row)
            return None if stats is None else value(stats)

        def show(row: CallRow) -> str:
            stats = _activation(row)
            return "" if stats is None or text is None else text(stats)

        return _fact(key, exact, show if text else None, number=key == "numel", once=False)

    yield replace(
        about("shape", lambda stats: shape(stats.shape)),
        rank=lambda row: getattr(_activation(row), "numel", None),
        ascending=False,
    )
    yield about("dtype", lambda stats: stats.dtype)
    yield about("numel", lambda stats: stats.numel, lambda stats: count(stats.numel))


def _register() -> dict[str, Column[CallRow]]:
    activation = statistics.columns("", _activation, lambda row: "", tone)
    found = [*_facts(), *_of_tensor(), *activation]
    for which, prefix, short in (
        (_output, "grad_out_", "grad_out"),
        (lambda row: row.carried, "grad_in_", "grad_in"),
        (lambda row: row.tensor, "grad_", "grad_norm"),
    ):
        norm, *others = _gradient_of(which, prefix)
        found += [as_gradient(norm, short), *others]
    found.append(_over_ranks("norm_ranks", lambda tensor: tensor.norm_ranks))
    found.append(_over_ranks("grad_out_ranks", lambda tensor: tensor.gradient_ranks))
    found.append(
        _fact("saved", _saved, lambda row: size(_saved(row) or 0), number=True),
    )
    for key, value, text in _COSTS:
        found.append(_fact(key, value, text, number=True))
    found.append(_fact("saved_bytes", _saved, lambda row: count(_saved(row) or 0), number=True))
    return {column.key: placed(column, _KEEP, USUAL) for column in found}


COLUMNS = _register()
#: These say of one tensor what ``grad_out_…`` and ``grad_in_…`` say of a call: left out of "all".
DOUBLES = tuple(
    key
    for key in COLUMNS
    if key.startswith("grad_") and key[5:] in {*_STATISTICS, "zero_count", "nonfinite"}
)
