"""GS706: a parameter that takes part in the loss on some ranks only."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.ranks import UNUSED, RanksRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._ranks import on_ranks
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import listed, plural

RULE = Rule(
    code="GS706",
    name="unused-on-ranks",
    severity="error",
    summary="parameters got no gradient, and DistributedDataParallel waits for it",
    what=(
        "Reads which parameters DistributedDataParallel missed when it raised `Expected to have "
        "finished reduction in the prior iteration`, names the module that did not run, its line "
        "in the forward, and the ranks on which it ran."
    ),
    why=(
        "The other ranks wait in backward for a gradient that never arrives: the run hangs until "
        "one rank's error ends it."
    ),
    fix=(
        "Use the same parameters on every rank, if necessary with a weight of zero in the loss, "
        "or wrap with `find_unused_parameters=True`."
    ),
    sources=(
        "PyTorch, DistributedDataParallel: find_unused_parameters",
        "Li et al. 2020, PyTorch Distributed (arXiv 2006.15704), section 3.2.3: gradients that are "
        "absent hang the all-reduce of their bucket",
    ),
    runs=Runs(ranks=True),
)


def find_over_ranks(ranks: RanksRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """Yield one finding for each set of parameters without a gradient on some ranks."""
    lacked: dict[tuple[str, ...], list[int]] = {}
    events = [event for event in ranks.events if event.kind == UNUSED]
    for event in events:
        lacked.setdefault(tuple(event.details["parameters"]), []).append(event.details["rank"])
    for names, where in lacked.items():
        event = next(e for e in events if tuple(e.details["parameters"]) == names)
        module, world = event.details.get("module"), len(ranks.runs)
        elsewhere = world - len(where)
        rest = "rank" if elsewhere == 1 else plural(elsewhere, "rank")
        others = f"; on the other {rest} all of them did" if elsewhere else ""
        what = f"`{module}` did not run, and " if module else ""
        finding = RULE.finding(
            module or names[0],
            f"{what}{plural(len(names), 'parameter')} ({listed(names)}) got no gradient on "
            f"{on_ranks(where, world)}{others}.",
            value=float(len(names)),
            cause="unused",
            location=event.details.get("location"),
        )
        yield TrainingFinding(finding, ((event.step, event.step),), event.details.get("model"))
