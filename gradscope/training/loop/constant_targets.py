"""Detects targets of a loss without information (all ignored, or all equal), and the best constant
answer."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch.autograd.graph import Node

from gradscope.capture.nodes import MOVES
from gradscope.records.loop_figures import LossSide, LossTargets
from gradscope.training.loop.loss_lines import ignored_at, written_weights
from gradscope.training.loop.loss_walk import (
    ARITHMETIC,
    BINARY,
    CLASSES,
    SOFTMAX,
    dim_of,
    kind,
    operations,
    saved,
    scores_of,
    shape_of,
    signed,
    weight_of,
)

#: Counts of more classes, or sums of more numbers in a sample, are not kept.
_CLASSES, _NUMBERS = 65536, 4096


class ConstantAnswer:
    """Adds up the targets of batches: how often each class came, or the sums of numbers."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None
        self._sums: list[torch.Tensor] | None = None
        self._count = 0
        self._fits = True

    def add_classes(self, targets: torch.Tensor, classes: int) -> None:
        """Add the class indices of one batch, none of them ignored."""
        if not 1 < classes <= _CLASSES or targets.is_floating_point():
            self._fits = False
            return
        counts = torch.bincount(targets.reshape(-1), minlength=classes).cpu()
        if self._counts is not None and len(self._counts) == len(counts):
            counts = counts + self._counts
        self._counts = counts

    def add_numbers(self, targets: torch.Tensor) -> None:
        """Add the targets of a regression, or probabilities, with samples along the first axis."""
        samples = len(targets) if targets.dim() else 1
        numbers = targets.detach().double().reshape(samples, -1)
        if numbers.shape[1] > _NUMBERS:
            self._fits = False
            return
        sums = [numbers.sum(0).cpu(), numbers.square().sum(0).cpu()]
        if self._sums is not None:
            if self._sums[0].shape != sums[0].shape:
                self._fits = False
                return
            sums = [one + before for one, before in zip(sums, self._sums, strict=True)]
        self._sums, self._count = sums, self._count + samples

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of targets of each class."""
        return () if self._counts is None else tuple(self._counts.tolist())

    @property
    def entropy(self) -> float | None:
        """Return the entropy of the classes' frequencies in nats; None if unknown."""
        if self._counts is None or not self._fits:
            return None
        shares = self._counts.double() / self._counts.sum()
        return -math.fsum(share * math.log(share) for share in shares.tolist() if share)

    @property
    def binary_entropy(self) -> float | None:
        """Return the binary entropy, averaged over the outputs."""
        if self._sums is None or not self._fits:
            return None
        means = [min(max(one / self._count, 0.0), 1.0) for one in self._sums[0].tolist()]
        terms = [p * math.log(p) for mean in means for p in (mean, 1 - mean) if p > 0]
        return -math.fsum(terms) / max(1, len(means))

    @property
    def variance(self) -> float | None:
        """Return the variance over samples, averaged over the outputs."""
        if self._sums is None or not self._fits:
            return None
        means = self._sums[0] / self._count
        return float((self._sums[1] / self._count - means.square()).clamp(min=0).mean())

    @property
    def rms(self) -> float | None:
        """Return the root mean square of all numbers."""
        if self._sums is None or not self._fits:
            return None
        return math.sqrt(float((self._sums[1] / self._count).mean()))


#: If the targets of this many batches are all alike, those of the next steps are read too; and
#: the number of these steps.
_SUSPECT, _MORE = 5, 64
#: The losses of a regression. Within beta, a smooth L1 loss is half a square divided by beta.
_REGRESSION = {"MseLossBackward": "mse_loss", "SmoothL1LossBackward": "smooth_l1_loss"}
#: Number of classes above which weights are not compared.
_WEIGHTED = 1024
#: A batch of fewer says little.
_FEWEST = 8


#: What a score may be made of that is a product of embeddings, and the nodes that are walked.
#: Not a difference: a loss of pairs compares two products.
_PRODUCTS = (ARITHMETIC - {"SubBackward"}) | MOVES
_PRODUCTS |= {"SumBackward", "BmmBackward", "SigmoidBackward"}
_NODES = 64


