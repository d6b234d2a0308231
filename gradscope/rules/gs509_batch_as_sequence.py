"""GS509: a sequence layer, or a layer of positions, takes the batch for the sequence."""

from __future__ import annotations

from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.rules._words import others

RULE = Rule(
    code="GS509",
    name="batch-as-sequence",
    severity="warning",
    summary="a layer with batch_first=False runs along the batch and mixes samples",
    what=(
        "Compares the axes of the model's input and output with those of recurrent and attention "
        "layers with `batch_first=False`. It fires if such a layer gets [N, T, …] as the model "
        "does, and the model gives one result for each of the N: the layer has taken N for time. "
        "Positions that are added as `x + self.pe[:x.size(0)]` are judged in the same way."
    ),
    why=(
        "The layer steps through the samples of the batch, not along the sequence: each sample "
        "sees the ones before it. PyTorch's default is the sequence first."
    ),
    fix="Build the layer with `batch_first=True`, or transpose before and after it.",
    sources=(
        "PyTorch, torch.nn.LSTM, torch.nn.TransformerEncoderLayer: batch_first defaults to False",
        "discuss.pytorch.org: LSTM batch_first, could someone explain batch_first=True",
    ),
    # The last batch of an epoch may have as many samples as a sequence has steps.
    runs=Runs(per="model", parameters="all", calls=True),
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding for the model, at the first such layer."""
    layers = {one.name for one in report.modules if one.settings.get("batch_first") is False}
    tables = {one.name: one.rows for one in report.modules if one.rows}
    outer = min(report.calls, key=lambda call: call.order, default=None)
    if outer is None or outer.name or not (outer.inputs and outer.outputs):
        return
    if not layers and not tables:
        return
    given, gave = outer.inputs[0].activation.shape, outer.outputs[0].activation.shape
    if len(given) < 2 or given[0] == given[1] or given[1] < 2 or not gave:
        return
    if gave[0] != given[0] or given[1] in gave[1:]:
        return
    batch, length = given[:2]
    for call in report.calls:
        if call.name in tables and _takes(call, given):
            table = tables[call.name]
            yield RULE.finding(
                call.name,
                f"this {call.type} gets [{batch}, {length}, …] and adds row i of `{table}` to "
                f"sample i: all {length} places of a sequence get the same row. The model gives "
                f"one result for each of the {batch}, so this axis is the batch.",
                call=call.call,
                advice=f"Add `self.{table}[:x.size(1)].transpose(0, 1)`, one row for each place.",
                cause="positions",
            )
            return
    other = {one.type for one in report.modules if one.settings.get("batch_first") is True}
    found = [call for call in report.calls if call.name in layers and _takes(call, given)]
    found = [call for call in found if call.type not in other]  # whoever wrote it knows the switch
    if found:
        first = min(found, key=lambda call: call.order)
        yield RULE.finding(
            first.name,
            f"this {first.type} has batch_first=False and gets [{batch}, {length}, …]: it takes "
            f"the {batch} samples of the batch for a sequence{others(len(found) - 1, 'layer')}. "
            f"The model gives one result for each of the {batch}, so this axis is the batch.",
            call=first.call,
            advice=f"Build it with `batch_first=True`, or give it [{length}, {batch}, …].",
        )


def _takes(call: ModuleCall, given: tuple[int, ...]) -> bool:
    """Return True if a layer's input has the first two axes of the model's input."""
    shapes = [one.activation.shape for one in call.inputs[:1]]
    return any(len(shape) == 3 and tuple(shape[:2]) == tuple(given[:2]) for shape in shapes)
