"""The compiled reductions against float64: lengths, alignments, strides, extremes, threads."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from capture.test_stats import differences

from gradscope.capture import one_pass
from gradscope.capture.stats import finish, measure
from gradscope.capture.transformer import attention, residual

pytestmark = pytest.mark.numbers

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: Around the lanes, the blocks and the pieces.
LENGTHS = [*range(130), 2047, 2048, 2049, 4095, 4096, 5000, (1 << 18) - 1, (1 << 18) + 1, 600_000]


def wrong(library: one_pass.Library, tensor: torch.Tensor) -> list[str]:
    """Return the library's wrong statistics of a tensor."""
    numbers = library.numbers(tensor)
    assert numbers is not None
    found = finish(tuple(tensor.shape), "", tensor.numel(), numbers)
    return differences(found, tensor.detach())


def normal(n: int, dtype: torch.dtype, *, mean: float = 0.0) -> torch.Tensor:
    made = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) + mean
    made[n // 3 : n // 2] = 0
    return made.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_length(library, dtype):
    assert [n for n in LENGTHS if n and wrong(library, normal(n, dtype))] == []
    assert library.numbers(torch.empty(0, dtype=dtype)) is None


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_length_to_5000(library, dtype):
    """To 600 in each dtype, from there on in one of the four."""
    lengths = [*range(1, 600), *range(600 + DTYPES.index(dtype), 5001, len(DTYPES))]
    assert [n for n in lengths if wrong(library, normal(n, dtype))] == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_processor_without_avx2(common_library, dtype):
    assert common_library.instruction_set != "AVX2"
    for mean in (0.0, 100.0):
        for n in (1, 31, 33, 2049, 5000):
            tensor = normal(n, dtype, mean=mean)
            assert wrong(common_library, tensor) == []
            tensor[-1] = math.nan
            assert wrong(common_library, tensor) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_one_bad_value_at_each_end(library, dtype, value):
    for n in (1, 2, 31, 33, 2049, 5000):
        for place in {0, n // 2, n - 1}:
            tensor = normal(n, dtype)
            tensor[place] = value
            assert wrong(library, tensor) == [], (n, place)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mean", [4.9, 100.0, -1e4])
def test_a_mean_that_dwarfs_the_spread(library, dtype, mean):
    for n in (17, 3000, 300_000):
        assert wrong(library, normal(n, dtype, mean=mean)) == []


def test_every_bfloat16_and_every_float16(library):
    """Each of the 65,536 patterns, alone and all together."""
    for dtype in (torch.bfloat16, torch.float16):
        patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
        assert wrong(library, patterns) == []
        wide = patterns.double().numpy()
        for first in range(0, 1 << 16, 17):
            low, high = library.numbers(patterns[first : first + 1])[3:5]
            if np.isfinite(wide[first]):
                assert low == high == wide[first]


def test_a_small_half_where_the_processor_flushes_subnormals(library):
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such switch")
    try:
        tensor = torch.full((1000,), 2.0**-24, dtype=torch.float16)
        assert library.numbers(tensor)[3] == 2.0**-24
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.full((4001,), 1e-42),
        torch.full((4001,), 5e-324, dtype=torch.float64),
        torch.tensor([1e-42, 1.0] * 2000),
        torch.full((100,), 3.4e38),
        torch.tensor([3.4e38, -3.4e38] * 50),
        torch.full((100,), 1e306, dtype=torch.float64),
        torch.full((100,), -1e-30),
        torch.tensor([0.0, -0.0] * 40),
        torch.full((40,), -0.0),
        torch.tensor([0.0, -0.0, 1.0, -1.0] * 600),
        torch.tensor([math.nan] * 40),
        torch.tensor([math.inf, -math.inf, math.nan] * 40),
        torch.tensor([math.nan, 0.0] * 40),
        torch.tensor([1e19, 1.0, 0.0] * 1000),
        torch.full((300_000,), 0.3),
    ],
)
def test_extremes(library, tensor):
    assert wrong(library, tensor) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_at_every_address(library, dtype):
    width = dtype.itemsize
    memory = bytearray(3000 * width + 16)
    for offset in range(16):
        tensor = torch.frombuffer(memory, dtype=dtype, count=3000, offset=offset)
        tensor.copy_(normal(3000, dtype))
        assert wrong(library, tensor) == [], offset


