"""GS813: the graphs of old steps stay alive, and memory grows."""

from __future__ import annotations

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
        "alive, or the graphs of as many calls in eval mode. It names the variable that holds "
        "them."
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


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for a run."""
    least = max(limits["graphs"], limits["share"] * loop.kept_of)
    # Before the first step ends, all backwards belong to it, and gradscope itself still observes
    # it.
    if loop.kept_graphs < least or not loop.steps:
        yield from _evaluations(loop, limits)
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
