"""GS403: frozen layers whose statistics or dropout still act."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

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
        "only: where nothing trains at all there is nothing to say. It is only worth knowing where "
        "gradients go through the frozen part to what trains in front of it: dropout beside "
        "adapters, and the statistics of a discriminator in its generator's step. So it is with a "
        "generator in its discriminator's step, where all that trains sees other inputs too."
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
    """One finding per kind of frozen part and of movement, at the first module that moves."""
    # The totals speak of the whole model, whatever layers were selected.
    if not (report.totals.trainable or any(p.requires_grad for p in report.parameters)):
        return
    tree = Tree(report)
    moved: list[_Moving] = []
    dropped: list[_Moving] = []
    for facts in report.modules:
        if facts.training and facts.calls:
            written = facts.written and _is(facts, _NORMS)
            part = _frozen_part(tree, facts.name) if written or rate(facts) else None
            if part is not None:
                (moved if written else dropped).append(_Moving(facts, part))
    train = _Training(report)
    critics = [one for one in moved if train.front_only(one.facts.name)]
    makers = [one for one in moved if train.more_often(one.facts)]
    for group in _alike([one for one in moved if one not in critics and one not in makers]):
        yield _statistics(group)
    if critics:
        yield _statistics(critics, *_CRITIC)
    if makers:
        yield _statistics(makers, *_MAKER)
    between = next((one for one in dropped if train.in_front(one.facts.name)), None)
    if between is not None:
        yield _between(between.facts, len(dropped))
        return
    for group in _alike(dropped):
        yield _dropout(group)


@dataclass(frozen=True, slots=True)
class _Moving:
    """A module that moves, and the outermost frozen part that it belongs to."""

    facts: ModuleFacts
    part: str


class _Training:
    """Where in forward something trains, as far as the record holds the calls."""

    def __init__(self, report: Report) -> None:
        owners = {p.name.rpartition(".")[0] for p in report.parameters if p.requires_grad}
        self._order = {call.name: call.order for call in reversed(report.calls)}
        self._trains = [self._order[name] for name in owners if name in self._order]
        self._through = {c.name for c in report.calls if any(t.requires_grad for t in c.inputs)}
        self._calls = [facts.calls for facts in report.modules if facts.name in owners]

    def in_front(self, name: str) -> bool:
        """Whether something that trains runs in front of a module: gradients go through it."""
        return name in self._through and min(self._trains, default=math.inf) < self._order[name]

    def more_often(self, facts: ModuleFacts) -> bool:
        """Whether no gradient goes through a module, and all that trains runs more often than it.

        So it is with a generator in its discriminator's step, which sees real samples too.
        """
        known = facts.name in self._order and facts.name not in self._through
        return known and min(self._calls, default=0) > facts.calls

    def front_only(self, name: str) -> bool:
        """Whether all that trains runs in front, as with a discriminator in a generator's step."""
        return self.in_front(name) and max(self._trains) < self._order[name]


def _alike(moving: list[_Moving]) -> Iterator[list[_Moving]]:
    """Those of parts whose names differ in numbers alone, as blocks of one kind do."""
    groups: dict[str, list[_Moving]] = {}
    for one in moving:
        groups.setdefault(re.sub(r"\d+", "#", one.part), []).append(one)
    yield from groups.values()


def rate(facts: ModuleFacts) -> float:
    """The share that a module drops, 0 where it drops nothing."""
    name = "p" if _is(facts, _DROPOUTS) or facts.type in _DROPOUTS else "dropout"
    value = facts.settings.get(name, facts.settings.get("drop_prob"))
    return float(value) if isinstance(value, int | float) else 0.0


#: Where it may be meant: what is so around these norms, and who wants it otherwise.
_CRITIC = (
    "; all that trains runs in front of it",
    "Nothing to mend in a discriminator, whose own step trains it. A network that only measures, "
    "as for a perceptual loss, wants `{way}.eval()`.",
)
_MAKER = (
    "; all that trains sees other inputs too",
    "Nothing to mend in a generator, whose own step trains it. A network that only makes features "
    "wants `{way}.eval()`.",
)


def _statistics(group: list[_Moving], around: str = "", advice: str = "") -> Finding:
    return RULE.finding(
        group[0].facts.name,
        f"{_whose(group)} {_wrote(group)}{others(len(group) - 1, 'norm')}{around}.",
        severity="info" if around else None,
        advice=advice.format(way=_way(group[0].part)) or _advice(group),
        value=float(len(group)),
        cause="batch-norm",
    )


def _dropout(group: list[_Moving]) -> Finding:
    first = group[0].facts
    return RULE.finding(
        first.name,
        f"{_whose(group)} {plural(len(group), 'module')} in it drop"
        f"{'s' if len(group) == 1 else ''} activations ({rate(first):g} here).",
        advice=_advice(group),
        value=float(len(group)),
        cause="dropout",
    )


def _between(first: ModuleFacts, count: int) -> Finding:
    return RULE.finding(
        first.name,
        f"{plural(count, 'dropout')} of frozen layers act{'s' if count == 1 else ''} "
        f"({rate(first):g} here) behind or between layers that train.",
        severity="info",
        advice="Nothing to mend with adapters inside a frozen network, or a generator in front of "
        "its discriminator. Frozen layers that are to give the same at every step belong in eval "
        "mode.",
        value=float(count),
        cause="dropout",
    )


def _wrote(group: list[_Moving]) -> str:
    written = [name.rpartition(".")[2] for name in group[0].facts.written]
    return f"forward wrote to {listed(written)}"


def _whose(group: list[_Moving]) -> str:
    """The first part, and how many more are like it."""
    first, parts = group[0], {one.part for one in group}
    more = f", like {plural(len(parts) - 1, 'part')} more" if len(parts) > 1 else ""
    whole = "it" if first.part == first.facts.name else f"`{first.part}`, of which it is a part,"
    return f"{whole} is frozen{more}, and in train mode:"


def _advice(group: list[_Moving]) -> str:
    """The call that ends it."""
    also = " and those of the others" if len({one.part for one in group}) > 1 else ""
    return (
        f"Call `{_way(group[0].part)}.eval()`{also}, and again after every `model.train()`, which "
        "undoes it."
    )


def _way(part: str) -> str:
    """The way to a part, as Python writes it."""
    names = (f"[{one}]" if one.isdigit() else f".{one}" for one in part.split(".") if one)
    return "model" + "".join(names)


def _frozen_part(tree: Tree, name: str) -> str | None:
    """The outermost module around one, or itself, that has parameters and none that trains."""
    return next(
        (above for above in reversed([name, *ancestors(name)])
         if above in tree.modules and tree.frozen(above)),
        None,
    )  # fmt: skip


def _is(facts: ModuleFacts, kinds: tuple[str, ...]) -> bool:
    return any(kind in facts.kinds for kind in kinds)