SLICED = {
    "every third row": lambda x: x[::3],
    "every second column": lambda x: x[:, ::2],
    "some columns": lambda x: x[:, 5:40],
    "one column": lambda x: x[:, 3],
    "transposed": lambda x: x.t(),
    "some columns, transposed": lambda x: x[:, 5:40].t(),
    "cut in three and turned": lambda x: x.view(80, 3, 5, 8)[:, 1].transpose(0, 1),
    "expanded": lambda x: x[:1].expand(7, 120),
    "expanded and sliced": lambda x: x[None, :, 5:40].expand(3, 80, 35),
    "one number expanded": lambda x: x[0, 0].expand(9, 9),
    "overlapping windows": lambda x: x.view(-1).unfold(0, 10, 3),
    "channels last": lambda x: x.view(2, 40, 30, 4).permute(0, 3, 1, 2),
    "an axis of one": lambda x: x[:, 5:6, None],
    "from the middle on": lambda x: x.view(-1)[4801:],
    "more than a block, in short runs": lambda x: x.repeat(70, 1)[:, 1:],
    "more than a piece": lambda x: x.repeat(80, 1)[:, :-1],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", SLICED.values(), ids=SLICED)
def test_sliced_memory(library, dtype, cut):
    for mean in (0.0, 50.0):
        tensor = cut(normal(9600, dtype, mean=mean).view(80, 120))
        assert wrong(library, tensor) == []
    whole = normal(9600, dtype).view(80, 120)
    whole[3, 3], whole[0, 0], whole[40, 41] = math.nan, math.inf, 0
    assert wrong(library, cut(whole)) == []


def test_more_axes_than_anyone_has(library):
    tensor = torch.randn(3, *[2] * 11, 3)[..., :2]
    assert wrong(library, tensor) == []
    assert wrong(library, torch.randn(4).as_strided([1] * 62 + [2, 2], [1] * 62 + [1, 2])) == []


@pytest.fixture
def threads() -> Iterator[None]:
    """PyTorch's number of threads is put back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.0, 10.0, math.nan], ids=str)
def test_threads_change_no_bit(library, threads, mean):
    tensor = torch.randn(5_000_017) + (0 if math.isnan(mean) else mean)
    tensor[4_000_000] = mean
    found = []
    for number in (1, 2, 7):
        torch.set_num_threads(number)
        found.append(library.numbers(tensor))
        found.append(library.numbers(tensor.view(-1, 1).expand(-1, 2)[:, :1]))
    assert wrong(library, tensor) == []
    assert [numbers for numbers in found if repr(numbers) != repr(found[0])] == []


@pytest.mark.slow
def test_more_elements_than_an_int_counts(library):
    """2³¹ + 1 of them, though not in so much memory: rows that overlap."""
    rows = 1 << 15
    memory = torch.arange(3 * rows, dtype=torch.float32).remainder_(7)
    tensor = memory.as_strided((rows, (1 << 16) + 1), (1, 1))
    assert tensor.numel() > 2**31
    numbers = library.numbers(tensor)
    assert numbers is not None
    # How often each element is read: in 1, 2, … rows, then in all, then in fewer again.
    columns = (1 << 16) + 1
    place = torch.arange(rows + columns - 1)
    often = torch.minimum(torch.minimum(place + 1, rows + columns - 1 - place), torch.tensor(rows))
    values = memory[: len(place)].double()
    total = float((values * often).sum())
    squares = float((values.square() * often).sum())
    n = tensor.numel()
    assert numbers[0] == pytest.approx(math.sqrt(squares), rel=1e-6)
    assert numbers[1] == pytest.approx(total / n, rel=1e-6)
    assert numbers[2] == pytest.approx(math.sqrt(squares / n - (total / n) ** 2), rel=1e-5)
    assert numbers[3:6] == [0.0, 6.0, float(often[values == 0].sum())]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(100),
        torch.randn(50, dtype=torch.complex64),
        torch.randn(50, dtype=torch.complex64).conj().imag,
        torch.eye(5).to_sparse(),
        torch.zeros(20, device="meta"),
        torch._efficientzerotensor((20,)),
        torch.empty(0),
    ],
    ids=["integers", "complex", "negated", "sparse", "meta", "known to be zero", "empty"],
)
def test_what_it_leaves_to_pytorch(library, tensor):
    assert library.numbers(tensor) is None


def test_a_tensor_inside_vmap_and_grad_is_left_to_pytorch(library):
    found = []

    def f(x: torch.Tensor) -> torch.Tensor:
        found.append(library.numbers(x))
        return x.sum()

    torch.func.vmap(f)(torch.randn(3, 20))
    torch.func.grad(f)(torch.randn(20))
    torch.func.functionalize(f)(torch.randn(20))
    assert found == [None, None, None]


def test_autograd_sees_nothing(library, monkeypatch):
    monkeypatch.setattr(one_pass, "_library", library)
    tensor = torch.randn(40, 40, requires_grad=True)
    for each in (tensor, tensor.t(), tensor[:, :20]):
        before = torch._C._autograd._get_sequence_nr()
        measure(each)
        assert torch._C._autograd._get_sequence_nr() == before
    assert tensor._version == 0


def test_both_ways_say_the_same(way):
    for tensor in (normal(3000, torch.float32), normal(16, torch.float32), torch.randn(50, 60).t()):
        assert differences(measure(tensor), tensor) == []


def wrong_rows(library: one_pass.Library, logits: torch.Tensor, *, causal: bool) -> list[str]:
    """Return the names of the figures of attention that are not an explicit softmax's."""
    *_, queries, keys = logits.shape
    places = torch.arange(queries) * max(1, keys // queries)
    found = library.attention(logits, places, masked=-9e3, causal=causal)
    assert found is not None
    later = torch.arange(keys) > places[:, None]
    seen = logits.masked_fill(later, -math.inf) if causal else logits
    weights = torch.softmax(seen, -1)
    expected = {
        "visible": (~(seen <= -9e3)).sum(-1).to(torch.float64),
        "largest": seen.amax(-1),
        "share": weights.amax(-1),
        "entropy": torch.special.entr(weights).sum(-1),
        "first": weights[..., 0],
        "later": (weights * later).sum(-1),
    }
    wrong = []
    for (name, of), one in zip(expected.items(), found, strict=True):
        if not torch.allclose(one, of, rtol=1e-13, atol=1e-13, equal_nan=True):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "open"])
