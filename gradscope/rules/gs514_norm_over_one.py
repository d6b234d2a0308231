"""GS514: a normalization over one number."""

from __future__ import annotations

import math

from gradscope.records.report import Report
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.typeset.numbers import shape

RULE = Rule(
    code="GS514",
    name="norm-over-one",
    severity="error",
    summary="a LayerNorm or GroupNorm over a single number gives 0 for every input",
    what=(
        "Reads the shapes of LayerNorm, RMSNorm and GroupNorm calls. It fires if each normalized "
        "group has one number: a last axis of size one, or as many groups as channels and no "
        "further axes."
    ),
    why=(
        "A number minus its own mean is 0; divided by its own size (RMSNorm) it is 1 or -1. The "
        "output no longer depends on the input, and no gradient passes."
    ),
    fix="Normalize over the axis of the features: check `normalized_shape`, or drop the layer.",
    sources=(
        "PyTorch, torch.nn.LayerNorm: the mean is taken over the last dimensions of "
        "normalized_shape",
        "Ba et al. 2016, Layer normalization (arXiv 1607.06450)",
    ),
    runs=Runs(per="model", parameters="all", calls=True),
    explains=("GS103", "GS513", "GS603", "GS613", "GS821"),
)
_LAST = ("LayerNorm", "RMSNorm")


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding for each module, at its first call."""
    kinds = {one.name: one.kinds for one in report.modules}
    groups = {one.name: one.settings.get("num_groups") for one in report.modules}
    sizes = {one.name: one.shape for one in report.parameters}
    done: set[str] = set()
    for call in report.calls:
        if call.name in done or not call.inputs:
            continue
        given = call.inputs[0].activation.shape
        of = kinds.get(call.name, ())
        weight = sizes.get(f"{call.name}.weight", ())
        one = any(kind in of for kind in _LAST) and weight == (1,) and given[-1:] == (1,)
        if one or ("GroupNorm" in of and groups.get(call.name) == math.prod(given[1:])):
            done.add(call.name)
            yield RULE.finding(
                call.name,
                f"this {call.type} normalizes over a single number of its input "
                f"{shape(given)}: its output is the same for every input.",
                call=call.call,
                value=1.0,
            )
