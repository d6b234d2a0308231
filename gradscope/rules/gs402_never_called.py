"""GS402: a module that forward never ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gradscope.records.loop import LoopRecord
from gradscope.records.modules import ModuleFacts
from gradscope.records.report import Report
from gradscope.rules._loop import LoopFindings, at, concerned, enough, gathered, in_steps
from gradscope.rules._reading import Tree, asks_elsewhere, never_called, of_library
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS402",
    name="never-called",
    severity="error",
    summary="a module with trainable parameters never ran",
    what=(
        "Finds modules that forward never called and whose parameters got no gradient. Both must "
        "hold: some modules lend their weights without being called (the out_proj of "
        "nn.MultiheadAttention). It names the outermost such module, and the first of equal "
        "members of an nn.ModuleList. It runs forward again with other seeds and on the next "
        "batch: a module that runs then is an info. It is a warning if equal members of the list "
        "ran (experts chosen by the data), if an installed library calls the module, and in eval "
        "mode, which leaves out heads that only training uses."
    ),
    why=(
        "The layer has no effect: its parameters are stored, counted and saved, but never used "
        "or trained."
    ),
    fix="Call the module in `forward`, or remove it.",
    sources=("PyTorch, DistributedDataParallel: find_unused_parameters",),
    runs=Runs(loop=True),
)


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """Request the causes of missing gradients: a parameter may be used though its module never
    ran."""
    if never_called(report):
        yield "missing"
        if asks_elsewhere(report):
            yield "elsewhere"


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per outermost module, or one for equal modules of a list with the same
    result."""
    tree, idle = Tree(report), never_called(report)
    families = _families(tree, idle)
    alike: dict[tuple[str, str], list[str]] = {}
    for name in idle:
        family = families.get(name, [name])
        if set(idle[name]).intersection(report.elsewhere or ()):
            fate = "info"
        elif any(_ran(tree, member) for member in family):
            fate = "warning"
        else:
            fate = "error"
        alike.setdefault((family[0], fate), []).append(name)
    for (_, fate), names in alike.items():
        lost = sum(len(idle[name]) for name in names)
        around = {name.rpartition(".")[0] for name in names}
        lenient = fate == "error" and (report.run.mode == "eval" or of_library(report, around))
        severity = "warning" if lenient else fate
        yield RULE.finding(
            names[0],
            _message(names, lost, fate, tree, families.get(names[0], [])),
            severity=severity,
            advice=_ADVICE.get(fate),
            value=float(lost),
            cause="not-called",
        )


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each module that was never called, with gradients or without."""
    idle = [
        one
        for one in loop.parameters
        if {"idle", "no-gradient"} <= one.facts and not one.facts & {"untrained", "orphan"}
    ]
    for model, module, members in gathered([one for one in idle if enough(loop, one.steps)]):
        steps = max(one.steps for one in members)
        finding = RULE.finding(
            module or members[0].name,
            f"the module was never called {in_steps(steps, steps)}, and its "
            f"{plural(len(members), 'parameter')} got no gradient.",
            severity="warning" if module.rpartition(".")[2].isdigit() else None,
            value=float(len(members)),
            cause="not-called",
        )
        yield at(finding, loop, model=model, parameters=concerned(members, loop))


_LISTS = ("ModuleList",)  # what a ModuleDict has is asked for by name
_ADVICE = {
    "info": (
        "If chance or the data choose what runs, nothing needs to change. "
        "DistributedDataParallel then needs `find_unused_parameters=True`."
    ),
    "warning": (
        "If the data choose which of them run, nothing needs to change. DistributedDataParallel "
        "then needs `find_unused_parameters=True`. Otherwise call it in `forward`, or remove it."
    ),
}


def _message(names: Sequence[str], lost: int, fate: str, tree: Tree, family: Sequence[str]) -> str:
    around = names[0].rpartition(".")[0]
    more = f" and {plural(len(names) - 1, 'other', 'others')} like it in `{around}`"
    these = f"this module{more if len(names) > 1 else ''}"
    whose = "its" if len(names) == 1 else "their"
    without = f"{whose} {plural(lost, 'parameter')} got no gradient"
    if fate == "info":
        runs = "it does run" if len(names) == 1 else "they do run"
        message = f"forward left out {these} this time, so that {without}"
        return f"{message}; with another seed or batch {runs}."
    if fate == "warning":
        ran = sum(_ran(tree, member) for member in family)
        return f"forward left out {these}, and {without}; {plural(ran, 'equal module')} did run."
    return f"forward never ran {these}, and {without}."


def _families(tree: Tree, idle: Iterable[str]) -> dict[str, list[str]]:
    """Return the equal members of each list that contains a module: of one class, with equal
    parameters."""
    lists = {name.rpartition(".")[0] for name in idle}
    lists = {name for name in lists if name in tree.modules and _is_list(tree.modules[name])}
    alike: dict[object, list[str]] = {}
    for name, facts in tree.modules.items():
        if name and name.rpartition(".")[0] in lists:
            held = tuple(
                (one[len(name) :], tree.known[one].shape if one in tree.known else None)
                for one in tree.below(name)
            )
            alike.setdefault((name.rpartition(".")[0], facts.type, held), []).append(name)
    return {name: family for family in alike.values() for name in family}


def _is_list(facts: ModuleFacts) -> bool:
    return any(kind in _LISTS for kind in facts.kinds)


def _ran(tree: Tree, name: str) -> bool:
    """Return True if a module was called, or one of its parameters got a gradient."""
    below = [tree.known.get(one) for one in tree.below(name)]
    return bool(tree.modules[name].calls) or any(p and p.gradient is not None for p in below)
