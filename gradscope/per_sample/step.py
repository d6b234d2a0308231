"""Records the gradient of each sample in a step of a workload.

It estimates the noise of the gradient relative to its size, by B_simple = tr(Σ) / |G|² of
McCandlish et al. (https://arxiv.org/abs/1812.06162), where Σ is the covariance of one sample's
gradient and G the true gradient. If the batch is far smaller than B_simple, twice the samples halve
the steps; if it is far larger, they help little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradscope.loading.batches import Batch, MicroBatch, batch_size, cut, rows_of
from gradscope.loading.workload import Workload
from gradscope.per_sample.contributions import NotSeparable, SampleGradients, sample_gradients
from gradscope.records.full_samples import GradientNoise, PerSample, SampleGradient
from gradscope.records.tensors import finite_or_none
from gradscope.runfile.gradient_noise import fieller
from gradscope.running.rerun import rerun
from gradscope.running.step import GraphRoot, Observer, Step, cloned_batch

#: Half the width of the interval, in standard errors: with 2, squares of long-tailed gradients are
#: outside in 7 % of batches; with this in at most 5 % (linear regression, tests/per_sample).
_ERRORS = 2.4


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """An estimate, in samples.

    Attributes:
        value: the estimate; None if the gradient is no larger than its noise.
        low, high: its 95 % interval; ``high`` is infinite if |G|² may be 0.
        samples: the number of samples that it uses.
    """

    value: float | None
    low: float
    high: float
    samples: int


def noise_scale(squares: torch.Tensor, products: torch.Tensor, batch: float) -> NoiseScale | None:
    """Estimate the noise scale from the parts of one batch; None for fewer than three samples.

    The estimates of tr(Σ) and |G|² are unbiased. Their errors come from the jackknife, which leaves
    out one sample at a time; the interval of the ratio is Fieller's.

    Args:
        squares: squared norm of each sample's part of the batch's mean gradient, [samples].
        products: scalar product of each part with the batch's gradient, [samples].
        batch: squared norm of the batch's gradient.
    """
    count = squares.numel()
    if count < 3:
        return None
    # The parts are gradients of samples, divided by their number.
    own, along = squares.double() * count**2, products.double() * count
    noise, signal = _estimates(
        own.mean(), torch.as_tensor(batch, dtype=torch.float64, device=own.device), count
    )
    left = count - 1
    means = (own.sum() - own) / left
    batches = (count**2 * batch - 2 * count * along + own) / left**2
    noises, signals = _estimates(means, batches, left)
    # Pseudo-values, whose spread is that of the estimates.
    pseudo = torch.stack([count * noise - left * noises, count * signal - left * signals])
    covariance = torch.cov(pseudo) / count
    errors = covariance[0, 0].item(), covariance[0, 1].item(), covariance[1, 1].item()
    low, high = fieller((noise.item(), signal.item()), errors, _ERRORS)
    value = noise.item() / signal.item() if signal > 0 else None
    return NoiseScale(value, low, high, count)


def _estimates(
    mean: torch.Tensor, batch: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tr(Σ) and |G|², from the mean of |g|² and from |mean g|² over ``count`` samples."""
    return (mean - batch) * count / (count - 1), (count * batch - mean) / (count - 1)


__all__ = ["NotSeparable", "gradients_by_sample", "step_by_sample"]

#: Number of layers named for each sample.
_LAYERS = 3


@dataclass(kw_only=True)
class _OutputKept(Observer):
    """Keeps the model's output."""

    output: Any = None

    def root(self, step: Step, output: Any) -> GraphRoot:
        self.output = output
        return super().root(step, output)


def step_by_sample(workload: Workload, number: int = 0) -> PerSample:
    """Split the gradient of a step by sample, and restore all state.

    Raises:
        NotSeparable: the batch has one sample, or the model's output has no row for each.
    """
    return _record(*gradients_by_sample(workload, number))


