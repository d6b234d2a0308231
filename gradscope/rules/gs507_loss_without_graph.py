"""GS507: a number in the output that could be the model's loss, and has no graph."""

from __future__ import annotations

from gradscope.records.report import Report
from gradscope.rules._reading import complete
from gradscope.rules._rule import Findings, Limits, Rule

RULE = Rule(
    code="GS507",
    name="loss-without-graph",
    severity="warning",
    summary="the output holds a number that may be its loss but has no graph",
    what=(
        "Applies if the config names no loss. Finds numbers in the model's output, or in the "
        "mapping of a custom loss, that may be a loss or a part of it but have no graph. "
        "Backward then starts from another loss, without them. Numbers with other names "
        "(`accuracy`, `perplexity`), and numbers beside one called a loss, do not count. A "
        "`loss` without a graph is the error `no-grad-root`."
    ),
    why=(
        "A loss after `detach`, `.item()` or `no_grad` trains nothing. If another loss is used, "
        "there is no error."
    ),
    fix=(
        "If it is the loss, compute it without `detach`, `.item()` and `no_grad`, and check that "
        "`loss: output` runs. If it is a metric, name the right `loss`."
    ),
    sources=("PyTorch, autograd mechanics: locally disabling gradient computation",),
    # A script's own loss is no guess.
    runs=None,
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield at most one finding, on the model."""
    cut = report.run.without_graph
    if not cut or not complete(report):
        return
    names = ", ".join(f"`{name}`" for name in cut[:4]) + (", …" if len(cut) > 4 else "")
    has, it = ("has", "it") if len(cut) == 1 else ("have", "any of them")
    # The model's own loss is called by its place in the output: `output` is the sum of several.
    start = f"another loss, `{report.run.loss}`"
    if report.run.loss == "output" or not report.run.loss_inferred:
        start = "the sum of the others"
    elif report.run.loss.startswith("output"):
        start = f"`{report.run.loss}` only"
    elif report.run.loss == "sum":
        start = "a stand-in, the sum of the output"
    yield RULE.finding(
        "",
        f"{names} {has} no graph: backward cannot start from {it}. It started from {start}.",
        value=float(len(cut)),
    )
