"""The precision forecast against PyTorch's own casts, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
import torch
import torchvision
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradscope.explain.precision import DTYPES, POWERS, Cast, Counter, forecast
from gradscope.records.report import PrecisionForecast

LARGEST = {d: torch.finfo(getattr(torch, d)).max for d in DTYPES}


def lost(tensor: torch.Tensor, dtype: str, scale: float) -> tuple[int, int, int]:
    """Elements that become zero, that overflow, and that there are, by casting each."""
    plain = tensor.to(torch.float32) if tensor.dtype != torch.float64 else tensor
    chosen = plain[(plain != 0) & plain.isfinite()]
    scaled = chosen * scale
    cast = scaled.to(getattr(torch, dtype)).to(torch.float32)
    # Some versions clamp to the largest e4m3fn; nothing up to 464 would be farther away than that.
    clamped = (scaled.to(torch.float32).abs() > 464) if dtype == "float8_e4m3fn" else False
    return int((cast == 0).sum()), int((~cast.isfinite() | clamped).sum()), chosen.numel()


def counted(tensor: torch.Tensor, dtype: str, scale: float) -> tuple[int, ...]:
    return tuple(Counter([Cast(dtype, scale)]).count(tensor).tolist())


def neighbours(values: list[float], dtype: torch.dtype) -> torch.Tensor:
    """Each value, the next ones on both sides, and their negatives."""
    at = torch.tensor(values, dtype=dtype)
    end = torch.tensor(math.inf, dtype=dtype)
    near = [at, at.nextafter(end), at.nextafter(-end)]
    near += [n.nextafter(end) for n in near] + [n.nextafter(-end) for n in near]
    return torch.cat([*near, *(-n for n in near), torch.tensor([0.0, -0.0, math.inf, math.nan])])


def edges(dtype: str) -> list[float]:
    about = torch.finfo(getattr(torch, dtype))
    smallest = about.smallest_normal * about.eps
    step = about.eps * 2.0 ** math.floor(math.log2(about.max))
    return [
        smallest / 2, smallest, smallest / 4, smallest * 0.75, about.smallest_normal,
        about.max, about.max + step / 2, about.max + step, about.max * 2, 1.0,
    ]  # fmt: skip


# ------------------------------------------------------------------------------- the casts


@pytest.mark.parametrize("source", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 2.0**8, 2.0**16, 2.0**-4, 3.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_at_the_edges(dtype, scale, source):
    values = neighbours([edge / scale for edge in edges(dtype)], source)
    assert counted(values, dtype, scale) == lost(values, dtype, scale)


def test_half_the_smallest_subnormal_rounds_to_zero():
    tie = 2.0**-25
    values = torch.tensor([tie, math.nextafter(tie, 0), tie * (1 + 2**-23), 2.0**-24])
    assert counted(values, "float16", 1.0) == (2, 0, 4)
    assert counted(values, "float16", 2.0) == (0, 0, 4)
    assert counted(torch.tensor([65504.0, 65519.99, 65520.0]), "float16", 1.0) == (0, 1, 3)


def test_what_e4m3fn_cannot_hold_is_lost_whatever_the_cast_makes_of_it():
    values = torch.tensor([448.0, 464.0, 464.1, 480.0, 1e30])
    assert counted(values, "float8_e4m3fn", 1.0) == (0, 3, 5)


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_magnitudes(dtype, source):
    made = torch.Generator().manual_seed(0)
    spread = torch.randn(20000, generator=made, dtype=torch.float64) * 12
    values = (spread.exp() * torch.randn(20000, generator=made)).to(source)
    values[::7] = 0
    for scale in (1.0, 2.0**8, 2.0**16):
        assert counted(values, dtype, scale) == lost(values, dtype, scale)


def test_many_casts_in_one_pass():
    casts = [Cast(dtype, scale) for dtype in DTYPES for scale in POWERS]
    values = torch.randn(3000, generator=torch.Generator().manual_seed(1)) * 1e-6
    both = Counter(casts).count(values).tolist()
    for i, cast in enumerate(casts):
        expected = lost(values, cast.dtype, cast.scale)
        assert (both[i], both[len(casts) + i], both[-1]) == expected


def test_layouts():
    dense = torch.tensor([[1e-9, 0.0], [1.0, 1e6]])
    expected = counted(dense, "float16", 1.0)
    assert expected == (1, 1, 3)
    assert counted(dense.to_sparse(), "float16", 1.0) == expected
    assert counted(dense.t(), "float16", 1.0) == expected
    twice = torch.sparse_coo_tensor([[0, 0]], [3e-8, 3e-8], (2,), check_invariants=True)
    assert counted(twice, "float8_e5m2", 2.0**8) == (0, 0, 1)  # the two add up
    assert counted(torch.complex(dense, dense), "float16", 1.0) == (2, 2, 6)
    assert counted(torch.arange(5), "float16", 1.0) == (0, 0, 0)
    assert counted(torch.empty(0), "float16", 1.0) == (0, 0, 0)
    large = torch.full(((1 << 20) + 5,), 1e-9)
    assert counted(large, "float16", 1.0) == (large.numel(), 0, large.numel())


# ------------------------------------------------------------------------------- a run


class Branches(nn.Module):
    """Reuse, several outputs, in-place, no gradient, a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True))
        self.twice = nn.Conv2d(8, 8, 1)
        self.lstm = nn.LSTM(8, 5, batch_first=True)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.body = nn.Linear(5, 5)
        self.head = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.twice(torch.tanh(self.twice(self.stem(x))))
        x, _ = self.lstm(x.flatten(2).transpose(1, 2))
        x = checkpoint(self.body, x[:, -1], use_reentrant=False)
        return self.head(self.frozen(x)) * 1e-6


