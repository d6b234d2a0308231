"""Each broken program gets the origins of NaN and Inf; its mended twin is silent."""

from __future__ import annotations

import gc
import re
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explain.non_finite import backward, forward, loss, outside
from explain.non_finite.cases import ORIGINS, Program, broken_in
from gradscope.explain.non_finite.context import NodeSites
from gradscope.explain.non_finite.explain_non_finite import explain_non_finite
from gradscope.explain.shared.frames import CallSite
from gradscope.records.answers import NonFiniteOrigin
from gradscope.running.state import state_restored

# Importing them fills the table.
PROGRAMS = (forward, loss, backward, outside)
#: Finite all over: a NaN decides about an index.
FINITE = {"nearest_code_by_cosine"}

pytestmark = [
    pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0:UserWarning"),
]


def origins_of(program: Program) -> tuple[NonFiniteOrigin, ...]:
    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    model, forward, step, inputs = program
    with state_restored(model, weights=True):
        return explain_non_finite(model, forward, backward, step, inputs=inputs)


def test_the_table_is_whole() -> None:
    files = {case.build.__module__ for case in ORIGINS.values()}
    assert files == {module.__name__ for module in PROGRAMS}
    assert len(ORIGINS) == 91
    phases = [one.phase for case in ORIGINS.values() for one in case.expected]
    assert {p: phases.count(p) for p in set(phases)} == {
        "forward": 36,
        "loss": 22,
        "backward": 18,
        "input": 4,
        "parameter": 5,
        "step": 6,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ORIGINS)
def test_plain_pytorch_sees_that_it_is_broken(name: str) -> None:
    torch.manual_seed(0)
    found = broken_in(ORIGINS[name].build(False))
    assert bool(found) is (name not in FINITE)
    torch.manual_seed(0)
    assert broken_in(ORIGINS[name].build(True)) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ORIGINS)
def test_broken_program(name: str) -> None:
    case = ORIGINS[name]
    torch.manual_seed(0)
    origins = origins_of(case.build(False))
    assert [(b.kind, b.phase, b.op, b.name, b.location) for b in origins] == [
        (e.kind, e.phase, e.op, e.module, case.line(e.mark) if e.mark else None)
        for e in case.expected
    ]
    for expected, one in zip(case.expected, origins, strict=True):
        assert expected.reason in (one.reason or "")
        assert expected.call is None or expected.call == one.call
        assert one.message.endswith(".") and one.advice
        assert one.inputs or "in the source" in one.message
        assert one.reason in one.message


@pytest.mark.parametrize("name", ORIGINS)
def test_mended_twin(name: str) -> None:
    torch.manual_seed(0)
    assert origins_of(ORIGINS[name].build(True)) == ()


def test_the_whole_record_of_one() -> None:
    (origin,) = origins_of(ORIGINS["where_around_a_square_root"].build(False))
    case = ORIGINS["where_around_a_square_root"]
    at = case.line("# origin")
    assert origin.message == (
        f"`SqrtBackward0`, the backward of `sqrt` at {at} (`torch.sqrt(x),  # origin`) in `safe`,"
        " made NaN from finite numbers: sqrt at 0: its derivative is infinite (1 of 3 values)."
    )
    assert (origin.count, origin.call) == (1, 0)
    assert origin.spread == ("fc.weight",)
    assert origin.inputs[0].zeros == 1 and origin.inputs[0].shape == (3,)
    assert origin.advice is not None and "sqrt(x + eps)" in origin.advice


def test_a_tensor_of_nobodys_is_counted() -> None:
    outside = torch.full((2, 4), 1.0)
    outside[1, 2] = float("nan")
    net = nn.Linear(4, 2)
    with state_restored(net, weights=False):
        (origin,) = explain_non_finite(
            net,
            lambda: (net(outside.new_ones(2, 4)) * outside[:, :2]).sum() + outside.sum(),
            lambda loss: loss.backward(),
        )
    assert origin.message.startswith(
        "a tensor made before the run has NaN: 1 of 8 values; it is first used at "
    )
    assert origin.count == 1


