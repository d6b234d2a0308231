"""Tests, without a model, whether the targets depend on the inputs.

If every sample has the same input, the model returns the same for every sample. Then the gradient
of the loss with respect to the output of a sample depends on the sample's target alone, whatever
the loss is. Each of these gradients is paired with the input that the script gave, and the
dependence of the two is compared with that of shuffled pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from gradscope.capture.hooks import hook_tensor
from gradscope.experiment.comparison import PLANTED, RELATED, SAMPLES, Dependence
from gradscope.nesting import find

#: Primes that spread the places and tokens of a sample.
_PLACE, _TOKEN, _MIX = 1_000_003, 8_191, 2_654_435_761


def hashes(batch: torch.Tensor) -> Iterator[int]:
    """Yield a hash of each sample; samples are along the first dimension."""
    rows = batch.detach().cpu().resolve_conj().reshape(len(batch), -1).contiguous()
    for row in rows.view(torch.uint8).numpy():
        yield hash(row.tobytes())


def sketch(batch: torch.Tensor, width: int) -> torch.Tensor:
    """Return a count sketch of each sample, with at most ``width`` numbers.

    Each element is added to one of the columns with a random sign, so the expected inner product of
    two rows equals that of the samples (Charikar, Chen and Farach-Colton, 2002). Integers count as
    tokens: the inner product is the number of positions with the same token.

    Args:
        batch: samples × …
        width: the most columns.

    Returns:
        Samples × columns, float32, on the CPU.
    """
    rows = batch.detach()
    rows = torch.view_as_real(rows) if rows.is_complex() else rows
    rows = rows.reshape(len(rows), -1).cpu()
    made = torch.zeros(len(rows), width, device="cpu")
    places = torch.arange(rows.shape[1], device="cpu")
    if rows.is_floating_point() or rows.dtype == torch.uint8:
        rows = rows.float()
        if rows.shape[1] <= width:
            return rows
        columns, signs = _spread(places, width)
        return made.index_add_(1, columns, rows * signs)
    columns, signs = _spread(places + _TOKEN * rows.long(), width)
    return made.scatter_add_(1, columns, signs)


def _spread(keys: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the column and the sign of each key; no generator of the script's is used."""
    mixed = (keys * _PLACE + 12_345) * _MIX
    mixed = (mixed ^ (mixed >> 29)) * _PLACE
    return (mixed >> 20) % width, ((mixed >> 50) & 1) * 2.0 - 1.0


#: Most columns of an input, and of an output's gradient.
_INPUT, _GRADIENT = 1024, 64
#: Most samples, and most of those whose pairs are compared.
MOST, _PAIRED = 4096, 1536
#: Samples whose pairs are shuffled among them: those of a batch, or of several small ones.
_GROUP = 16
#: Shuffles that the pairs are compared with.
_SHUFFLES = 24
#: Gradients of a batch that sum to less are rounding.
_ROUNDING = 1e-4
#: Shares of all pairs of samples: the nearest ones, and those around them.
_NEAREST = (3e-4, 3e-3, 3e-2)
#: Most values of a column of bits or tokens, and the samples in which they are counted.
_VALUES, _COUNTED = 4, 256


@dataclass(slots=True)
class Pairs:
    """Inputs, each with the gradient of its output.

    Attributes:
        samples: the number of samples.
    """

    samples: int = 0
    _known: set[int] = field(default_factory=set)
    _calls: list[_Call] = field(default_factory=list)

    def given(self, inputs: Sequence[torch.Tensor], dim: int) -> None:
        """Note the inputs of a call, as the script gave them; ``dim`` is the batch dimension."""
        if self.samples >= MOST or not inputs or inputs[0].dim() <= dim:
            return
        count = inputs[0].shape[dim]
        alike = [one.transpose(0, dim) for one in inputs if one.dim() > dim]
        alike = [one for one in alike if len(one) == count]
        made = torch.cat([sketch(one, _INPUT) for one in alike], 1)
        new = []  # a sample that comes again brings its target, and would seem to be related to it
        for key in zip(*map(hashes, alike), strict=True):
            new.append(hash(key) not in self._known)
            self._known.add(hash(key))
        self._calls.append(_Call(made, torch.tensor(new, device="cpu"), dim))
        self.samples += sum(new)

    def returned(self, output: Any) -> None:
        """Wait for the gradients of the output of the call that was noted last."""
        if not self._calls or self._calls[-1].awaited:
            return
        call = self._calls[-1]
        call.awaited = True
        for _, tensor in find(output, torch.Tensor):
            dims = [d for d in dict.fromkeys((call.dim, 0, 1)) if d < tensor.dim()]
            dim = next((d for d in dims if tensor.shape[d] == len(call.inputs)), None)
            if dim is not None and tensor.requires_grad:
                hook_tensor(tensor, call.arrival(dim))

    def dependence(self) -> Dependence | None:
        """Return the dependence of the targets on the inputs; None: it cannot be measured.

        The largest of several measures: the inner products of inputs against those of gradients
        (the Hilbert-Schmidt independence criterion, Gretton et al. 2007), along one direction only,
        their squares, and the gradients of the nearest samples.
        """
        calls = [call for call in self._calls if call.is_usable()]
        if not calls:
            return None
        wide = max(call.inputs.shape[1] for call in calls)
        calls = [call for call in calls if call.inputs.shape[1] == wide]
        inputs = torch.cat([call.inputs[call.new] for call in calls])
        groups, gradients = _grouped(calls)
        keep = inputs.isfinite().all(1) & gradients.isfinite().all(1)
        if int(keep.sum()) < SAMPLES:
            return None
        return _dependence(inputs[keep][:MOST], gradients[keep][:MOST], groups[keep][:MOST])