def truth(model: nn.Module, step) -> dict[tuple[str, int | None, str], list[torch.Tensor]]:
    """Outputs, gradients of outputs and of parameters, kept whole by plain hooks."""
    kept: dict[tuple[str, int | None, str], list[torch.Tensor]] = {}
    calls: dict[str, int] = {}
    again = False

    def after(name: str):
        def read(module, args, output):
            if again:  # a checkpoint's second run
                return
            call = calls[name] = calls.get(name, -1) + 1
            outputs = [output] if isinstance(output, torch.Tensor) else [output[0], *output[1]]
            for tensor in outputs:
                kept.setdefault((name, call, "activation"), []).append(tensor.detach().clone())
                if tensor.requires_grad:
                    got = kept.setdefault((name, call, "gradient"), [])
                    tensor.register_hook(lambda g, got=got: got.append(g.clone()))

        return read

    handles = [m.register_forward_hook(after(n)) for n, m in model.named_modules()]
    loss = step()
    again = True
    loss.backward()
    for handle in handles:
        handle.remove()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            kept[name, None, "gradient"] = [parameter.grad.clone()]
            parameter.grad = None
    return {key: tensors for key, tensors in kept.items() if any(t.any() for t in tensors)}


def told(forecasts, dtype: str, scale: float) -> dict[tuple[str, int | None, str], tuple]:
    return {
        (f.name, f.call, f.kind): (f.underflow, f.overflow, f.numel)
        for f in forecasts
        if (f.dtype, f.scale) == (dtype, scale) and f.kind != "total"
    }


