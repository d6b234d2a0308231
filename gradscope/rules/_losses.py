"""Finds the inputs of losses: the links of the graph that end in a loss, each once."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.modules import Link, ModuleCall
from gradscope.records.report import Report
from gradscope.records.tensors import TensorStats

LOG_SOFTMAX = "LogSoftmaxBackward0"


def into_cross_entropy(report: Report) -> Iterator[Link]:
    """Yield the links that compute the scores of a cross entropy: log-softmax before NLL."""
    losses = {
        (link.name, link.call)
        for link in report.links
        if link.op == LOG_SOFTMAX and link.into.startswith("NllLoss")
    }
    for link in unique(report):
        if link.into == LOG_SOFTMAX and (link.into_name, link.into_call) in losses:
            yield link


def unique(report: Report) -> Iterator[Link]:
    """Yield each link of the graph once, in order."""
    yield from dict.fromkeys(report.links)


def output_of(report: Report, name: str | None, call: int | None) -> TensorStats | None:
    """Return the first output of a call; the model's output if the operation is in no module."""
    found: ModuleCall | None = None
    for one in report.calls:
        if one.name == (name or "") and (call is None or name is None or one.call == call):
            found = one
    return found.outputs[0].activation if found and found.outputs else None


def where(link: Link) -> str:
    """Return the module that the finding names: the operation's own, else the module that gets its
    result."""
    return link.name if link.name is not None else link.into_name or ""


def whose(link: Link) -> str:
    """Return the owner of the operation: the module, or the loss outside every module."""
    return "its" if link.name is not None else "the loss's own"
