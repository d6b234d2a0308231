"""GS611: weight decay that outweighs the gradient."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._course import is_left
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, percent

RULE = Rule(
    code="GS611",
    name="weight-decay-wins",
    severity="warning",
    summary="weight decay shrinks the weights faster than the gradient can hold them",
    what=(
        "Compares weight decay with the gradient in the sampled steps. If decay is decoupled, as "
        "in AdamW, it compares decay with the rest of the update. It fires if decay is larger for "
        "the median weight, the norm of all weights has halved since the start, and most of the "
        "loss is left. A usual decay is silent: it wins only where there is next to no gradient."
    ),
    why=(
        "The weights go to zero, and so do the output and all gradients: the network gives one "
        "answer to everything."
    ),
    fix="Lower `weight_decay`: 1e-4 for SGD and 0.01 for AdamW are usual.",
    sources=(
        "Loshchilov and Hutter 2019, Decoupled weight decay regularization (arXiv 1711.05101)",
        "Karpathy 2019, A recipe for training neural networks: regularize only what overfits",
    ),
    thresholds=(
        Threshold("share", 0.5, "weight decay over update, above which it fires", CHOSEN),
        Threshold("norm", 0.5, "weights' norm divided by the first, below which it fires", CHOSEN),
        Threshold("left", 0.5, "the loss divided by that of the first steps, above which it fires",
                  CHOSEN),
        Threshold("usual", 1e-3, (
            "weight decay, at or below which it is silent: the missing gradient is the cause"
        ),
                  CHOSEN),
        Threshold("samples", 5, "samples needed to judge", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS101", "GS104", "GS603", "GS605", "GS610", "GS613"),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    course = loop.course
    if course is None or len(loop.optimizers) != 1 or not is_left(course, limits["left"]):
        return
    for one in loop.weights:
        if one.samples < limits["samples"] or one.decay < limits["share"]:
            continue
        if one.last > limits["norm"] * one.first or one.weight_decay <= limits["usual"]:
            continue
        optimizer = loop.optimizers[0]
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"weight_decay={one.weight_decay:g} outweighs the gradient: the norm of the "
            f"weights fell from {number(one.first)} to {number(one.last)} "
            f"({percent(one.last / one.first)}). The loss is at {number(course.last)}, and "
            f"began at {number(course.first)}.",
            value=one.decay,
            limit=limits.of("share"),
            location=optimizer.location,
        )
