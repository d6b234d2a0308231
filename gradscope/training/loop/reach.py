"""Detects a last activation whose range does not include the loss's targets."""

from __future__ import annotations

import math

import torch
from torch.autograd.graph import Node

from gradscope.capture.shards import is_spread
from gradscope.records.loop_figures import Reach
from gradscope.training.loop.loss_walk import DIFFERENCES, dim_of, kind, saved, shape_of

#: Functions with a bounded result: name, and bounds.
_BOUNDS = {
    "SigmoidBackward": ("sigmoid", 0.0, 1.0),
    "TanhBackward": ("tanh", -1.0, 1.0),
    "SoftmaxBackward": ("softmax", 0.0, 1.0),
    "ReluBackward": ("ReLU", 0.0, math.inf),
    "SoftplusBackward": ("softplus", 0.0, math.inf),
    "LogSoftmaxBackward": ("log_softmax", -math.inf, 0.0),
    "LogSigmoidBackward": ("logsigmoid", -math.inf, 0.0),
}
#: The operations of a difference that is squared, or whose absolute value is taken, by hand.
_SIZES = frozenset({"PowBackward", "AbsBackward"})
_LOGITS = "BinaryCrossEntropyWithLogitsBackward"
_BINARY = "BinaryCrossEntropyBackward"
#: PyTorch's number of ``reduction="none"``.
_NONE = 0
#: Targets of 0.7 to 1.2 are a trick of those who train a GAN; -1, 2 or 255 are a mistake.
_NEAR = 0.5
#: The largest number of an image's bytes, and how exact its inverse is.
_PIXEL, _ROUNDED = 255, 1e-4
#: Views that leave the order of the numbers.
_VIEWS = frozenset(
    {"ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward"}
    | {"SqueezeBackward", "UnsqueezeBackward", "AliasBackward"}
)


class Bounded:
    """The targets of one loss on one kind of output."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.least, self.greatest, self.share = math.inf, -math.inf, 1.0
        self.readings = self.outside = 0
        self.location: str | None = None
        self.inside = False
        self.counted = True
        self.activation_at: str | None = None
        self.needs_line = False

    def read(self, targets: torch.Tensor) -> None:
        """Read one more batch."""
        self.readings += 1
        least, greatest = (float(one) for one in torch.aminmax(targets))
        self.least, self.greatest = min(self.least, least), max(self.greatest, greatest)
        # A mask of 0 and 1 that was divided as if it were an image.
        scaled = self.low == -_NEAR and least == 0 and abs(greatest * _PIXEL - 1) < _ROUNDED
        if scaled:
            out = (targets == greatest) & bool(((targets == 0) | (targets == greatest)).all())
        elif self.low <= least and greatest <= self.high:
            return
        else:
            out = (targets < self.low) | (targets > self.high)
        if not bool(out.any()):
            return
        self.outside += 1
        self.share = min(self.share, float(out.double().mean()))


class Reaches:
    """Reads the targets of some losses, if the output comes from a bounded activation."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Bounded] = {}

    def read(self, node: Node) -> tuple[Bounded, Node | None] | None:
        """Read the targets of a loss's operation, if it compares an output with targets.

        Returns:
            The targets' record, and the activation that gives the output.
        """
        name = kind(node)
        found = _with_logits(node) if name == _LOGITS else None
        if name in DIFFERENCES:
            found = _compared(node)
        elif name in _SIZES:
            found = _by_hand(node)
        elif name == _BINARY:
            found = _of_rows(node)
        if found is None:
            return None
        by, low, high, targets, activation = found
        if not targets.numel() or not targets.is_floating_point() or is_spread(targets):
            return None
        known = self._of.setdefault((by, name), Bounded(low, high))
        known.read(targets.detach())
        known.counted = known.counted and name == _LOGITS and _counts_all(node)
        return known, activation

    @property
    def want_stacks(self) -> bool:
        """True if the line of an activation inside a model is needed."""
        known = self._of.values()
        return any(one.outside and one.needs_line and one.activation_at is None for one in known)

    def records(self) -> tuple[Reach, ...]:
        """Return the records of losses whose targets were out of bounds."""
        return tuple(
            Reach(
                by=by, low=one.low, high=one.high, least=one.least, greatest=one.greatest,
                readings=one.readings, outside=one.outside, share=one.share,
                inside=one.inside, location=one.activation_at or one.location, counted=one.counted,
            )
            for (by, _), one in self._of.items()
            if one.outside
        )  # fmt: skip


#: The activation's or the loss's name, the bounds, the targets, and the activation.
_Found = tuple[str, float, float, torch.Tensor, Node | None]


def _with_logits(node: Node) -> _Found | None:
    target = saved(node).get("target")
    if target is None:
        return None
    return "binary_cross_entropy_with_logits", -_NEAR, 1 + _NEAR, target, None


def _counts_all(node: Node) -> bool:
    """Return True if the loss reduces all labels alike, and leaves none out by a weight."""
    weights = saved(node)
    return getattr(node, "_saved_reduction", _NONE) != _NONE and weights.get("weight") is None


def _of_rows(node: Node) -> _Found | None:
    """Return the sum of each sample's labels, if a softmax gives the probabilities. Labels that
    exclude each other sum to at most 1."""
    softmax, target = _bounded(node.next_functions[0][0]), saved(node).get("target")
    if softmax is None or kind(softmax) != "SoftmaxBackward" or target is None:
        return None
    dim = dim_of(softmax)
    if (
        dim is None
        or target.shape != shape_of(softmax)
        or not bool((target == target.round()).all())
    ):
        return None
    return "softmax of multi-label", -_NEAR, 1 + _NEAR, target.sum(dim), softmax


def _compared(node: Node) -> _Found | None:
    """Return the bounds of the output and the targets, for a loss of PyTorch that compares two
    tensors and keeps the targets."""
    bounded = _bounded(node.next_functions[0][0])
    target = saved(node).get("target")
    if bounded is None or target is None:
        return None
    return *_BOUNDS[kind(bounded)], target, bounded


def _by_hand(node: Node) -> _Found | None:
    """Read the target from the square of ``output - target``: saved tensors of both nodes give
    it.

    None if another operation made the difference, or if both sides are computed.
    """
    difference = node.next_functions[0][0]
    if difference is None or kind(difference) != "SubBackward":
        return None
    edges = [one for one, _ in difference.next_functions]
    if len(edges) != 2 or (edges[0] is None) == (edges[1] is None):
        return None
    bounded = _bounded(edges[0] or edges[1])
    kept = saved(node).get("self")
    result = None if bounded is None else saved(bounded).get("result")
    if bounded is None or kept is None or result is None or kept.shape != shape_of(difference):
        return None
    if result.numel() != kept.numel():
        return None
    sign = 1.0 if edges[1] is None else -1.0
    return *_BOUNDS[kind(bounded)], result.reshape(kept.shape) - sign * kept, bounded


def _bounded(node: Node | None) -> Node | None:
    """Return the activation that gives an output; views between are skipped."""
    while node is not None and kind(node) in _VIEWS:
        node = node.next_functions[0][0]
    return node if node is not None and kind(node) in _BOUNDS else None
