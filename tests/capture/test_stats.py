"""Statistics against float64 computed by NumPy, on the CPU's fast path and on the exact one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gradscope.capture import stats as stats_module
from gradscope.capture.reductions import exact, in_memory_order
from gradscope.capture.stats import Deferred, measure, resolve
from gradscope.records.tensors import TensorStats

pytestmark = pytest.mark.numbers

#: More than float32 can count.
BIG = 17_000_000


def _special() -> torch.Tensor:
    tensor = torch.randn(1000)
    tensor[3], tensor[5], tensor[7], tensor[8] = math.nan, math.inf, -math.inf, 0.0
    return tensor


CASES = {
    "normal": lambda: torch.randn(100_000),
    "mean 1000 times the spread": lambda: 1000 + torch.randn(1_000_000),
    "mean 5 times the spread": lambda: 4.9 + torch.randn(1_000_000),
    "17 M equal values": lambda: torch.full((BIG,), 0.3),
    "17 M normal values": lambda: torch.randn(BIG),
    "a slope": lambda: torch.linspace(-1, 3, 5_000_000),
    "large steps that cancel": lambda: torch.tensor([1e6, -1e6, 1.0, 0.0]).repeat(1_500_000),
    "one large value among small ones": lambda: torch.cat(
        [torch.rand(3_000_000), torch.tensor([1e6])]
    ),
    "zeros in one chunk alone": lambda: torch.cat([torch.zeros(1 << 20), torch.rand(1 << 20) + 1]),
    "a nan in the last chunk": lambda: torch.cat([torch.randn(3 << 20), torch.tensor([math.nan])]),
    "small in one chunk alone": lambda: torch.cat(
        [torch.full((1 << 20,), 1e-30), torch.randn(1 << 20)]
    ),
    "subnormal": lambda: torch.full((300_000,), 1e-42),
    "subnormal among numbers": lambda: torch.cat([torch.full((5000,), 1e-42), torch.randn(5000)]),
    "minus zero": lambda: torch.tensor([-0.0, 0.0, 1.0, -1.0]).repeat(1000),
    "bfloat16, mean 100 times the spread": lambda: (100 + torch.randn(3_000_000)).bfloat16(),
    "float16, channels last": lambda: (
        torch.randn(8, 16, 128, 128).relu().half().to(memory_format=torch.channels_last)
    ),
    "1e30": lambda: torch.full((300_000,), 1e30),
    "1e-30": lambda: torch.full((300_000,), 1e-30),
    "both ends of float32": lambda: torch.tensor([1e30, -1e-30, 0.0, 3.4e38]),
    "float16 at its maximum": lambda: torch.full((100_000,), 65504.0, dtype=torch.float16),
    "bfloat16": lambda: torch.randn(300_000).bfloat16(),
    "float8": lambda: torch.randn(10_000).to(torch.float8_e4m3fn),
    "float8 with two bits": lambda: torch.randn(10_000).to(torch.float8_e5m2),
    "float64 beyond its own square": lambda: torch.full((100,), 1e300, dtype=torch.float64),
    "float64 subnormal": lambda: torch.full((100,), 5e-324, dtype=torch.float64),
    "nan and inf among numbers": _special,
    "nothing finite": lambda: torch.tensor([math.nan, math.inf]),
    "0-dim": lambda: torch.tensor(3.0),
    "zeros": lambda: torch.zeros(50),
    "bool": lambda: torch.rand(100) > 0.5,
    "int64": lambda: torch.randint(-9, 9, (1000,)),
    "int64 at its ends": lambda: torch.tensor([2**62, -(2**62)]),
    "uint8": lambda: torch.randint(0, 255, (1000,), dtype=torch.uint8),
    "complex64": lambda: torch.randn(5000, dtype=torch.complex64),
    "complex64 whose modulus overflows": lambda: torch.full(
        (50,), 3e38 + 3e38j, dtype=torch.complex64
    ),
    "complex128": lambda: torch.randn(50, dtype=torch.complex128),
    "expanded": lambda: torch.randn(1, 7, 1).expand(5, 7, 1000),
    "one number expanded": lambda: torch.tensor(2.0).expand(10, 10),
    "channels last": lambda: torch.randn(2, 3, 50, 50).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(40, 50).t(),
    "strided": lambda: torch.randn(400, 50)[::3, ::2],
    "conjugate view": lambda: torch.randn(64, dtype=torch.complex64).conj(),
    "sparse": lambda: torch.eye(5).mul(3).to_sparse(),
    "sparse and uncoalesced": lambda: torch.sparse_coo_tensor(
        [[0, 0, 2], [1, 1, 0]], [3.0, 4.0, 5.0], (3, 4), check_invariants=True
    ),
    "sparse without entries": lambda: torch.zeros(3, 4).to_sparse(),
}


def truth(tensor: torch.Tensor) -> dict[str, float | int | None]:
    """The same figures by NumPy in float64, scaled so that no square leaves its range."""
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    numbers = tensor.to(wide).reshape(-1).numpy()  # before version 2 NumPy has 32 axes
    numbers = np.abs(numbers) if tensor.is_complex() else numbers
    numbers = numbers.reshape(-1)
    finite = numbers[np.isfinite(numbers)]
    counts = {
        "zeros": int((numbers == 0).sum()),
        "nan": int(np.isnan(numbers).sum()),
        "inf": int(np.isinf(numbers).sum()),
    }
    if not finite.size:
        return dict.fromkeys(("norm", "mean", "std", "min", "max")) | counts
    scale = float(np.abs(finite).max()) or 1.0
    finite = finite / scale
    moments = {
        "norm": float(np.sqrt(np.square(finite).sum()) * scale),
        "mean": float(finite.mean() * scale),
        "std": float(finite.std() * scale),
        "min": float(finite.min() * scale),
        "max": float(finite.max() * scale),
    }
    return moments | counts


def differences(stats: TensorStats, tensor: torch.Tensor) -> list[str]:
    """Figures off by more than: norm, min, max 1e-5; mean 1e-5 of the rms; std 1e-3; counts 0."""
    wanted = truth(tensor)
    rms = (wanted["norm"] or 0.0) / math.sqrt(max(1, tensor.numel()))
    wrong = []
    for name, value in wanted.items():
        found = getattr(stats, name)
        if value is None or found is None:
            allowed = 0.0 if value is found else -1.0
            value = found = 0.0
        elif name in ("zeros", "nan", "inf"):
            allowed = 0.0
        elif name == "mean":
            allowed = 1e-5 * rms
        elif name == "std":  # of equal values the true spread is 0
            allowed = max(1e-3 * value, 1e-9 * rms)
        else:
            allowed = 1e-5 * abs(value)
        if not abs(found - value) <= allowed:
            wrong.append(f"{name}: {found}, truly {value}")
    return wrong


@pytest.fixture(params=CASES, ids=str)
def tensor(request: pytest.FixtureRequest) -> torch.Tensor:
    torch.manual_seed(0)
    return CASES[request.param]()


@pytest.mark.slow
def test_measure(tensor, way):
    stats = measure(tensor)
    assert isinstance(stats, TensorStats)
    assert differences(stats, tensor) == []
    assert stats.shape == tuple(tensor.shape)
    assert stats.numel == tensor.numel()


@pytest.mark.slow
def test_the_path_of_accelerators_and_of_extremes(tensor):
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    head = TensorStats(tuple(tensor.shape), "", tensor.numel())
    deferred = Deferred(head, exact(*in_memory_order(tensor)), None)
    assert differences(resolve([deferred])[id(deferred)], tensor) == []


def test_deferred_numbers_are_read_back_in_their_order():
    heads = [TensorStats((n,), "float32", n) for n in (2, 3)]
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, math.nan])]
    items = [
        Deferred(head, exact(*in_memory_order(t)), t.double())
        for head, t in zip(heads, tensors, strict=True)
    ]
    ready = measure(torch.ones(3))
    done = resolve([items[0], ready, items[1]])
    assert done[id(items[0])].values == (1.0, 2.0)
    assert done[id(items[1])].values == (3.0, 4.0, "nan")
    assert done[id(items[1])].nan == 1
    assert done[id(ready)] is ready


def test_what_is_read_back_later_is_a_copy(monkeypatch):
    monkeypatch.setattr(stats_module, "on_host", lambda tensor: False)
    tensor = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = measure(tensor)
    tensor.zero_()
    assert resolve([found])[id(found)].values == (1.0, 2.0)


@pytest.mark.slow
def test_a_plain_float32_norm_would_be_caught():
    tensor = torch.full((BIG,), 0.3)
    stats = measure(tensor)
    naive = TensorStats(
        stats.shape,
        stats.dtype,
        stats.numel,
        torch.linalg.vector_norm(tensor).item(),
        *(stats.mean, stats.std, stats.min, stats.max, stats.zeros, stats.nan, stats.inf),
    )
    assert [line.split(":")[0] for line in differences(naive, tensor)] == ["norm"]


def test_empty_tensors_have_counts_and_no_statistics():
    assert measure(torch.empty(0, 3)) == TensorStats(
        (0, 3), "float32", 0, zeros=0, nan=0, inf=0, values=()
    )


def test_meta_tensors_have_a_shape_alone():
    assert measure(torch.zeros(3, device="meta")) == TensorStats((3,), "float32", 3)


@pytest.mark.parametrize(
    ("tensor", "values"),
    [
        (torch.tensor([True, False]), (1, 0)),
        (torch.tensor([1 + 2j]), ((1.0, 2.0),)),
        (torch.tensor([math.nan, math.inf, -math.inf, 1.5]), ("nan", "inf", "-inf", 1.5)),
        (torch.arange(16), tuple(range(16))),
        (torch.arange(17), None),
    ],
)
def test_small_tensors_keep_their_values(tensor, values):
    assert measure(tensor).values == values


def test_autocast_does_not_reach_the_reductions():
    tensor = 1000 + torch.randn(100_000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert differences(measure(tensor), tensor) == []


def test_the_tensor_is_left_alone():
    tensor = torch.randn(10, requires_grad=True)
    before, version = tensor.detach().clone(), tensor._version
    measure(tensor)
    assert torch.equal(tensor.detach(), before)
    assert (tensor._version, tensor.grad) == (version, None)


@pytest.mark.parametrize("numel", [1, 7, 1023, 1024, 1025, 300_000, (1 << 20) + 5])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_zeros_are_counted_one_by_one(numel, share, way):
    torch.manual_seed(0)
    tensor = (torch.rand(numel) >= share).float() * torch.randn(numel).sign()
    assert measure(tensor).zeros == int((tensor.numpy() == 0).sum())
