"""The noise scale against its closed form for linear regression with Gaussian inputs and noise."""

from __future__ import annotations

import math

import pytest
import torch

from gradscope.per_sample.step import NoiseScale, noise_scale


def regression(
    generator: torch.Generator, *, inputs: int, batch: int, noise: float, distance: float
) -> NoiseScale:
    """Of one batch: y = x·w* + noise, at weights ``distance`` from w*."""
    error = torch.ones(inputs, dtype=torch.float64) * distance / math.sqrt(inputs)
    x = torch.randn(batch, inputs, generator=generator, dtype=torch.float64)
    residual = x @ error - noise * torch.randn(batch, generator=generator, dtype=torch.float64)
    parts = x * residual[:, None] / batch
    full = parts.sum(0)
    found = noise_scale((parts**2).sum(1), parts @ full, float(full @ full))
    assert found is not None
    return found


def closed_form(*, inputs: int, noise: float, distance: float) -> float:
    """tr(Σ) / |G|²: Σ = (|e|² + σ²) I + e eᵀ, and G = e."""
    return (inputs * (distance**2 + noise**2) + distance**2) / distance**2


@pytest.mark.parametrize(
    ("inputs", "batch", "noise", "distance"),
    [(5, 1024, 1.0, 1.0), (5, 512, 0.5, 1.0), (20, 2048, 1.0, 1.0), (10, 4096, 2.0, 1.0)],
)
def test_closed_form(inputs: int, batch: int, noise: float, distance: float) -> None:
    generator = torch.Generator().manual_seed(7)
    true = closed_form(inputs=inputs, noise=noise, distance=distance)
    found = [
        regression(generator, inputs=inputs, batch=batch, noise=noise, distance=distance)
        for _ in range(400)
    ]
    within = sum(one.low <= true <= one.high for one in found)
    assert within >= 0.95 * len(found)
    finite = [one for one in found if one.high < math.inf]
    assert len(finite) == len(found)
    values = sorted(one.value for one in found if one.value is not None)
    assert values[len(values) // 2] == pytest.approx(true, rel=0.1)


def test_no_signal_has_no_upper_end() -> None:
    generator = torch.Generator().manual_seed(8)
    found = [
        regression(generator, inputs=10, batch=16, noise=1.0, distance=1e-9) for _ in range(50)
    ]
    assert sum(one.high == math.inf for one in found) >= 45


def test_two_samples_say_nothing() -> None:
    two = torch.ones(2, dtype=torch.float64)
    assert noise_scale(two, two, 1.0) is None