def models() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    return {
        "branches": (Branches(), (2, 3, 6, 6)),
        "resnet18": (torchvision.models.resnet18(weights=None, num_classes=4), (2, 3, 32, 32)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["branches", "resnet18"])
def test_every_tensor_of_a_run(name):
    model, shape = models()[name]
    model.eval()
    x, y = torch.randn(shape), torch.tensor([0, 1])

    def step() -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    expected = truth(model, step)
    found = forecast(model, step, torch.Tensor.backward)
    for dtype in DTYPES:
        for scale in (1.0, 2.0**8, 2.0**16):
            got = told(found, dtype, scale)
            for key, tensors in expected.items():
                if key[2] == "activation" and scale != 1:
                    assert key not in got
                    continue
                counts = [lost(t, dtype, scale) for t in tensors]
                zero, over, numel = (sum(column) for column in zip(*counts, strict=True))
                assert got.pop(key) == (zero / numel, over / numel, numel), (key, dtype, scale)
            assert not got


def safest_scale(
    forecasts: Iterable[PrecisionForecast], dtype: str, *, underflow: float = 0.01
) -> float | None:
    """Return the smallest power of two at which no gradient overflows in ``dtype``, and at most
    this share of the parameters' gradients becomes zero; None if there is none up to 2^24."""
    safe = [
        one.scale
        for one in forecasts
        if one.kind == "total" and one.dtype == dtype
        if one.overflow == 0 and one.underflow <= underflow
    ]
    return min(safe, default=None)


def test_the_whole_at_every_power_of_two():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    found = forecast(model, lambda: model(x).sum() * 1e-7, torch.Tensor.backward)
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    totals = [f for f in found if f.kind == "total" and f.dtype == "float16"]
    assert [f.scale for f in totals] == list(POWERS)
    for total in totals:
        zero, _, numel = lost(gradients, "float16", total.scale)
        assert (total.name, total.underflow, total.numel) == ("**", zero / numel, numel)
    by_hand = next(
        s for s in POWERS if lost(gradients, "float16", s)[0] <= 0.01 * gradients.numel()
    )
    assert safest_scale(found, "float16") == by_hand > 1
    assert safest_scale(found, "bfloat16") == 1.0
    less = safest_scale(found, "float16", underflow=0.5)
    assert less is not None
    assert less < by_hand


def test_no_scale_is_safe():
    wide = nn.Linear(2, 2, bias=False)
    x = torch.tensor([[1e-9, 1e5]])  # what underflows and what overflows lie too different
    found = forecast(wide, lambda: wide(x).sum(), torch.Tensor.backward)
    assert safest_scale(found, "float16") is None
    assert safest_scale(found, "float64") is None  # nobody asked


def test_an_overflow_on_the_way_counts_too():
    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 2, bias=False), nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x) * 1.0)

    model, x = Steep(), torch.full((1, 2), 1e-3)
    found = forecast(model, lambda: model(x).sum() * 1e5, torch.Tensor.backward)
    assert told(found, "float16", 1.0)["first.weight", None, "gradient"][1] == 0
    assert told(found, "float16", 1.0)["first", 0, "gradient"][1] == 1
    assert safest_scale(found, "float16") is None


def test_other_scales_and_dtypes():
    model = nn.Linear(2, 1)
    x = torch.ones(1, 2)
    found = forecast(
        model, lambda: model(x).sum(), torch.Tensor.backward, dtypes=["float16"], scales=[3.0]
    )
    assert {(f.kind, f.dtype, f.scale) for f in found if f.kind != "total"} == {
        ("activation", "float16", 1.0),
        ("gradient", "float16", 3.0),
    }


@pytest.mark.slow
def test_looking_changes_nothing(unchanged):
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None, num_classes=4).eval()
    x = torch.randn(2, 3, 32, 32)
    model(x).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    with unchanged(model):
        forecast(model, lambda: model(x).sum(), torch.Tensor.backward)
        seen = [p.grad for p in model.parameters()]
        model.zero_grad()
    assert all(map(torch.equal, gradients, seen))


def test_a_leaf_that_a_model_returns_keeps_no_hook(handles):
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.weight

    model = Returns()
    found = forecast(model, lambda: model().sum(), torch.Tensor.backward)
    assert not model.weight._backward_hooks
    assert PrecisionForecast("weight", "gradient", "float16", 1.0, 3, 0.0, 0.0) in found


def test_calls_inside_vmap_are_passed_over():
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.func.vmap(lambda row: self.inner(row))(x)

    model, x = Mapped(), torch.ones(2, 3)
    found = forecast(model, lambda: model(x).sum(), torch.Tensor.backward)
    assert {f.name for f in found} == {"", "inner.weight", "inner.bias", "**"}


def test_what_has_no_values():
    model = nn.Linear(2, 2).to("meta")
    x = torch.zeros(1, 2, device="meta")
    assert forecast(model, lambda: model(x).sum(), torch.Tensor.backward) == ()
