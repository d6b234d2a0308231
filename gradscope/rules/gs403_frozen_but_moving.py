"""GS403: frozen layers whose statistics or dropout still act."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.modules import ModuleFacts
from gradscope.records.report import Finding, Report
from gradscope.rules._reading import Tree, ancestors
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import listed, others, plural

RULE = Rule(
    code="GS403",
    name="frozen-but-moving",
    severity="warning",
    summary="frozen layers whose BatchNorm statistics or dropout still act",
    what=(
        "Looks for modules in train mode whose parameters are all frozen, and in which a BatchNorm "
        "wrote to its running statistics or a dropout dropped. It speaks of part of the model "
        "only: where nothing trains at all there is nothing to say."
    ),
    why=(
        "`requires_grad = False` stops the weights and nothing else. The running statistics drift "
        "to the new data, so the frozen part is another one at each step and after training; "
        "dropout scatters features that were meant to be fixed."
    ),
    fix=(
        "Put the frozen part into eval mode, and again after every `model.train()`, which undoes "
        "it."
    ),
    sources=("pytorch/pytorch#86590", "pytorch/pytorch#66073"),
    runs=Runs(parameters="all"),
)
_NORMS = ("_BatchNorm",)
_DROPOUTS = ("_DropoutNd", "StochasticDepth", "DropPath")


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """One finding per frozen part and kind of movement, at the first module that moves."""
    # The totals speak of the whole model, whatever layers were selected.
    if not (report.totals.trainable or any(p.requires_grad for p in report.parameters)):
        return
    tree = Tree(report)
    moved: dict[str, list[ModuleFacts]] = {}
    dropped: dict[str, list[ModuleFacts]] = {}
    for facts in report.modules:
        if not (facts.training and facts.calls):
            continue
        if facts.written and _is(facts, _NORMS):
            part = _frozen_part(tree, facts.name)
            moved.setdefault(part, []).append(facts) if part is not None else None
        elif rate(facts):
            part = _frozen_part(tree, facts.name)
            dropped.setdefault(part, []).append(facts) if part is not None else None
    for part, norms in moved.items():
        yield _statistics(part, norms)
    for part, dropouts in dropped.items():
        yield _dropout(part, dropouts)


def rate(facts: ModuleFacts) -> float:
    """The share that a module drops, 0 where it drops nothing."""
    name = "p" if _is(facts, _DROPOUTS) or facts.type in _DROPOUTS else "dropout"
    value = facts.settings.get(name, facts.settings.get("drop_prob"))
    return float(value) if isinstance(value, int | float) else 0.0


def _statistics(part: str, norms: list[ModuleFacts]) -> Finding:
    first = norms[0]
    written = [name.rpartition(".")[2] for name in first.written]
    return RULE.finding(
        first.name,
        f"{_part(part, first)} is frozen, and in train mode: forward wrote to {listed(written)}"
        f"{others(len(norms) - 1, 'norm')}.",
        advice=_advice(part),
        value=float(len(norms)),
        cause="batch-norm",
    )


def _dropout(part: str, dropouts: list[ModuleFacts]) -> Finding:
    first = dropouts[0]
    return RULE.finding(
        first.name,
        f"{_part(part, first)} is frozen, and in train mode: "
        f"{plural(len(dropouts), 'module')} in it drop{'s' if len(dropouts) == 1 else ''} "
        f"activations ({rate(first):g} here).",
        advice=_advice(part),
        value=float(len(dropouts)),
        cause="dropout",
    )


def _advice(part: str) -> str:
    """The call that ends it, as Python writes the way to the part."""
    way = "".join(f"[{one}]" if one.isdigit() else f".{one}" for one in part.split(".") if one)
    return f"Call `model{way}.eval()`, and again after every `model.train()`, which undoes it."


def _part(part: str, first: ModuleFacts) -> str:
    return "it" if part == first.name else f"`{part}`, of which it is a part,"


def _frozen_part(tree: Tree, name: str) -> str | None:
    """The outermost module around one, or itself, that has parameters and none that trains."""
    return next(
        (above for above in reversed([name, *ancestors(name)])
         if above in tree.modules and tree.frozen(above)),
        None,
    )  # fmt: skip


def _is(facts: ModuleFacts, kinds: tuple[str, ...]) -> bool:
    return any(kind in facts.kinds for kind in kinds)
