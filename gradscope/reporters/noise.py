"""The noise scale of a gradient, in words."""

from __future__ import annotations

from gradscope.records.full_samples import GradientNoise
from gradscope.records.training import RunNoise
from gradscope.typeset.numbers import count, plural


def noise_scale(noise: GradientNoise | RunNoise, batch: int, seen: str) -> str:
    """Return the noise scale, with its meaning for the batch's size.

    Args:
        noise: the estimate.
        batch: the number of samples in the batch.
        seen: what it is an estimate from, such as "6 samples".
    """
    high = "or more" if noise.high is None else f"to {noise.high:.0f}"
    interval = f"95 % interval: {noise.low:.0f} {high}"
    if noise.value is None:
        return f"noise scale: unknown ({interval}); {seen} are too few"
    estimate = f"noise scale: {noise.value:.0f} samples ({interval})"
    if noise.low > 4 * batch:
        return f"{estimate}: a batch 4 times as large as {batch} would still pay"
    if noise.low > batch:
        return f"{estimate}: a batch larger than {batch} would still pay"
    if noise.high is not None and noise.high < batch:
        return f"{estimate}: a batch larger than {batch} gains little"
    return estimate


def noise_of_run(noise: RunNoise) -> str:
    """Return the noise scale of a run, and the parts of the gradient that it comes from."""
    parts = "rank" if noise.by_ranks else "micro-batch"
    several = plural(noise.parts, parts, "ranks" if noise.by_ranks else "micro-batches")
    seen = f"{plural(noise.steps, 'sampled step')} with {several} of {count(noise.size)}"
    estimate = noise_scale(noise, noise.size * noise.parts, seen)
    return estimate if noise.value is None else f"{estimate}; from {seen}"