@dataclass(slots=True)
class _Call:
    """One call of a model: its inputs, which of them are new, and its output's gradients."""

    inputs: torch.Tensor
    new: torch.Tensor
    dim: int
    awaited: bool = False
    gradients: torch.Tensor | None = None

    def arrival(self, dim: int) -> Any:
        """Return a hook on an output whose samples lie along ``dim``."""

        def arrived(gradient: torch.Tensor) -> None:
            made = sketch(gradient.transpose(0, dim).float(), _GRADIENT)
            if self.gradients is None:
                self.gradients = made
            elif self.gradients.shape == made.shape:
                self.gradients = self.gradients + made

        return arrived

    def is_usable(self) -> bool:
        gradients = self.gradients
        if gradients is None or not bool(self.new.any()):
            return False
        return bool(gradients.abs().sum() > _ROUNDING)


def _grouped(calls: Sequence[_Call]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the group of each new sample, and its gradients without the mean and scale of its
    group."""
    numbers: list[torch.Tensor] = []
    gradients: list[torch.Tensor] = []
    waiting: list[torch.Tensor] = []
    wide = max(call.gradients.shape[1] for call in calls if call.gradients is not None)
    for call in calls:
        assert call.gradients is not None
        found = call.gradients[call.new]
        waiting.append(torch.nn.functional.pad(found, (0, wide - found.shape[1])))
        if sum(map(len, waiting)) < _GROUP and call is not calls[-1]:
            continue
        together = torch.cat(waiting)
        together = together - together.mean(0)
        gradients.append(together / together.square().mean().sqrt().clamp(min=1e-30))
        numbers.append(torch.full((len(together),), len(numbers), device="cpu"))
        waiting = []
    return torch.cat(numbers), torch.cat(gradients)


def _dependence(inputs: torch.Tensor, gradients: torch.Tensor, groups: torch.Tensor) -> Dependence:
    """Return the largest of the measures, in standard deviations of those of shuffled pairs."""
    made = torch.Generator().manual_seed(0)
    inputs = inputs - inputs.mean(0)
    spreads = inputs.std(0)
    inputs = inputs[:, spreads > 1e-6] / spreads[spreads > 1e-6]
    if not inputs.shape[1]:
        return Dependence(0.0, 0.0, discrete=True)
    kernels = list(_kernels(inputs[:_PAIRED]))

    def ordered(scores: torch.Tensor) -> torch.Tensor:
        """Return the samples group by group, sorted by their scores within each group."""
        order = scores.argsort()
        return order[groups[order].argsort(stable=True)]

    shuffled = []
    for _ in range(_SHUFFLES):
        order = ordered(torch.rand(len(groups), generator=made, device="cpu"))
        shuffled.append(_measures(inputs, kernels, gradients[order]))
    by_chance = torch.stack(shuffled)

    def strength(gradients: torch.Tensor) -> float:
        deviations = (_measures(inputs, kernels, gradients) - by_chance.mean(0)) / by_chance.std(0)
        return float(deviations.abs().nan_to_num(0.0, posinf=0.0).max())

    along = inputs @ torch.randn(inputs.shape[1], generator=made, device="cpu")
    noise = torch.randn(len(along), generator=made, device="cpu")
    targets = gradients @ torch.randn(gradients.shape[1], generator=made, device="cpu")
    planted, seen = torch.empty_like(gradients), 0.0
    for share in PLANTED:
        scores = math.sqrt(share) * along / along.std() + math.sqrt(1 - share) * noise
        planted[ordered(scores)] = gradients[ordered(targets)]
        seen = strength(planted)
        if seen >= RELATED:
            break
    return Dependence(strength(gradients), seen, _is_discrete(inputs), share)


def _is_discrete(inputs: torch.Tensor) -> bool:
    """Return True if at least half of the columns have few values."""
    ordered = inputs[:_COUNTED].sort(0).values
    values = 1 + (ordered.diff(dim=0) > 0).sum(0)
    return bool((values <= _VALUES).double().mean() >= 0.5)


def _kernels(inputs: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield matrices over pairs: the squares of the inner products, and marks of near pairs."""
    products = inputs @ inputs.T
    yield (products / inputs.shape[1]).square().fill_diagonal_(0)
    norms = products.diagonal()
    distances = (norms[:, None] + norms - 2 * products).fill_diagonal_(math.inf)
    ordered = distances.flatten().sort().values
    pairs = len(inputs) * (len(inputs) - 1)
    limits = [-math.inf, *(float(ordered[int(share * pairs)]) for share in _NEAREST)]
    for low, high in pairwise(limits):
        yield ((distances > low) & (distances <= high)).float()


def _measures(
    inputs: torch.Tensor, kernels: Sequence[torch.Tensor], gradients: torch.Tensor
) -> torch.Tensor:
    """Return sums over pairs of different samples, and a singular value.

    Each sum adds a kernel times the inner product of the pair's gradients; the kernel of the first
    sum is the inner product of the pair's inputs. The second number is the largest squared singular
    value of the products of inputs and gradients. It stands out if one direction of the inputs is
    related to one of the gradients.
    """
    own = inputs.square().sum(1) @ gradients.square().sum(1)
    products = inputs.T @ gradients
    found = [products.square().sum() - own, torch.linalg.eigvalsh(products.T @ products)[-1]]
    found += [((one @ part) * part).sum() for one in kernels for part in [gradients[: len(one)]]]
    return torch.stack(found)
