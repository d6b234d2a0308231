"""Norms of gradients against float64, over dtypes, layouts, sizes and ranges."""

from __future__ import annotations

import math

import pytest
import torch

from gradscope.capture.reductions import gradient_norms
from gradscope.capture.stats import measure


def exact(tensor: torch.Tensor) -> float:
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    wide = torch.complex128 if dense.is_complex() else torch.float64
    return dense.to(wide).abs().norm().item()


TENSORS = {
    "small": torch.randn(3, 4),
    "one number": torch.tensor(-2.5),
    "a block and a bit": torch.randn(2049),
    "many blocks": torch.randn(300_001),
    "equal values": torch.full((500_000,), 0.7),
    "transposed": torch.randn(300, 200).T,
    "expanded": torch.randn(1, 50).expand(100, 50),
    "half": torch.randn(5000).half(),
    "half beyond its squares": torch.full((5000,), 6e4).half(),
    "bfloat16": torch.randn(5000).bfloat16(),
    "double": torch.randn(5000).double(),
    "complex": torch.randn(100, dtype=torch.complex64),
    "sparse": torch.eye(50).to_sparse(),
    "huge": torch.full((5000,), 1e25),
    "tiny": torch.full((5000,), 1e-25),
    "zeros": torch.zeros(5000),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_norm_is_float64s(name):
    tensor = TENSORS[name]
    assert gradient_norms([tensor])[0] == pytest.approx(exact(tensor), rel=1e-5)


def test_several_keep_their_order():
    found = gradient_norms(list(TENSORS.values()))
    assert found == pytest.approx([exact(t) for t in TENSORS.values()], rel=1e-5)


@pytest.mark.parametrize("size", [3, 5000, 100_000])
def test_what_is_not_finite_shows(size):
    for value in (math.nan, math.inf, -math.inf):
        tensor = torch.randn(size)
        tensor[size // 2] = value
        found = gradient_norms([torch.ones(3), tensor])[1]
        assert not math.isfinite(found)
        assert math.isnan(found) == math.isnan(value)


@pytest.mark.parametrize("wild", [1.0, math.nan, math.inf, 1e30])
def test_known_statistics_give_the_same_norm(wild):
    gradients = [torch.randn(size) for size in (3, 5000, 70_000, 300_000)]
    for gradient in gradients:
        gradient[1] = wild
    known = {id(gradient): measure(gradient) for gradient in gradients}
    found = gradient_norms(gradients, known)
    assert repr(found) == repr(gradient_norms(gradients))  # to the last bit, and nan is nan


def test_none_at_all():
    assert gradient_norms([]) == []
    assert gradient_norms([torch.empty(0)]) == [0.0]


def test_autograd_sees_nothing():
    gradient = torch.randn(5000, requires_grad=True)
    version = gradient._version
    assert gradient_norms([gradient])[0] > 0
    assert gradient._version == version
    assert gradient.grad_fn is None
