"""The difference of two tensors, against its float64 definition and at the ends of the range."""

from __future__ import annotations

import math

import pytest
import torch

from gradscope.capture.differences import Difference, difference

DRAW = torch.Generator().manual_seed(0)
A, NEAR = (torch.randn(600, 700, generator=DRAW, dtype=torch.float64) for _ in range(2))
B = A * (1 + 1e-3) + 1e-2 * NEAR


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 1e150, 1e-200], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_by_its_definition(dtype: torch.dtype, size: float) -> None:
    """In several chunks; and where squares overflow, or are zero."""
    a, b = (t.to(dtype) for t in (A, B))
    if dtype.is_complex:
        a, b = a + 1j * NEAR, b - 0.5j * NEAR
    found = difference(a * size, b * size)
    dot = float((a.conj() * b).real.sum())
    norms = [float(torch.linalg.vector_norm(t)) for t in (a, b, b - a)]
    assert found.error == pytest.approx(norms[2] / norms[0], rel=1e-10)
    assert found.cosine == pytest.approx(dot / (norms[0] * norms[1]), abs=1e-12)
    assert found.scale == pytest.approx(dot / norms[0] ** 2 - 1, abs=1e-12)
    assert found.largest / size == pytest.approx(float((b - a).abs().max()), rel=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([], [], Difference(0.0, None, 0.0)),
        ([0, 0], [0, 0], Difference(0.0, None, 0.0)),
        ([1, 2], [1, 2], Difference(0.0, 1.0, 0.0)),
        ([3, 4], [0, 0], Difference(1.0, None, 4.0)),
        ([0, 0], [3, 4], Difference(math.inf, None, 4.0)),
        ([1, math.nan], [1, 2], Difference(math.inf, None, math.inf)),
        ([2, math.inf], [2, -math.inf], Difference(math.inf, None, math.inf)),
        ([2, math.inf, math.nan], [2, math.inf, math.nan], Difference(0.0, 1.0, 0.0)),
    ],
)
def test_zeros_and_what_is_not_finite(a: list[float], b: list[float], expected: Difference) -> None:
    assert difference(torch.tensor(a), torch.tensor(b)) == expected
