"""GS813: the graphs of old steps stay alive, and memory grows."""

from __future__ import annotations

from dataclasses import replace

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS813",
    name="kept-graphs",
    severity="warning",
    summary="the autograd graphs of old steps are kept alive",
    what=(
        "Marks the graph of each step's loss, and counts those that are still alive. A script "
        "normally holds the last one or two. It fires if nearly all graphs since some step are "
        "alive, or the graphs of as many calls in eval mode. It also fires if a variable's sum "
        "or list holds the graphs of as many steps, grows at each search, and no backward uses "
        "it; and if the graph of each loss contains those of all earlier ones, at the 16th, 32nd "
        "and 64th backward. It names the variable that holds them."
    ),
    why="Memory grows with every step, until it runs out.",
    fix=(
        "Keep numbers: `total += loss.item()`, or `loss.detach()` for a tensor; evaluate under "
        "`torch.no_grad()`."
    ),
    sources=(
        "PyTorch FAQ: don't accumulate history across your training loop (total_loss += loss)",
        "discuss.pytorch.org 197063: accumulating model output blows up CUDA memory",
    ),
    thresholds=(
        Threshold("graphs", 8, "live graphs needed to judge", CHOSEN),
        Threshold(
            "share", 0.8, "share of the backwards since the first, above which it fires", CHOSEN
        ),
    ),
    runs=Runs(loop=True),
)

#: So many times more graphs are needed in a script that was cut short.
_LONG = 8


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for a run."""
    least = max(limits["graphs"], limits["share"] * loop.kept_of)
    # Before the first step ends, all backwards belong to it, and gradscope itself still observes
    # it.
    if loop.kept_graphs < least or not loop.steps:
        others = list(_evaluations(loop, limits)) or list(_carried(loop, limits))
        yield from others or _sums(loop, limits)
        return
    name, where = loop.kept_by or ("", None)
    by = f" by `{name}`" if name else ""
    yield RULE.in_loop(
        loop,
        name,
        f"the graphs of {plural(loop.kept_graphs, 'loss', 'losses')}, since step "
        f"{loop.kept_since:,}, are kept alive{by}: memory grows with every step.",
        advice=f"Keep a number in `{name}`: `loss.item()`, or `loss.detach()`." if name else None,
        value=float(loop.kept_graphs),
        limit=limits.of("graphs"),
        location=where,
        first=loop.kept_since,
    )


def _evaluations(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield the finding on a validation that runs with gradients enabled."""
    # The graphs of one round may belong to an episode that has not ended.
    if loop.kept_evaluations < limits["graphs"] or loop.evaluation_rounds < 3:
        return
    name, where = loop.kept_by or ("", None)
    by = f" by `{name}`" if name else ""
    since = max(1, loop.evaluations_since)
    yield RULE.in_loop(
        loop,
        name,
        f"the graphs of {plural(loop.kept_evaluations, 'call')} in eval mode, since step "
        f"{since:,}, are kept alive{by}: memory grows with every evaluation.",
        advice="Evaluate under `torch.no_grad()`, and keep numbers: `loss.item()`.",
        value=float(loop.kept_evaluations),
        limit=limits.of("graphs"),
        cause="evaluation",
        location=where,
        first=since,
    )


def _carried(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield the finding on a state that is carried from step to step with its graph."""
    for one in loop.facts_of("carried-graph"):
        by = f"`{one.name}` carries" if one.name else "the script carries"
        found = RULE.in_loop(
            loop,
            one.name,
            f"{by} the graphs of all earlier steps into each loss: `backward` walked through "
            f"{plural(one.count, 'step')} at the last check, and takes longer and more memory at "
            "each step.",
            advice=f"Cut the graph before each step: `{one.name} = {one.name}.detach()`."
            if one.name
            else "Cut the graph before each step: `state = state.detach()`.",
            value=float(one.count),
            limit=limits.of("graphs"),
            cause="carried",
            location=one.location,
        )
        # Without an optimizer, each backward is a step.
        yield replace(found, steps=((1, loop.steps or loop.backwards),))


def _sums(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield the findings on sums of tensors that no backward uses, once the script has ended."""
    # A script that was cut short may still have used a short one.
    least = limits["graphs"] * (_LONG if loop.cut else 1)
    for one in loop.facts_of("growing-sum") if loop.ended else ():
        if one.count < least:
            continue
        first = int(one.figures[0])
        yield RULE.in_loop(
            loop,
            one.name,
            f"the graphs of {plural(one.count, 'step')}, since step {first:,}, are kept alive by "
            f"`{one.name}`: memory grows with every step.",
            advice=f"Keep a number in `{one.name}`: that of `.item()`, or a tensor after "
            "`.detach()`; compute it under `torch.no_grad()` if no loss needs it.",
            value=float(one.count),
            limit=limits.of("graphs"),
            cause="sum",
            location=one.location,
            first=first,
        )
