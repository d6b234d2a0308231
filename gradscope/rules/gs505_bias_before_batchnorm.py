"""GS505: a bias that the next BatchNorm takes away."""

from __future__ import annotations

from gradscope.records.modules import Link
from gradscope.records.report import Report
from gradscope.rules._reading import Tree, unique
from gradscope.rules._rule import Findings, Limits, Rule, Runs

RULE = Rule(
    code="GS505",
    name="bias-before-batchnorm",
    severity="info",
    summary="a bias is cancelled by the BatchNorm after it",
    what=(
        "Finds, in the autograd graph, linear or convolutional layers with a trainable bias "
        "whose output goes only into a BatchNorm in train mode."
    ),
    why=(
        "The norm subtracts the mean, and the bias with it. The bias's gradient is rounding "
        "noise, and it costs memory and optimizer state. It does no harm."
    ),
    fix="Build the layer with `bias=False`; the norm has its own bias.",
    sources=("Ioffe and Szegedy 2015, Batch normalization, section 3.2",),
    runs=Runs(samples=1, parameters="all", calls=True),
)
_LAYERS = (
    "ConvolutionBackward",
    "AddmmBackward",
    "SlowConv",
    "MkldnnConvolution",
    "LinearBackward",
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per bias."""
    tree = Tree(report)
    takers: dict[str, list[Link]] = {}
    for link in unique(report):
        if link.name is not None and link.op.startswith(_LAYERS):
            takers.setdefault(link.name, []).append(link)
    for name, found in takers.items():
        bias = tree.known.get(f"{name}.bias" if name else "bias")
        alone = not any(link.shared or "BatchNorm" not in link.into for link in found)
        norms = {link.into_name for link in found}
        if bias is None or not bias.requires_grad or not alone or not _all_train(tree, norms):
            continue
        by = ", ".join(f"`{norm}`" for norm in sorted(norm for norm in norms if norm))
        yield RULE.finding(
            bias.name, f"the batch norm after it{f', {by},' if by else ''} subtracts it."
        )


def _all_train(tree: Tree, names: set[str | None]) -> bool:
    """Return True if every norm uses batch statistics; a norm outside of modules counts as one that
    does."""
    facts = [tree.modules.get(name) if name is not None else None for name in names]
    return all(one is None or one.training for one in facts)