def test_what_made_nan_of_an_infinity_is_told() -> None:
    (origin,) = origins_of(ORIGINS["entropy_of_a_saturated_policy"].build(False))
    assert "made Inf from finite numbers: log of 0" in origin.message
    assert "`mul` on the same line then made NaN from it (0 · -inf)" in origin.message


def _by_anomaly_mode(program: Program) -> str | None:
    """The first node of backward that gives NaN, as PyTorch itself finds it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            try:
                program.forward().backward()
            except RuntimeError as error:
                found = re.search(r"Function '(\w+)' returned nan", str(error))
                return found and found[1]
    return None


@pytest.mark.parametrize(
    "name", [n for n, c in ORIGINS.items() if c.expected[0].phase == "backward"]
)
def test_anomaly_mode_finds_the_same_node(name: str) -> None:
    torch.manual_seed(0)
    (origin,) = origins_of(ORIGINS[name].build(False))
    torch.manual_seed(0)
    found = _by_anomaly_mode(ORIGINS[name].build(False))
    if origin.kind == "nan":
        assert found == origin.op
    elif found is not None:  # it does not look for infinities, and finds what comes of one
        assert f"`{found}`" in origin.message


def _by_hooks(program: Program) -> str | None:
    """The first module to return something not finite although it was given finite numbers."""
    first: list[str] = []

    def finite(value: object) -> bool:
        given = value if isinstance(value, tuple) else (value,)
        tensors = [t for t in given if isinstance(t, torch.Tensor) and t.is_floating_point()]
        return all(bool(t.isfinite().all()) for t in tensors)

    def look(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(_: nn.Module, args: tuple[object, ...], output: object) -> None:
            if finite(args) and not finite(output):
                first.append(name)

        return hook

    handles = [m.register_forward_hook(look(n)) for n, m in program.model.named_modules()]
    program.forward()
    for handle in handles:
        handle.remove()
    return first[0] if first else None


@pytest.mark.parametrize(
    "name", [n for n, c in ORIGINS.items() if c.expected[0].phase == "forward"]
)
def test_hooks_find_the_same_module(name: str) -> None:
    torch.manual_seed(0)
    (origin,) = origins_of(ORIGINS[name].build(False))
    torch.manual_seed(0)
    found = _by_hooks(ORIGINS[name].build(False))
    assert found in (origin.name, None)  # None where the module hides it


def test_it_is_told_what_it_spread_to() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Linear(4, 4), Log())
            self.body = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.stem(x)))

    class Log(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(-x.abs())

    net = Net()
    (origin,) = origins_of(Program(net, lambda: net(torch.ones(2, 4)).sum()))
    assert (origin.name, origin.kind) == ("stem.1", "nan")
    weights = ["body.0.weight", "body.1.0.weight", "head.weight"]
    assert origin.spread[:3] == ("body", "head", "loss")
    assert set(weights) <= set(origin.spread)
    assert "head.bias" not in origin.spread  # a bias gets the gradient of a sum, which is finite


class Weighted(nn.Module):
    def __init__(self, f: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.f = f

    def forward(self) -> torch.Tensor:
        return self.f(self.w)


def of(f: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[str, str, str | None]]:
    """Return the origins found if ``f`` makes the loss of a parameter of ones."""
    net = Weighted(f)
    return [(b.kind, b.phase, b.op) for b in origins_of(Program(net, net))]


NAN, INF = float("nan"), float("inf")
ZEROS = torch.zeros(4)


def _ragged(w: torch.Tensor) -> torch.Tensor:
    parts = [torch.ones(2, 4), torch.ones(3, 4)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged) * w


def _assigned(w: torch.Tensor) -> torch.Tensor:
    x = w.clone()
    x[0] = NAN
    return torch.where(torch.isnan(x), ZEROS, x).sum()


def _log_of_nothing(x: torch.Tensor) -> torch.Tensor:
    return (x * 0).log().sum()


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.jit.script(_log_of_nothing)(x)


def _checkpointed(reentrant: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    from torch.utils.checkpoint import checkpoint

    return lambda w: checkpoint(lambda v: (v * 0).log(), w, use_reentrant=reentrant).sum()


SILENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sparse": lambda w: torch.sparse.mm(torch.eye(4).to_sparse(), w[:, None]).sum(),
    "ragged": lambda w: torch.nested.to_padded_tensor(_ragged(w), 0.0).sum(),
    "complex": lambda w: torch.fft.fft(w).abs().sum(),
    "quantized": lambda w: (
        w * torch.quantize_per_tensor(w.detach(), 0.1, 0, torch.qint8).dequantize()
    ).sum(),
    "meta": lambda w: w.sum() + torch.ones(3, device="meta").sum().dim(),
    "float8": lambda w: (w.to(torch.float8_e4m3fn).float() * w).sum(),
    "vmap": lambda w: torch.vmap(lambda v: v * 2)(w).sum(),
    "jvp": lambda w: torch.func.jvp(lambda v: v.sqrt().sum(), (w,), (w,))[1],
    "nan on purpose": _assigned,
    "nanmean": lambda w: torch.nanmean(torch.stack([w[0], torch.tensor(NAN)])),
    "a mask": lambda w: F.softmax(w.masked_fill(torch.arange(4) > 1, -INF), 0)[0],
    "a mask of log(0)": lambda w: F.softmax(w + (torch.arange(4) < 2).float().log(), 0)[0],
    "the smallest of none": lambda w: torch.minimum(torch.full((4,), INF), w).sum(),
    "a quotient left out": lambda w: torch.where(ZEROS > 0, 1 / ZEROS, w).sum(),
    "amax over groups": lambda w: (
        torch.zeros(4)
        .scatter_reduce(0, torch.tensor([0, 0, 1, 1]), w, "amax", include_self=False)
        .sum()
    ),
    "uninitialised": lambda w: torch.empty(4).copy_(w).sum() + w.sum(),
    "nothing": lambda w: w[:0].sum() + w.sum(),
}


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.filterwarnings("ignore")
def test_silent(name: str) -> None:
    assert of(SILENT[name]) == []


TOLD: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[str, str, str | None]]] = {
    "sparse": (
        lambda w: (torch.sparse.mm(torch.eye(4).to_sparse(), w[:, None]) / 0).sum(),
        ("inf", "forward", "div"),
    ),
    "ragged": (
        lambda w: torch.nested.to_padded_tensor(_ragged(w / 0), 0.0).sum(),
        ("inf", "forward", "div"),
    ),
    "complex": (
        lambda w: (torch.complex(w, w) / torch.complex(ZEROS, ZEROS)).abs().sum(),
        ("inf", "forward", "div"),
    ),
    "vmap": (lambda w: torch.vmap(lambda v: v.log())(w * 0).sum(), ("inf", "forward", "log")),
    "a script": (_scripted, ("inf", "forward", "log")),
    "a checkpoint": (_checkpointed(False), ("inf", "forward", "log")),
    "a reentrant checkpoint": (_checkpointed(True), ("inf", "forward", "log")),
    "in place": (lambda w: (w.clone() * 0).log_().sum(), ("inf", "forward", "log_")),
    "into another": (
        lambda w: w.sum() + torch.log(ZEROS, out=torch.empty(4)).sum(),
        ("inf", "forward", "log"),
    ),
    "through Python": (
        lambda w: w.sum() * (w * 0).log().sum().item(),
        ("inf", "forward", "log"),
    ),
    "through NumPy": (
        lambda w: w.sum() * torch.from_numpy(w.detach().numpy() * NAN).sum(),
        ("nan", "input", None),
    ),
    "in the source": (lambda w: w.sum() * torch.full((), NAN), ("nan", "forward", "full")),
    "float64": (lambda w: (w.double().exp() * 710).exp().sum(), ("inf", "forward", "exp")),
    "lists": (lambda w: torch._foreach_div([w], 0.0)[0].sum(), ("inf", "forward", "_foreach_div")),
    "a choice": (
        lambda w: w[(w * 0 / 0).detach().argsort()].sum(),
        ("nan", "forward", "div"),
    ),
    "before it raises": (lambda w: _raised((w * 0 / 0).sum()), ("nan", "forward", "div")),
}


def _raised(x: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"bad loss: {x}")


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.filterwarnings("ignore")
def test_told(name: str) -> None:
    function, expected = TOLD[name]
    assert of(function) == [expected]


def test_in_a_transform_of_torch_func() -> None:
    """Saved tensors of a transform cannot be read, and the node is still named."""
    found = of(lambda w: torch.func.grad(lambda v: (v * 0).sqrt().sum())(w).sum() * w.sum())
    assert found[0] == ("inf", "backward", "SqrtBackward0")


@pytest.mark.parametrize("recomputes", [False, True])
def test_the_thread_of_a_device_does_not_shift_the_lines_of_nodes(recomputes: bool) -> None:
    """PyTorch counts the nodes of each thread from 0: one that may be of either has no line."""
    w = torch.ones(2, requires_grad=True)
    sites = NodeSites()
    node = (w * 2).log().grad_fn
    assert node is not None
    assert sites.grown()
    sites.note(CallSite("net"), 5, "log")

    def in_backward() -> None:
        assert not sites.grown()
        while recomputes and torch._C._autograd._get_sequence_nr() <= node._sequence_nr() + 1:
            w * 2
        assert not sites.grown()

    thread = threading.Thread(target=in_backward)
    thread.start()
    thread.join()
    place = (CallSite(), None, None, True) if recomputes else (CallSite("net"), 5, "log", False)
    assert sites.of(node) == place
    assert not sites.grown()


def test_what_another_thread_computes_cannot_be_seen() -> None:
    net = nn.Linear(2, 1)

    def forward() -> torch.Tensor:
        kept = []
        thread = threading.Thread(target=lambda: kept.append(net(torch.ones(1, 2)).sum() * NAN))
        thread.start()
        thread.join()
        return kept[0]

    origin, _ = origins_of(Program(net, forward))
    assert (origin.kind, origin.phase, origin.op) == ("nan", "loss", None)
    assert origin.message.startswith("loss is NaN, but no traced operation made it")


@pytest.mark.slow
def test_no_tensor_is_kept() -> None:
    """A thousand operations whose results are dropped, each with an infinity in it."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(321))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                for _ in range(1000):
                    x = torch.sqrt(x * self.w)
            return x * self.w

    net = Loop()
    counts: list[int] = []

    def forward() -> torch.Tensor:
        loss = net(torch.full((321,), INF)).nan_to_num(0, 0).sum()
        tensors = (o for o in gc.get_objects() if issubclass(type(o), torch.Tensor))
        counts.append(sum(t.numel() == 321 for t in tensors))
        return loss

    origins_of(Program(net, forward))
    assert counts[0] < 10


@pytest.mark.parametrize("name", ["attention_of_a_fully_padded_row", "adam_without_eps"])
def test_a_live_model_is_as_before(
    name: str, unchanged: Callable[[nn.Module], AbstractContextManager[None]]
) -> None:
    torch.manual_seed(0)
    program = ORIGINS[name].build(False)
    program.forward().backward()
    with unchanged(program.model):
        origins_of(program)


def test_the_gradients_are_those_of_a_plain_run() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten())
    net.append(nn.Dropout(0.5)).append(nn.LazyLinear(2))
    x = torch.randn(4, 3, 8, 8)
    net(x)

    def forward() -> torch.Tensor:
        torch.manual_seed(1)
        return net(x).pow(2).mean()

    forward().backward()
    plain = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()

    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    assert explain_non_finite(net, forward, backward) == ()
    watched = [p.grad for p in net.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
