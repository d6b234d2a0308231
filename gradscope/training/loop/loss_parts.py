"""Finds parts of a loss that have no effect or a wrong one, each with its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch.autograd.graph import Node

from gradscope.training.loop.autoencoders import cut_encoder, posterior
from gradscope.training.loop.contrastive import (
    is_cosine,
    norm_along_batch,
    own_positive,
    score_products,
)
from gradscope.training.loop.loss_walk import (
    BINARY,
    CLASSES,
    DIFFERENCES,
    MEAN,
    Shape,
    kind,
    saved,
)
from gradscope.training.loop.reinforcement import (
    ascended_policy,
    attached_advantage,
    attached_ratio,
    bootstrapped,
)
from gradscope.training.loop.weighted_terms import divisors, learned_weights, minimised_overlap


@dataclass(frozen=True, slots=True)
class LossPart:
    """A part with no effect or a wrong one; ``LossOperation`` explains its figures."""

    kind: str
    name: str
    node: Node
    figures: tuple[float, ...]
    shapes: tuple[Shape, ...] = ()


def loss_parts(root: Node) -> Iterator[LossPart]:
    """Yield the parts of a loss that have no effect or a wrong one."""
    yield from _divided(root)
    for one in score_products(root):
        if is_cosine(one.node):
            figures = one.scale, float(one.classes)
            yield LossPart("cosine", "cross_entropy", one.place, figures)
        along = norm_along_batch(one.node)
        if along is not None:
            yield LossPart("normalize-axis", "normalize", along[0], tuple(map(float, along[1])))
    for name, node, factor in learned_weights(root):
        yield LossPart("learned-weight", name, node, (factor,))
    for name, turned in (
        ("ascended-policy", ascended_policy(root)),
        ("minimised-overlap", minimised_overlap(root)),
    ):
        if turned is not None:
            yield LossPart(name, *turned, ())
    for name, find in _OF_ONE.items():
        found = find(root)
        if found is not None:
            yield LossPart(name, "", *found)


_OF_ONE: dict[str, Callable[[Node], tuple[Node, tuple[float, ...]] | None]] = {
    "posterior": posterior,
    "cut-encoder": cut_encoder,
    "bootstrapped": bootstrapped,
    "attached-ratio": attached_ratio,
    "attached-advantage": attached_advantage,
    "own-positive": own_positive,
}


def _divided(root: Node) -> Iterator[LossPart]:
    """Yield a loss that is divided twice by one number, or by the batch size after a mean over the
    batch."""
    found, of = divisors(root)
    twice = next((pair for pair in pairwise(found) if _same(*pair)), None)
    if twice is not None:
        (number, _), (_, own) = twice
        yield LossPart("divided", "twice", own, (number,))
    if of is None or kind(of) not in CLASSES | BINARY | DIFFERENCES:
        return
    if getattr(of, "_saved_reduction", None) != MEAN or len(found) != 1:
        return
    target = saved(of).get("target")
    (number, node), rows = found[0], 0 if target is None or not target.dim() else target.shape[0]
    if rows > 1 and abs(number - rows) < 1e-6 * rows:
        yield LossPart("divided", "mean", node, (float(rows),))


def _same(one: tuple[float, Node], other: tuple[float, Node]) -> bool:
    return one[0] >= 2 and abs(one[0] - other[0]) < 1e-6 * one[0]