def gradients_by_sample(
    workload: Workload, number: int = 0
) -> tuple[SampleGradients, list[float | None]]:
    """Return the parts of a step's gradient and the loss of each sample; see ``step_by_sample``."""
    observer = _OutputKept()
    with rerun(workload, number, observer=observer) as step:
        count = batch_size(step.clone)
        if count < 2:
            raise NotSeparable("the batch has one sample; a larger one: `input.batch=16`")

        def forward() -> tuple[Any, torch.Tensor]:
            loss = step.loss()
            scale = workload.gradient
            return observer.output, loss if scale is None else (loss * _like(scale, loss)).sum()

        found = sample_gradients(workload.model, forward, count)
        return found, _losses(step, observer.output, count)


def _like(scale: Any, loss: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(scale, dtype=loss.dtype, device=loss.device)


def _losses(step: Step, output: Any, count: int) -> list[float | None]:
    """Return the loss of each sample, from its row of the output; None if it has none.

    If the model computes the loss, each sample takes its own forward pass.
    """
    criterion = step.workload.criterion
    batch = step.clone
    if batch.target is None:
        batch = replace(batch, target=criterion.target)
    inside = criterion.spec == "output" or criterion.name.startswith("output")
    losses: list[float | None] = []
    for part, own in cut(batch, count):
        try:
            with torch.no_grad():
                loss = (
                    replace(step, clone=cloned_batch(own), part=part).loss()
                    * step.workload.accumulate
                    if inside
                    else _of_row(step, output, own, part)
                )
        except Exception:
            return [None] * count  # a loss of several samples, or a model that needs several
        losses.append(float(loss) if loss.numel() == 1 and math.isfinite(float(loss)) else None)
    return losses


def _of_row(step: Step, output: Any, own: Batch, part: MicroBatch) -> torch.Tensor:
    criterion = step.workload.criterion
    criterion.part = part
    try:
        return criterion(rows_of(output, part), own.target)
    finally:
        criterion.part = step.part


def _record(found: SampleGradients, losses: list[float | None]) -> PerSample:
    places: dict[str, list[int]] = {}
    for place, name in enumerate(found.names):
        places.setdefault(name.rpartition(".")[0], []).append(place)
    by_layer = {name: found.squares[:, where].sum(1) for name, where in places.items()}
    samples = []
    for index, loss in enumerate(losses):
        square = float(found.squares[index].sum())
        parts = {name: float(s[index]) / square for name, s in by_layer.items()} if square else {}
        largest = sorted(parts.items(), key=lambda one: -one[1])[:_LAYERS]
        samples.append(
            SampleGradient(
                index=index,
                loss=loss,
                norm=finite_or_none(float(found.norms[index])),
                share=finite_or_none(float(found.shares[index])),
                cosine=finite_or_none(float(found.cosines[index])),
                layers=tuple((name, share) for name, share in largest if math.isfinite(share)),
            )
        )
    noise = [_noise(None, found, list(range(len(found.names))))]
    noise += [_noise(name, found, where) for name, where in places.items()]
    return PerSample(
        samples=tuple(samples),
        norm=finite_or_none(found.norm),
        rest=finite_or_none(float(found.rest.sum().sqrt())),
        noise=tuple(one for one in noise if one is not None),
        mixing=found.mixing,
    )


def _noise(name: str | None, found: SampleGradients, where: list[int]) -> GradientNoise | None:
    """Estimate the noise of some parameters' gradient; None if that is impossible."""
    squares, products = found.squares[:, where].sum(1), found.products[:, where].sum(1)
    batch = float(found.batch[where].sum())
    if not math.isfinite(batch) or not batch or found.mixing:
        return None
    scale = noise_scale(squares, products, batch)
    if scale is None:
        return None
    return GradientNoise(
        name, scale.value, scale.low, None if math.isinf(scale.high) else scale.high
    )
