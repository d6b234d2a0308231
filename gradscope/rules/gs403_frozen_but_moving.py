"""GS403: BatchNorm statistics or dropout active in frozen layers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradscope.records.modules import ModuleFacts
from gradscope.records.report import Finding, Report
from gradscope.rules._reading import Tree, ancestors
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.rules._words import listed, others, plural

RULE = Rule(
    code="GS403",
    name="frozen-but-moving",
    severity="warning",
    summary="frozen layers with active dropout or BatchNorm statistics",
    what=(
        "Finds modules in train mode whose parameters are all frozen, in which a BatchNorm "
        "updated its running statistics or dropout was active. It is silent if no parameter of "
        "the model trains. It is an info if gradients go through the frozen part to trainable "
        "parameters upstream: dropout with adapters, or a discriminator in its generator's step. "
        "It is also an info for a generator in its discriminator's step."
    ),
    why=(
        "`requires_grad = False` freezes the weights only. Running statistics follow the new "
        "data, so the frozen part changes at each step. Dropout adds noise to features that "
        "should be fixed."
    ),
    fix=("Put the frozen part into eval mode, again after every `model.train()`."),
    sources=("pytorch/pytorch#86590", "pytorch/pytorch#66073"),
    runs=Runs(parameters="all"),
)
_NORMS = ("_BatchNorm",)
_DROPOUTS = ("_DropoutNd", "StochasticDepth", "DropPath")


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per kind of frozen part and of movement, at the first module that moves."""
    # The totals are of the full model, whatever layers were selected.
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
    critics = [one for one in moved if train.only_upstream_trains(one.facts.name)]
    makers = [one for one in moved if train.more_often(one.facts)]
    rest = [one for one in moved if one not in critics and one not in makers]
    averages = [one for one in rest if _has_trained_twin(report, one.part)]
    for group in _alike([one for one in rest if one not in averages]):
        yield _statistics(group)
    if averages:
        yield _statistics(averages, *_AVERAGE)
    if critics:
        yield _statistics(critics, *_CRITIC)
    if makers:
        yield _statistics(makers, *_MAKER)
    between = next((one for one in dropped if train.upstream_trains(one.facts.name)), None)
    if between is not None:
        yield _between(between.facts, len(dropped))
        return
    for group in _alike(dropped):
        yield _dropout(group)


@dataclass(frozen=True, slots=True)
class _Moving:
    """A module that moves, and its outermost frozen part."""

    facts: ModuleFacts
    part: str


class _Training:
    """The order in forward of modules that train, from the recorded calls."""

    def __init__(self, report: Report) -> None:
        owners = {p.name.rpartition(".")[0] for p in report.parameters if p.requires_grad}
        self._order = {call.name: call.order for call in reversed(report.calls)}
        self._trains = [self._order[name] for name in owners if name in self._order]
        self._through = {c.name for c in report.calls if any(t.requires_grad for t in c.inputs)}
        self._calls = [facts.calls for facts in report.modules if facts.name in owners]

    def upstream_trains(self, name: str) -> bool:
        """Return True if a trainable module runs upstream of a module: gradients pass through
        it.
        """
        return name in self._through and min(self._trains, default=math.inf) < self._order[name]

    def more_often(self, facts: ModuleFacts) -> bool:
        """Return True if no gradient passes a module, and every trainable one runs more often.

        An example is a generator in its discriminator's step, which gets real samples too.
        """
        known = facts.name in self._order and facts.name not in self._through
        return known and min(self._calls, default=0) > facts.calls

    def only_upstream_trains(self, name: str) -> bool:
        """Return True if all trainable modules run upstream, as for a discriminator in a
        generator's step.
        """
        return self.upstream_trains(name) and max(self._trains) < self._order[name]


def _alike(moving: list[_Moving]) -> Iterator[list[_Moving]]:
    """Group modules by parts whose names differ only in numbers, as blocks of one kind do."""
    groups: dict[str, list[_Moving]] = {}
    for one in moving:
        groups.setdefault(_unnumbered(one.part), []).append(one)
    yield from groups.values()


def rate(facts: ModuleFacts) -> float:
    """Return the share that a module drops; 0 if it drops nothing."""
    name = "p" if _is(facts, _DROPOUTS) or facts.type in _DROPOUTS else "dropout"
    value = facts.settings.get(name, facts.settings.get("drop_prob"))
    return float(value) if isinstance(value, int | float) else 0.0