class TargetsOfLayer:
    """Targets of the losses on one layer's scores."""

    def __init__(self, loss: str, classes: int) -> None:
        self.loss, self.classes = loss, classes
        self.batches = self.targets = self.ignored = self.empty = 0
        self.least = 0
        self.index: int | None = None
        self.value: float | None = None
        self.differ = self.known = False
        self.inside = False
        self.judged = self.single = 0
        self.kinds = set[float]()  # what the targets of such batches are
        self._kept, self._low, self._high = 0, math.inf, -math.inf  # of this step
        self.location: str | None = None
        self.made_at: str | None = None
        self.beside = False
        self.layer = True  # whether the scores are those of one layer
        self.full = True  # whether the loss is the mean of this, without weights
        self._answer = ConstantAnswer()
        self.weights: tuple[float, ...] = ()
        self.beta: float | None = None  # of a smooth L1 loss
        self._least, self._most = math.inf, -math.inf  # of all targets
        self._latest: float | None = None  # the value of all targets of the last batch
        self._played: list[tuple[bool, float | None, str | None]] = []  # in this step
        self._sides: dict[tuple[str, bool], LossSide] = {}

    def read(self, target: torch.Tensor, ignored: int | None, *, alike: bool) -> None:
        """Read one more batch."""
        self._latest = None
        count = kept = target.numel()
        if ignored is not None:
            kept = int((target != ignored).sum())
        self.index = ignored
        self.batches += 1
        self.targets += count
        self.ignored += count - kept
        self.empty += count > 0 and not kept
        if not kept:
            return
        self.least = min(self.least or kept, kept)
        values = target if kept == count else target[target != ignored]
        if self.weights:
            self._answer.add_classes(_indices(values), self.classes)
        if not alike:
            return
        low, high = (float(one) for one in torch.aminmax(values))
        if self.layer:
            if self.loss == "cross_entropy":
                self._answer.add_classes(values, self.classes)
            else:
                self._answer.add_numbers(values)
            self._kept += kept
            self._least, self._most = min(self._least, low), max(self._most, high)
            self._low, self._high = min(self._low, low), max(self._high, high)
            self._latest = low if low == high else None
        if self.differ:
            return
        self.differ = low != high or (self.known and low != self.value)
        self.value, self.known = low, True

    def played(self, location: str | None, *, generated: bool) -> None:
        """Note that a loss at this place gives the last batch a positive weight, and whether the
        scores belong to another model's results."""
        self._played.append((generated, self._latest, location))

    def step_ended(self, optimizer: str) -> None:
        """Combine all losses of a step, because one head may get each class from a separate
        loss."""
        for generated, value, location in self._played:
            side = LossSide(optimizer, generated, value, location)
            known = self._sides.setdefault((optimizer, generated), side)
            if known.value != value:
                self._sides[optimizer, generated] = replace(known, value=None)
        self._played.clear()
        if self._kept >= _FEWEST:
            self.judged += 1
            if self._low == self._high:
                self.single += 1
                self.kinds.add(self._low)
        self._kept, self._low, self._high = 0, math.inf, -math.inf

    def record(self) -> LossTargets:
        """Return the record of the targets."""
        return LossTargets(
            loss=self.loss,
            classes=self.classes,
            batches=self.batches,
            targets=self.targets,
            least=self.least,
            ignored=self.ignored,
            empty=self.empty,
            ignore_index=self.index,
            value=None if self.differ or not self.known else self.value,
            location=self.location,
            made_at=self._ignored_at() or self.made_at,
            inside=self.inside,
            judged=self.judged,
            single=self.single,
            kinds=len(self.kinds),
            beside=self.beside,
            layer=self.layer,
            constant=self._constant() if self.full and self.layer and not self.weights else None,
            rms=self._answer.rms if self.loss == "mse_loss" else None,
            weights=self.weights,
            weighted_at=written_weights() if self.weights else None,
            counts=self._answer.counts if self.weights else (),
            sides=tuple(self._sides.values()),
        )

    def _ignored_at(self) -> str | None:
        """Return the line that sets all targets to the ignored index."""
        all_ignored = self.index is not None and 0 < self.empty == self.batches
        return ignored_at(self.index or 0) if all_ignored else None

    def _constant(self) -> float | None:
        answer = self._answer
        if self.loss == "cross_entropy":
            return answer.entropy
        if self.classes:
            return answer.binary_entropy
        if self.loss == "mse_loss" or answer.variance is None:
            return answer.variance
        beta = self.beta or 0.0
        return answer.variance / (2 * beta) if 0 < self._most - self._least <= beta else None


