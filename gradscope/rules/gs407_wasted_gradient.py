"""GS407: backward through frozen layers upstream of every trainable one."""

from __future__ import annotations

from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.rules._reading import Tree, ancestors, complete
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS407",
    name="wasted-gradient",
    severity="info",
    summary="backward runs through frozen layers upstream of the last trainable one",
    what=(
        "Finds frozen layers that ran before every trainable layer, and whose outputs still got "
        "a gradient: the input, or an embedding's output, requires one."
    ),
    why=(
        "Backward through these layers costs about twice the time of their forward and keeps "
        "their activations in memory. No step uses that gradient. It is intended if you need the "
        "gradient of the input, or with reentrant checkpointing."
    ),
    fix=(
        "Do not set `requires_grad` on the inputs (`enable_input_require_grads` does so), or run "
        "the frozen part under `torch.no_grad()`."
    ),
    sources=("PyTorch, autograd mechanics: setting requires_grad",),
    runs=Runs(always=True, per="model", parameters="all", calls=True),
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding for all of these layers, at the outermost frozen module that ran first."""
    tree = Tree(report)
    first = _first_training(report, tree)
    if not complete(report) or first is None:
        return
    wasted = [
        call
        for call in sorted(report.calls, key=lambda call: call.order)
        if call.order < first and _own(tree, call) == {False} and _has_gradient(call)
    ]
    if not wasted:
        return
    name = wasted[0].name
    around = [a for a in ancestors(name) if a in tree.modules and tree.frozen(a)]
    yield RULE.finding(
        around[-1] if around else name,
        f"backward runs through {plural(len({call.name for call in wasted}), 'frozen layer')} "
        "upstream of the last trainable one.",
        value=float(len(wasted)),
    )


def _first_training(report: Report, tree: Tree) -> int | None:
    """Return the order of the first call of a module with a trainable parameter.

    None if a trainable parameter is used outside a call of its owner, because its position is then
    unknown.
    """
    orders: dict[str, int] = {}
    for call in report.calls:
        orders[call.name] = min(call.order, orders.get(call.name, call.order))
    found = []
    for facts in tree.modules.values():
        known = [tree.known.get(name) for name in facts.parameters]
        if any(p is None for p in known):
            return None
        if any(p.requires_grad and p.gradient for p in known if p):
            if facts.name not in orders:
                return None
            found.append(orders[facts.name])
    return min(found, default=None)


def _own(tree: Tree, call: ModuleCall) -> set[bool]:
    """Return whether the module's own parameters train: {False} if it has some and none does."""
    facts = tree.modules.get(call.name)
    names = facts.parameters if facts else ()
    return {tree.known[name].requires_grad for name in names if name in tree.known}


def _has_gradient(call: ModuleCall) -> bool:
    return any(output.gradient is not None for output in call.outputs)