@pytest.mark.parametrize(
    "build", ["library", pytest.param("common_library", marks=pytest.mark.slow)]
)
def test_rows_of_attention(build, causal, request):
    library = request.getfixturevalue(build)
    draw = torch.Generator().manual_seed(0)
    for keys in (1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 257):
        for scale in (1e-3, 1.0, 30.0, 500.0):
            logits = torch.randn(2, 3, min(keys, 9), keys, dtype=torch.float64, generator=draw)
            logits *= scale
            assert wrong_rows(library, logits, causal=causal) == [], (keys, scale)
            logits[0, 0, :, keys // 2] = -math.inf
            logits[0, 1, :, keys // 3] = -1e4
            logits[1, 0] = -math.inf
            logits[1, 1] = torch.finfo(torch.float64).min
            logits[1, 2, -1, -1] = math.nan
            logits[0, 2, 0, 0] = math.inf
            assert wrong_rows(library, logits, causal=causal) == [], (keys, scale)


@pytest.mark.parametrize("safe", [True, False], ids=["safe", "as it is"])
def test_heads_of_attention(library, safe):
    draw = torch.Generator().manual_seed(1)
    asked = {"masked": -9e3, "causal": True}
    for keys, scale in itertools.product((1, 2, 5, 64), (0.0, 1e-3, 1.0, 300.0)):
        logits = torch.randn(3, 4, keys, keys, dtype=torch.float64, generator=draw) * scale
        broken = logits.clone()
        broken[0, 0] = -math.inf
        broken[:, 1, 0] = math.nan
        broken[1, 2, :, 0] = math.inf
        broken[:, 3] = torch.finfo(torch.float64).min
        shifted = logits - logits.amax(-1, keepdim=True)
        for one in (logits, broken, shifted):
            rows = library.attention(one, torch.arange(keys), **asked)
            found = library.heads(rows, masked=-9e3, uneven=1.001, safe=safe)
            expected = attention._of_rows(rows, safe=safe)
            assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True), keys


@pytest.mark.parametrize(
    "build", ["library", pytest.param("common_library", marks=pytest.mark.slow)]
)
def test_a_residual_stream(build, request):
    library = request.getfixturevalue(build)
    draw = torch.Generator().manual_seed(2)
    for count, scale in itertools.product((1, 2, 3, 4, 5, 8, 13, 4096), (1e-6, 1.0, 1e6)):
        made, given = torch.randn(2, 1, count, dtype=torch.float64, generator=draw) * scale + 0.1
        made[0, 0] = 40 * scale
        for before in (given, None):
            found, expected = library.residual(made, before), residual._of_rows(made, before)
            assert torch.allclose(found, expected, rtol=1e-11, atol=0, equal_nan=True), count
    assert library.residual(made, made)[2:].tolist() == [0, pytest.approx(1, rel=1e-12)]
    for bad in (math.nan, math.inf):
        made[0, 1] = bad
        found, expected = library.residual(made, given), residual._of_rows(made, given)
        assert found.isnan().equal(expected.isnan())
    assert library.residual(made.float(), None) is None
    assert library.residual(made, given.t().expand(-1, 2)) is None


def test_rows_that_the_library_does_not_read(library):
    logits, places = torch.randn(2, 4, 8, dtype=torch.float64), torch.arange(4)
    asked = {"masked": -9e3, "causal": False}
    assert library.attention(logits.float(), places, **asked) is None
    assert library.attention(logits.transpose(-1, -2), torch.arange(8), **asked) is None
    assert library.attention(logits.to("meta"), places, **asked) is None
    assert library.attention(logits[..., :0].contiguous(), places, **asked) is None


def in_use(**variables: str) -> str:
    """Return a new process's report on the library in use."""
    code = "from gradscope.capture import one_pass; print(one_pass.in_use())"
    environment = {**os.environ, **variables}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.slow
def test_a_variable_turns_it_off():
    assert in_use(GRADSCOPE_COMPILED="0") == "PyTorch operations (GRADSCOPE_COMPILED=0)"


def test_a_file_that_is_no_library_is_not_used(tmp_path):
    file = Path(tmp_path, "one_pass.so")
    file.write_bytes(b"no library")
    with pytest.raises(OSError):
        one_pass.Library(file)


def test_a_storage_that_is_smaller_than_its_tensor(library: one_pass.Library) -> None:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(64)
    assert library.numbers(tensor) is None
