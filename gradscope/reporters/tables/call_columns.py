"""The calls of a report as rows, and every column that they can show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.reporters.header import label
from gradscope.reporters.tables.columns import (
    NOISE,
    Column,
    Row,
    Scalar,
    figure,
    number_remarks,
    over_ranks,
    placed,
    statistics_columns,
    words,
)
from gradscope.typeset.numbers import amount, count, seconds, shape, size
from gradscope.typeset.tables import KEEP
from gradscope.typeset.text import plain

REMARKS = {
    "pass-through": "the call returns its input untouched: grad_in is that tensor's total gradient",
    "shared-input": "one tensor is passed as several inputs: grad_in is the sum over them",
    "in-place-view": "an in-place write through a view hides this gradient",
    "inner-backward": "the loss uses a gradient taken through this call: grad_in is unknown",
    "recomputed": "checkpointed: gradients come from the second run of its forward, in backward",
    "no-grad": "ran while gradients were disabled",
    "other-thread": "ran in its own thread: grad_in is unknown",
    "compiled": "the model is compiled: grad_in and grad_fn are not recorded",
    "did-not-return": "was running when the run stopped",
}


@dataclass(frozen=True, slots=True)
class CallRow:
    """A tensor of a call, and the input whose gradient the row shows."""

    call: ModuleCall
    direction: str  # input | output | "" for a call without tensors
    tensor: TensorRecord | None
    carried: TensorRecord | None
    first: bool  # of its call: here are the call's own facts
    placed: bool  # the tensor's path belongs to the label
    mark: str = ""
    times: int = 1  # stands for that many calls
    last_call: int | None = None  # of one module, where the row stands for several of its calls

    @property
    def about(self) -> str:
        """The key of the call's row in a page."""
        return self.label if self.first else ""

    @property
    def label(self) -> str:
        """The module's name, and the number of its call."""
        return label(self.call.name, self.call.call, self.last_call)


Group = tuple[CallRow, ...]


def folded(call: ModuleCall) -> Group:
    """Yield a row for each output; inputs join the first row, or follow if several of them require
    gradients."""
    wanting = [i for i in call.inputs if i.requires_grad or i.gradient is not None]
    carried = None if len(wanting) > 1 else next(iter(wanting or call.inputs), None)
    placed = len(call.outputs) > 1
    rows = [
        CallRow(call, "output", tensor, None if i else carried, i == 0, placed)
        for i, tensor in enumerate(call.outputs)
    ] or [CallRow(call, "", None, carried, True, False)]
    if len(wanting) > 1:
        rows += [CallRow(call, "input", tensor, tensor, False, True) for tensor in wanting]
    return tuple(rows)


def expanded(call: ModuleCall) -> Group:
    """Yield a row for each input and each output; a call with neither has a row without a
    tensor."""
    rows = [CallRow(call, "input", tensor, tensor, True, True) for tensor in call.inputs]
    rows += [CallRow(call, "output", tensor, None, True, True) for tensor in call.outputs]
    return tuple(rows) or (CallRow(call, "", None, None, True, False),)


def with_marks(groups: Sequence[Group]) -> tuple[list[Group], list[str]]:
    """Return the groups with the marks of their footnotes, and the footnotes."""
    marks, notes = number_remarks([_remarks(group[0].call) for group in groups])
    pairs = zip(groups, marks, strict=True)
    return [(replace(group[0], mark=mark), *group[1:]) for group, mark in pairs], notes


def _remarks(call: ModuleCall) -> list[str]:
    remarks = [
        f"{note}: {REMARKS[note]}" if note in REMARKS else plain(note) for note in call.notes
    ]
    if call.aliases:
        remarks.append(f"shared module, also {', '.join(map(plain, call.aliases))}")
    return remarks


def layer(row: CallRow) -> str:
    """Return the row's label: the module, or the path of a further tensor, and the marks."""
    path = f" {plain(row.tensor.path)}" if row.tensor and row.tensor.path else ""
    arrow = "←" if row.direction == "input" else "→"
    if not row.first:
        return f"  {arrow}{path}"
    place = f" {arrow}{path}" if row.placed and path else ""
    times = f" ×{row.times}" if row.times > 1 else ""
    return row.label + times + place + (f" {row.mark}" * bool(row.mark))


#: Signs of a missing gradient: the tensor needs none; it requires one, but none arrived.
NOT_NEEDED, MISSING = "–", "none"

USUAL = (
    *("layer", "type", "shape", "norm", "norm_ranks", "mean", "std", "zeros", "nonfinite"),
    *("grad_out", "grad_out_ranks", "grad_in", "grad_fn", "saved", "flops", "time"),
)
#: Columns that need a separate run.
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
    """Return explanations of the signs that occur in the gradient columns."""
    gradients = [c for c in columns if c.key.startswith("grad") and c.key != "grad_fn"]
    texts = {column.text(row) for column in gradients for row in rows}
    lines = [f"{unneeded}: needs no gradient"] if unneeded in texts else []
    if MISSING in texts:
        lines.append(f"{MISSING}: {_why_missing(report)}")
    if any(" +" in text for text in texts):
        lines.append("+n nan, +n inf: elements that are NaN or Inf, left out of the norm")
    means = [column for column in columns if column.key.endswith("mean")]
    if any(column.text(row) == NOISE for column in means for row in rows):
        lines.append(f"{NOISE}: zero, within the rounding of the values")
    for column in columns:
        if column.key in MEASURED and all(column.value(row) is None for row in rows):
            command = f"gradscope inspect MODEL --columns +{column.key}"
            lines.append(f"{column.key}: not measured: `{command}` does")
        elif column.key in _MEANINGS:
            lines.append(_MEANINGS[column.key])
    return lines


