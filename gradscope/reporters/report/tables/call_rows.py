"""The calls of a report as rows: which tensors are in them, and how they are labelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradscope.records.modules import ModuleCall
from gradscope.records.tensors import TensorRecord
from gradscope.reporters.labels import label
from gradscope.reporters.report.tables.footnotes import number_remarks
from gradscope.typeset.text import plain

REMARKS = {
    "pass-through": "the call returns its input untouched: grad_in is that tensor's total gradient",
    "shared-input": "one tensor stands at several inputs: grad_in is the sum over them",
    "in-place-view": "a write in place through a view hides the gradient that is missing here",
    "inner-backward": "the loss uses a gradient taken through this call: grad_in is unknown",
    "recomputed": "checkpointed: gradients come from the second run of its forward, in backward",
    "no-grad": "ran while gradients were disabled",
    "other-thread": "ran in its own thread: grad_in is unknown",
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
        """The call, once: what a page finds the row by."""
        return self.label if self.first else ""

    @property
    def label(self) -> str:
        """The module, and which of its calls."""
        return label(self.call.name, self.call.call, self.last_call)


Group = tuple[CallRow, ...]


def folded(call: ModuleCall) -> Group:
    """A row for each output; inputs join the first, or follow if several of them want gradients."""
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
    """A row for each input and each output; one without a tensor where a call has neither."""
    rows = [CallRow(call, "input", tensor, tensor, True, True) for tensor in call.inputs]
    rows += [CallRow(call, "output", tensor, None, True, True) for tensor in call.outputs]
    return tuple(rows) or (CallRow(call, "", None, None, True, False),)


def with_marks(groups: Sequence[Group]) -> tuple[list[Group], list[str]]:
    """The groups with their footnotes' marks, and the footnotes."""
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
    """The row's label: the module, or the place of a further tensor, and the marks."""
    path = f" {plain(row.tensor.path)}" if row.tensor and row.tensor.path else ""
    arrow = "←" if row.direction == "input" else "→"
    if not row.first:
        return f"  {arrow}{path}"
    place = f" {arrow}{path}" if row.placed and path else ""
    times = f" ×{row.times}" if row.times > 1 else ""
    return row.label + times + place + (f" {row.mark}" * bool(row.mark))
