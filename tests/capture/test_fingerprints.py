"""Fingerprints are equal where all bits are, and where one is not they differ."""

from __future__ import annotations

import math

import pytest
import torch

from gradscope.capture.differences import combined, fingerprints

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8),
    *(torch.bool, torch.complex64, torch.float8_e4m3fn),
]


def one(tensor: torch.Tensor) -> str:
    (text,) = fingerprints([tensor])
    return text


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    bits = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(0))
    return bits.to(torch.uint8).view(dtype).view(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (5, 7), (1025,), (64, 33, 3)], ids=str)
def test_any_bit_counts(shape, dtype):
    tensor = drawn(shape, dtype)
    assert one(tensor) == one(tensor.clone())
    for place in {0, tensor.numel() // 2, tensor.numel() - 1}:
        other = tensor.clone()
        bits = other.view(-1).view(torch.uint8)
        bits[place * tensor.element_size()] ^= 1
        assert one(other) != one(tensor)


def test_what_memory_it_lies_in_does_not_count():
    tensor = torch.randn(40, 30)
    assert one(tensor) == one(tensor.t().contiguous().t())
    wide = torch.zeros(1201, dtype=torch.bfloat16)
    wide[1:].copy_(tensor.view(-1))  # at an odd place
    assert one(wide[1:]) == one(wide[1:].clone())
    assert one(tensor.to_sparse()) == one(tensor)


def test_shape_order_and_sign_count():
    tensor = torch.randn(6, 4)
    others = [tensor.view(4, 6), tensor.flip(0), -tensor, tensor.double(), tensor[:, :3]]
    assert len({one(tensor), *map(one, others)}) == 6
    assert one(torch.tensor(0.0)) != one(torch.tensor(-0.0))
    assert one(torch.empty(0)) != one(torch.empty(0, 2))


def test_many_at_once_are_as_one_by_one():
    tensors = [torch.randn(n) for n in (1, 5, 1024, 5000)]
    assert fingerprints(tensors) == [one(t) for t in tensors]
    assert fingerprints([]) == []
    assert combined(["a", "b"]) != combined(["b", "a"])