#: Explanations of the columns whose name does not suffice.
_MEANINGS = {
    "params": "params: elements of the parameters of the module and of all below it",
    "flops": "flops: of forward, calls inside included: matrix products, convolutions, attention",
    "norm_ranks": "norm_ranks, grad_out_ranks: the least and the largest norm among the processes",
    "time": "time: of forward, calls inside included; the fastest of three runs without recording",
}


def _why_missing(report: Report) -> str:
    """Return the sentence that explains a missing gradient."""
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
    """Return the columns of one gradient's statistics; a sign marks the kind of a missing
    gradient."""

    def source(row: CallRow) -> TensorStats | None:
        tensor = which(row)
        return tensor.gradient if tensor else None

    def absent(row: CallRow) -> str:
        tensor = which(row)
        if tensor is None or ("compiled" in row.call.notes and tensor in row.call.inputs):
            return ""
        return MISSING if tensor.requires_grad else NOT_NEEDED

    return statistics_columns(prefix, source, absent, tone)


def tone(row: object, text: str) -> str:
    """Return the colour of an activation's figure."""
    if "nan" in text or "inf" in text or text == MISSING:
        return "bad"
    return "warn" if text == "100 %" else ""


def gradient_tone(row: object, text: str) -> str:
    """Return the colour of a gradient's norm, for which exactly zero is a warning."""
    return "warn" if text == "0" else tone(row, text)


def as_gradient(norm: Column[Row], key: str) -> Column[Row]:
    """Return the norm's column under a shorter key, because it represents the full gradient."""
    return replace(norm, key=key, tone=gradient_tone)


def _once(column: Column[CallRow]) -> Column[CallRow]:
    """Return the column, empty in all rows of a call except the first."""
    return replace(column, text=lambda row: column.text(row) if row.first else "")


def _facts() -> Iterator[Column[CallRow]]:
    """Yield the columns that are not statistics."""

    def of_tensor(
        key: str, value: Callable[[TensorRecord], Scalar], **more: Any
    ) -> Column[CallRow]:
        return words(key, lambda row: value(row.tensor) if row.tensor else None, **more)

    def numel(row: CallRow) -> int | None:
        return row.tensor.activation.numel if row.tensor else None

    yield words("layer", layer, layer, wraps=True)
    yield _once(words("name", lambda row: row.call.name))
    yield _once(words("aliases", lambda row: ", ".join(row.call.aliases)))
    yield _once(words("type", lambda row: row.call.type))
    yield _once(figure("call", lambda row: row.call.call, str, ascending=True))
    yield _once(figure("order", lambda row: row.call.order, str, ascending=True))
    yield _once(words("training", lambda row: row.call.training))
    yield _once(words("notes", lambda row: ", ".join(row.call.notes)))
    yield words("direction", lambda row: row.direction or None)
    yield of_tensor("path", lambda tensor: tensor.path)
    yield of_tensor("requires_grad", lambda tensor: tensor.requires_grad)
    yield of_tensor("has_gradient", lambda tensor: tensor.gradient is not None)
    yield of_tensor("grad_fn", lambda tensor: tensor.grad_fn)
    sizes = of_tensor("shape", lambda tensor: shape(tensor.activation.shape), ascending=False)
    yield replace(sizes, rank=numel)
    yield of_tensor("dtype", lambda tensor: tensor.activation.dtype)
    yield figure("numel", numel, count)


def _costs() -> Iterator[Column[CallRow]]:
    """Yield the columns of costs: ranges over ranks, a module's parameters, a call's resources."""

    def ranks(row: CallRow, key: str) -> tuple[float, float] | None:
        found: tuple[float, float] | None = getattr(_output(row), key, None)
        return found

    yield over_ranks("norm_ranks", partial(ranks, key="norm_ranks"))
    yield over_ranks("grad_out_ranks", partial(ranks, key="gradient_ranks"))
    yield _once(figure("saved", lambda row: row.call.saved_bytes, size))
    yield _once(figure("params", lambda row: row.call.parameters, count))
    yield _once(figure("flops", lambda row: row.call.flops, amount))
    yield _once(figure("time", lambda row: row.call.seconds, seconds))
    yield _once(figure("saved_bytes", lambda row: row.call.saved_bytes, count))


def _register() -> dict[str, Column[CallRow]]:
    activation = statistics_columns("", _activation, lambda row: "", tone)
    found = [*_facts(), *activation]
    for which, prefix, short in (
        (_output, "grad_out_", "grad_out"),
        (lambda row: row.carried, "grad_in_", "grad_in"),
        (lambda row: row.tensor, "grad_", "grad_norm"),
    ):
        norm, *others = _gradient_of(which, prefix)
        found += [as_gradient(norm, short), *others]
    found += _costs()
    return {column.key: placed(column, _KEEP, USUAL) for column in found}


COLUMNS = _register()
#: Columns that give for one tensor what ``grad_out_…`` and ``grad_in_…`` give for a call; "all"
#: leaves them out.
DOUBLES = tuple(
    key
    for key in COLUMNS
    if key.startswith("grad_") and key[5:] in {*_STATISTICS, "zero_count", "nonfinite"}
)