#: Cases in which it may be intended: the words for them, and the advice.
_CRITIC = (
    "; every trainable layer is upstream of it",
    "A discriminator needs no change: its own step trains it. If the network is fixed, as in a "
    "perceptual loss, call `{way}.eval()`.",
)
_MAKER = (
    "; every trainable layer gets other inputs too",
    "A generator needs no change: its own step trains it. For a fixed feature extractor, call "
    "`{way}.eval()`.",
)

_AVERAGE = (
    "; another part of the same shapes trains",
    "A momentum encoder needs no change: it follows the other's weights. For a fixed teacher, "
    "call `{way}.eval()`.",
)


def _has_trained_twin(report: Report, part: str) -> bool:
    """Return True if another module has parameters of equal names and shapes, and all train.

    Blocks of a stack are alike by construction: names that differ only in numbers do not count.
    """
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    frozen: set[str] = set()
    for parameter in report.parameters:
        pieces = parameter.name.split(".")
        for count in range(len(pieces)):
            outer, inner = ".".join(pieces[:count]), ".".join(pieces[count:])
            shapes.setdefault(outer, {})[inner] = tuple(parameter.shape)
            if not parameter.requires_grad:
                frozen.add(outer)
    mine = shapes.get(part, {})
    return len(mine) > 1 and any(
        _unnumbered(name) != _unnumbered(part) and name not in frozen and other == mine
        for name, other in shapes.items()
    )


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _statistics(group: list[_Moving], around: str = "", advice: str = "") -> Finding:
    return RULE.finding(
        group[0].facts.name,
        f"{_wrote(group)} in frozen {_whose(group)}{others(len(group) - 1, 'norm')}{around}.",
        severity="info" if around else None,
        advice=advice.format(way=_way(group[0].part)) or _advice(group),
        value=float(len(group)),
        cause="batch-norm",
    )


def _dropout(group: list[_Moving]) -> Finding:
    first = group[0].facts
    return RULE.finding(
        first.name,
        f"dropout is active in frozen {_whose(group)} ({plural(len(group), 'module')}, "
        f"p = {rate(first):g}).",
        advice=_advice(group),
        value=float(len(group)),
        cause="dropout",
    )


def _between(first: ModuleFacts, count: int) -> Finding:
    return RULE.finding(
        first.name,
        f"{plural(count, 'dropout')} of frozen layers act{'s' if count == 1 else ''} "
        f"(p = {rate(first):g} here) downstream of or between trainable layers.",
        severity="info",
        advice="Adapters inside a frozen network need no change, nor does a generator before its "
        "discriminator. For the same outputs at every step, put frozen layers into eval "
        "mode.",
        value=float(count),
        cause="dropout",
    )


def _wrote(group: list[_Moving]) -> str:
    written = [name.rpartition(".")[2] for name in group[0].facts.written]
    return f"forward updates {listed(written)}"


def _whose(group: list[_Moving]) -> str:
    """Return the first part, and the number of similar ones."""
    first, parts = group[0], {one.part for one in group}
    more = f" and {plural(len(parts) - 1, 'part')} more" if len(parts) > 1 else ""
    return f"`{first.part or 'the model'}`{more}"


def _advice(group: list[_Moving]) -> str:
    """Return the advice: the call that stops the movement."""
    also = " and those of the others" if len({one.part for one in group}) > 1 else ""
    return (
        f"Call `{_way(group[0].part)}.eval()`{also}, and again after every `model.train()`, which "
        "undoes it."
    )


def _way(part: str) -> str:
    """Return the Python expression for a part."""
    names = (f"[{one}]" if one.isdigit() else f".{one}" for one in part.split(".") if one)
    return "model" + "".join(names)


def _frozen_part(tree: Tree, name: str) -> str | None:
    """Return the outermost module around a module, or itself, that has only frozen parameters."""
    return next(
        (above for above in reversed([name, *ancestors(name)])
         if above in tree.modules and tree.frozen(above)),
        None,
    )  # fmt: skip


def _is(facts: ModuleFacts, kinds: tuple[str, ...]) -> bool:
    return any(kind in facts.kinds for kind in kinds)