class Targets:
    """Reads the targets of the losses of some backwards.

    A regression loss counts only on a layer's output; the target of a difference of two tensors may
    be zero by construction.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], TargetsOfLayer] = {}
        self._more = _MORE

    @property
    def suspect(self) -> bool:
        """True if the targets of the next backward must be read, sampled or not."""
        return self._more > 0 and any(
            one.batches - one.empty >= _SUSPECT and one.least >= _FEWEST and not one.differ
            for one in self._of.values()
            if one.known
        )

    def read(self, node: Node) -> TargetsOfLayer | None:
        """Read the targets of an operation, if it is a loss with targets."""
        name = kind(node)
        if name not in CLASSES and name not in BINARY and name not in _REGRESSION:
            return None
        kept = saved(node)
        target = kept.get("target")
        if target is None or not target.numel():
            return None
        loss = "cross_entropy" if name in CLASSES else "binary_cross_entropy"
        layer = scores_of(node)
        weight = None if layer is None else weight_of(layer)
        classes = _classes(node) if name in CLASSES else 2
        if name in _REGRESSION:
            loss, classes = _REGRESSION[name], 0
            if weight is None or node.next_functions[1][0] is not None:
                return None
        # Other scores, such as those of pairs, may have a single target by construction.
        heads = weight is not None and (
            name not in CLASSES or (classes > 1 and classes in weight.shape[:2])
        )
        # A binary loss on products of embeddings is judged too, all pairs together. Other scores
        # without a trainable layer may be those of a frozen critic.
        pairs = weight is None and name in BINARY and _is_of_embeddings(node)
        known = self._of.setdefault((loss, id(weight)), TargetsOfLayer(loss, classes))
        known.layer = heads
        # Scores that are not judged may be those of the negative pairs.
        known.differ = known.differ or (weight is None and name in BINARY and not pairs)
        index = getattr(node, "_saved_ignore_index", None)
        # If classes are weighted, the script knows that some are rare.
        alike = (heads or pairs) and not {"weight", "pos_weight"} & kept.keys()
        if name in CLASSES and "weight" in kept and 1 < classes <= _WEIGHTED:
            known.weights = tuple(kept["weight"].tolist())
        positive = kept.get("pos_weight")
        if positive is not None and positive.numel() == 1 and "weight" not in kept:
            known.weights = 1.0, float(positive)
        known.beta = getattr(node, "_saved_beta", None)
        known.read(target.detach(), None if index is None else signed(index), alike=alike)
        return known

    def step_ended(self, optimizer: str) -> None:
        """Note an optimizer's step."""
        for one in self._of.values():
            one.step_ended(optimizer)

    def records(self) -> tuple[LossTargets, ...]:
        """Return the records of the targets for each layer's scores."""
        return tuple(one.record() for one in self._of.values())

    def followed(self) -> None:
        """Note that the targets of one more backward were read, because they were suspect."""
        self._more -= 1


def _is_of_embeddings(loss: Node) -> bool:
    """Return True if the scores of a loss are products and sums of embeddings, and of nothing
    else."""
    stack = [one for one, _ in loss.next_functions[:1] if one is not None]
    seen, tables = set(stack), 0
    while stack and len(seen) < _NODES:
        node = stack.pop()
        if kind(node) == "EmbeddingBackward":
            tables += 1
            continue
        if kind(node) not in _PRODUCTS:
            return False
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        stack += following
    return tables > 1 and not stack


def _indices(targets: torch.Tensor) -> torch.Tensor:
    """Return binary targets as class indices, if all are 0 or 1; else the targets."""
    whole = targets.is_floating_point() and bool(((targets == 0) | (targets == 1)).all())
    return targets.long() if whole else targets


def _classes(loss: Node) -> int:
    """Return the number of classes: the size of the softmax's axis; 0 without one."""
    for node in operations(loss):
        dim, shape = (dim_of(node), shape_of(node)) if kind(node) in SOFTMAX else (None, None)
        if dim is not None and shape is not None:
            return shape[dim]
    return 0
