"""GS814: every step trains on the same batch."""

from __future__ import annotations

from collections import Counter

from gradscope.records.loop import LoopEvent, LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS814",
    name="same-batch",
    severity="warning",
    summary="every step trains on the same batch, although there is more data",
    what=(
        "Compares each call's input with the first one, bit by bit, until one differs. It fires "
        "if all are equal, and the batch is a new tensor each time or a part of a larger one. A "
        "script that trains on all of its data, or on one batch on purpose, gives the same tensor "
        "each time. If that tensor is the only batch that a data loader of several gave, it is a "
        "warning if the model also gets other inputs, in an evaluation or at the end. Otherwise "
        "it is an info, because overfitting one batch is a test; so it is with `overfit_batches` "
        "of Lightning's Trainer. A model whose layers the script calls itself is judged by these "
        "layers' inputs and the indices that the data loader draws. It also fires if "
        "`torch.manual_seed` gets the same seed in nearly every step."
    ),
    why="The model learns one batch by heart and sees nothing of the rest.",
    fix=(
        "Iterate over the data loader (`for batch in loader`): `next(iter(loader))` restarts it "
        "at each call. Check the index, and whether the loop sets a seed."
    ),
    sources=(
        "PyTorch, torch.utils.data: a loader's iterator begins anew with each iter()",
        "Karpathy 2019, a recipe for training neural networks: overfit one batch, on purpose",
    ),
    thresholds=(Threshold("calls", 5, "equal calls needed to judge", CHOSEN),),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for a run."""
    for seed in loop.facts_of("seeded"):
        if seed.count >= limits["calls"] and seed.count > 0.9 * loop.steps / len(loop.optimizers):
            (number,) = seed.figures
            yield RULE.in_loop(
                loop,
                "",
                f"`torch.manual_seed({number:.0f})` is called in {plural(seed.count, 'step')} "
                f"of {loop.steps:,}: each draws the same random numbers.",
                advice="Set the seed once, before the loop.",
                value=float(seed.count),
                limit=limits.of("calls"),
                cause="seed",
                location=seed.location,
            )
            return
    if loop.same_batch < limits["calls"] or loop.steps < limits["calls"]:
        return
    if loop.same_tensor:
        yield from _one_batch(loop, limits)
        return
    for fact in loop.facts_of("overfitted"):
        meant = "evaluated" not in fact.words
        yield RULE.in_loop(
            loop,
            "",
            f"all {loop.same_batch:,} calls with gradients got the same input: "
            f"`{fact.words[0]}` repeats the first of the data loader"
            f"{'' if meant else ', and the model is evaluated on other data'}.",
            severity="info" if meant else None,
            advice="Remove the argument. To overfit on purpose, as a test, change nothing.",
            value=float(loop.same_batch),
            limit=limits.of("calls"),
            cause="overfit_batches",
            location=fact.location,
        )
        return
    anew = [e for one in loop.rounds for e in one.events if e.kind == "epoch"]
    begun = sum(one.count for one in loop.rounds if any(e.kind == "epoch" for e in one.events))
    why, where = (
        "",
        next((e.location for one in loop.rounds for e in one.events if e.kind == "call"), None),
    )
    if anew and loop.loader == 1:
        return  # one batch is all of the data
    if anew and begun > 0.5 * loop.steps:
        why = f": a data loader of {plural(loop.loader, 'batch', 'batches')} restarts each time"
        where = _most(loop).location
    seeded = list(loop.facts_of("seeded-draw"))
    if len(seeded) == 1 and not why:
        why = f": `{seeded[0].name}` seeds a new generator each time"
        where = seeded[0].location
    yield RULE.in_loop(
        loop,
        "",
        f"all {loop.same_batch:,} calls of the model with gradients got the same input{why}.",
        value=float(loop.same_batch),
        limit=limits.of("calls"),
        location=where,
    )


def _one_batch(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield a finding on a batch that was drawn once, before the loop."""
    for one in loop.facts_of("one-batch"):
        meant = "evaluated" not in one.words
        yield RULE.in_loop(
            loop,
            "",
            f"all {plural(loop.steps, 'step')} train on one batch of the "
            f"{one.figures[0]:.0f} of the data loader: it is drawn once, before the loop"
            f"{'' if meant else ', and the model is evaluated on other data'}.",
            severity="info" if meant else None,
            advice="Draw it in the loop: `for batch in loader`. To overfit one batch on "
            "purpose, as a test, change nothing.",
            value=float(loop.same_batch),
            limit=limits.of("calls"),
            cause="one-batch",
            location=one.location,
        )


def _most(loop: LoopRecord) -> LoopEvent:
    """Return the line that begins a data loader in the most steps."""
    counts = Counter[LoopEvent]()
    for one in loop.rounds:
        counts.update({e: one.count for e in one.events if e.kind == "epoch"})
    return max(counts, key=counts.__getitem__)
