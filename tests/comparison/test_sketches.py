"""Sketches against the tensors that they are of, in float64: an estimate, and how good it is."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from gradscope.records.full_samples import SKETCH_WIDTH
from gradscope.running.sketching import projected


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((projected(b).numbers - projected(a).numbers).norm())


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
@pytest.mark.parametrize("error", [1e-10, 1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("shape", [(40, 7), (3, 64, 11), (1000, 300)])
def test_the_error_is_that_of_the_tensors(shape, error):
    """The documented deviation of the square is √(2 / width); of 40 the mean is nearer."""
    found = []
    for seed in range(40):
        a = drawn(*shape, seed=seed)
        b = a + error * drawn(*shape, seed=seed + 1000)
        found.append(distance(a, b) ** 2 / float((b - a).norm()) ** 2)
    deviation = math.sqrt(2 / SKETCH_WIDTH)
    assert statistics.fmean(found) == pytest.approx(1.0, abs=3.5 * deviation / math.sqrt(40))
    assert statistics.stdev(found) < 1.5 * deviation
    assert all(abs(one - 1) < 4.5 * deviation for one in found)


def test_a_difference_in_one_element_is_exact():
    a = drawn(1000)
    b = a.clone()
    b[617] += 0.25
    assert distance(a, b) == pytest.approx(0.25, rel=1e-9)


def test_a_scale_is_exact_up_to_the_estimate_of_the_norm():
    a = drawn(50, 50)
    whole = float(projected(a).numbers.norm())
    assert distance(a, 1.01 * a) == pytest.approx(0.01 * whole, rel=1e-9)


def test_the_projection_is_the_same_everywhere():
    """The place of an element is part of the format: saved sketches depend on it."""

    def place(index: int) -> tuple[int, int]:
        x = index & 0xFFFFFFFF
        for _ in range(2):
            x = (((x >> 16) ^ x) * 0x45D9F3B) & 0xFFFFFFFF
        x = (x >> 16) ^ x
        return x % SKETCH_WIDTH, 1 - 2 * ((x >> 20) & 1)

    values = drawn(300_000)  # more than one chunk
    expected = [0.0] * SKETCH_WIDTH
    for index, value in enumerate(values.tolist()):
        number, sign = place(index)
        expected[number] += sign * value
    assert projected(values).numbers.tolist() == pytest.approx(expected, abs=1e-9)


SAME = {
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "a view": lambda x: torch.stack([x, x], -1)[..., 0],
    "another shape": lambda x: x.reshape(-1),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_the_layout_does_not_matter(change):
    x = drawn(2, 3, 5, 7)
    assert torch.equal(projected(x).numbers, projected(change(x)).numbers)


def test_what_is_not_finite_is_counted_and_left_out():
    x = torch.tensor([1.0, math.nan, math.inf, -math.inf, 2.0])
    found = projected(x)
    assert found.nonfinite == 3
    assert found.norm == pytest.approx(math.sqrt(5))
    assert torch.equal(found.numbers, projected(torch.tensor([1.0, 0, 0, 0, 2.0])).numbers)


KINDS = {
    "integers": torch.arange(10),
    "yes and no": torch.tensor([True, False]),
    "bfloat16": torch.ones(4, dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j, 3 - 1j]),
    "nothing": torch.zeros(0),
    "one number": torch.tensor(3.0),
    "sparse": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("tensor", KINDS.values(), ids=KINDS)
def test_every_kind_of_tensor(tensor):
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    wide = torch.view_as_real(dense) if dense.is_complex() else dense
    assert projected(tensor).norm == pytest.approx(float(wide.double().norm()))
