"""GS611: weight decay that outweighs the gradient."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._course import is_left
from gradscope.rules._loop import at
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, percent

RULE = Rule(
    code="GS611",
    name="weight-decay-wins",
    severity="warning",
    summary="weight decay shrinks the weights faster than the gradient can hold them",
    what=(
        "Compares, in the sampled steps, weight decay with the term that the optimizer adds it to: "
        "the rest of the update if it is decoupled, as in AdamW, else the gradient. It fires where "
        "decay is the larger one for the median weight, the norm of all weights has halved since "
        "the start, and most of the loss is left."
    ),
    why=(
        "The weights go to zero, and with them the output and the gradients of all layers: the "
        "network gives one answer to everything."
    ),
    fix="Lower `weight_decay`: 1e-4 for SGD and 0.01 for AdamW are usual.",
    sources=(
        "Loshchilov and Hutter 2019, Decoupled weight decay regularization (arXiv 1711.05101)",
        "Karpathy 2019, A recipe for training neural networks: regularize only what overfits",
    ),
    thresholds=(
        Threshold("share", 0.5, "the share of weight decay, above which it fires", CHOSEN),
        Threshold("norm", 0.5, "the weights' norm over the first, below which it fires", CHOSEN),
        Threshold("left", 0.5, "the loss over that of the first steps, above which it fires",
                  CHOSEN),
        Threshold("samples", 5, "samples, below which it does not judge", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS101", "GS104", "GS603", "GS605", "GS610", "GS613"),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding for each model."""
    course = loop.course
    if course is None or len(loop.optimizers) != 1 or not is_left(course, limits["left"]):
        return
    for one in loop.weights:
        if one.samples < limits["samples"] or one.decay < limits["share"]:
            continue
        if one.last > limits["norm"] * one.first:
            continue
        optimizer = loop.optimizers[0]
        yield at(
            RULE.finding(
                optimizer.name,
                f"weight_decay={one.weight_decay:g} outweighs the gradient: the norm of the "
                f"weights fell to {percent(one.last / one.first)} of the first one, from "
                f"{number(one.first)} to {number(one.last)}. The loss is at "
                f"{number(course.last)}, and began at {number(course.first)}.",
                value=one.decay,
                limit=limits.of("share"),
                location=optimizer.location,
            ),
            loop,
        )
