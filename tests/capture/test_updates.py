"""The figures of an optimizer's step against Δw = w_after − w_before in float64, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from gradscope.capture import one_pass
from gradscope.capture.one_pass import Terms
from gradscope.capture.optimizer_steps import LastStep, hidden_moments
from gradscope.capture.updates import Update, updates

#: Of each optimizer whose state tells its update, the settings that change its formula.
TOLD: dict[type[Optimizer], list[dict[str, Any]]] = {
    optim.SGD: [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
        {"weight_decay": 0.1, "maximize": True},
    ],
    optim.Adam: [{}, {"weight_decay": 0.1, "amsgrad": True}, {"maximize": True, "eps": 0.1}],
    optim.AdamW: [{}, {"weight_decay": 0.3, "amsgrad": True, "maximize": True}],
    optim.NAdam: [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    optim.RAdam: [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    optim.Adagrad: [{"lr_decay": 0.1}, {"weight_decay": 0.1, "maximize": True}],
    optim.Adadelta: [{}, {"maximize": True, "rho": 0.7}],
    optim.RMSprop: [
        {},
        {"centered": True, "weight_decay": 0.1},
        {"momentum": 0.9, "centered": True},
    ],
    optim.Adamax: [{}, {"weight_decay": 0.1, "maximize": True}],
    optim.Rprop: [{}],
}
_FUSED = (optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad)
CASES = [
    pytest.param(kind, settings | way, id=" ".join([kind.__name__, *settings, *way]))
    for kind, several in TOLD.items()
    for settings in several
    for way in ({}, {"foreach": True}, *([{"fused": True}] if kind in _FUSED else []))
]


class Lion(Optimizer):
    """As its users write it: nothing but Δw tells its update."""

    def __init__(self, params: Any, lr: float = 0.01, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * (0.9 * m + 0.1 * p.grad).sign())
                m.lerp_(p.grad, 0.01)


def trained(
    make: Callable[[list[nn.Parameter]], Optimizer],
    check: Callable[[nn.Module, Optimizer, dict[nn.Parameter, Tensor], list[Tensor]], None],
    *,
    steps: int = 7,
    device: str = "cpu",
) -> None:
    """Some steps; after each, ``check`` gets the weights and gradients before it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 3, bias=False))
    net = net.double().to(device)
    optimizer = make(list(net.parameters()))
    x, y = torch.randn(8, 5).double().to(device), torch.randn(8, 3).double().to(device)
    for _ in range(steps):
        optimizer.zero_grad()
        ((net(x) - y) ** 2).mean().backward()
        before = {p: p.detach().clone() for p in net.parameters()}
        gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        optimizer.step()
        check(net, optimizer, before, gradients)


def agrees(update: Update, moved: Tensor, gradient: Tensor) -> None:
    """The figures that are of Δw and the gradient."""
    cosine = (moved * gradient).sum() / (moved.norm() * gradient.norm())
    assert update.norm == pytest.approx(moved.norm().item(), rel=1e-6)
    assert update.rms == pytest.approx(moved.square().mean().sqrt().item(), rel=1e-6)
    assert update.effective_lr == pytest.approx((moved.norm() / gradient.norm()).item(), rel=1e-6)
    assert update.cosine == pytest.approx(cosine.item(), abs=1e-6)


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_the_state_tells_the_update(kind: type[Optimizer], settings: dict[str, Any]) -> None:
    def check(
        net: nn.Module, optimizer: Optimizer, before: dict[nn.Parameter, Tensor], g: list[Tensor]
    ) -> None:
        moved = [p.detach() - was for p, was in before.items()]
        told = LastStep(optimizer).squares()
        assert told is not None
        squares, count = told
        assert count == sum(m.numel() for m in moved)
        assert squares == pytest.approx(sum(m.square().sum().item() for m in moved), rel=1e-6)
        for copies in ({}, {p: was.clone() for p, was in before.items()}):
            found = updates(net, copies, optimizer)
            assert len(found) == len(moved)
            for update, m, gradient in zip(found.values(), moved, g, strict=True):
                agrees(update, m, gradient)
                assert update.moved is (True if copies else None)

    trained(lambda p: kind(p, lr=0.05, **settings), check)


#: Kinds with settings that change the terms of the compiled read.
TERMS: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (optim.SGD, {}),
    (optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True}),
    (optim.Adam, {"weight_decay": 0.1, "maximize": True}),
    (optim.AdamW, {"weight_decay": 0.3}),
    (optim.NAdam, {"weight_decay": 0.1}),
    (optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    (optim.RAdam, {"weight_decay": 0.1}),
    (optim.Adagrad, {"weight_decay": 0.1, "maximize": True}),
    (optim.RMSprop, {"weight_decay": 0.1}),
    (optim.RMSprop, {"momentum": 0.9}),
    (Lion, {}),
]


@pytest.mark.parametrize(("kind", "settings"), TERMS)
def test_one_read_of_float32_has_the_figures(
    kind: type[Optimizer], settings: dict[str, Any], way: str
) -> None:
    torch.manual_seed(2)
    # Around the rows and the lanes. The weights lie near 0.01: their last bit is 1e-9.
    weights = [nn.Parameter(torch.randn(n) / 100) for n in (17, 1023, 1025, 20_000)]
    optimizer = kind(weights, lr=0.05, **settings)
    for number in range(7):
        for weight in weights:
            weight.grad = torch.randn_like(weight) * 10 ** -(number % 3)
        before = {p: p.detach().clone() for p in weights}
        optimizer.step()
        told = LastStep(optimizer)
        true = {p: p.detach().double() - was.double() for p, was in before.items()}
        for copies in ({}, {p: was.clone() for p, was in before.items()}):
            if kind is Lion and not copies:
                continue
            if way == "compiled":
                assert told.sums(weights[0], copies.get(weights[0])) is not None
            found = updates(nn.ParameterList(weights), copies, optimizer)
            for update, (p, moved) in zip(found.values(), true.items(), strict=True):
                gradient, state = p.grad.double(), optimizer.state[p]
                norm, length = moved.norm().item(), gradient.norm().item()
                cosine = (moved * gradient).sum().item() / (norm * length)
                # Δw of up to 0.1 makes the last bit of a weight 7e-9, at 1e-3 and more.
                assert update.norm == pytest.approx(norm, rel=1e-5)
                assert update.cosine == pytest.approx(cosine, abs=1e-5)
                assert update.effective_lr == pytest.approx(norm / length, rel=1e-5)
                assert update.weight == pytest.approx(before[p].double().norm().item(), rel=1e-5)
                assert update.moved is (True if copies else None)
                m = state.get("exp_avg", state.get("momentum_buffer"))
                v = state.get("exp_avg_sq", state.get("square_avg", state.get("sum")))
                if m is not None:
                    assert update.m_norm == pytest.approx(m.double().norm().item(), rel=1e-6)
                if v is not None:
                    v = v.double()
                    spread = (v.std(correction=0) / v.mean()).item()
                    assert update.v_norm == pytest.approx(v.norm().item(), rel=1e-6)
                    assert update.v_spread == pytest.approx(spread, rel=1e-5)
        if kind is not Lion:
            squares = told.squares()
            assert squares is not None
            total = math.hypot(*(one.norm().item() for one in true.values()))
            assert math.sqrt(squares[0]) == pytest.approx(total, rel=1e-5)


def test_a_read_leaves_what_is_not_finite_to_pytorch(library: one_pass.Library) -> None:
    weight = torch.randn(100)
    gradient = torch.ones(100)
    assert library.step(weight, Terms(slope=0.1), gradient=gradient) is not None
    gradient[3] = math.nan
    assert library.step(weight, Terms(slope=0.1), gradient=gradient) is None
    assert library.step(weight, Terms(slope=0.1), gradient=torch.ones(99)) is None
    assert library.step(weight, Terms(slope=0.1), gradient=torch.ones(200)[::2]) is None
    assert library.step(weight.double(), Terms(slope=0.1), gradient=torch.ones(100)) is None


def test_tiny_numbers_are_no_zeros(library: one_pass.Library) -> None:
    tiny = torch.full((5000,), 1e-30)
    sums = library.step(torch.ones(5000), Terms(), gradient=tiny, first=tiny, second=tiny)
    assert sums is not None
    each = float(tiny[0]) ** 2
    for one in (sums.gradient, sums.first, sums.second_squares):
        assert one == pytest.approx(5000 * each, rel=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    "kind", [optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Adamax]
)
def test_capturable_on_a_device(kind: type[Optimizer]) -> None:
    """PyTorch corrects the bias in float32 there: the figures are as near to its step as that of
    the same optimizer without ``capturable`` is, which corrects in float64.
    """
    plain: dict[nn.Parameter, nn.Parameter] = {}
    others: list[Optimizer] = []

    def check(
        net: nn.Module, optimizer: Optimizer, before: dict[nn.Parameter, Tensor], g: list[Tensor]
    ) -> None:
        if not others:
            plain.update((p, nn.Parameter(was.clone())) for p, was in before.items())
            others.append(kind(list(plain.values()), lr=0.05, weight_decay=0.0, foreach=False))
        for (p, twin), gradient in zip(plain.items(), g, strict=True):
            twin.data.copy_(before[p])
            twin.grad = gradient
        others[0].step()
        found = updates(net, {}, optimizer)
        for update, (p, was) in zip(found.values(), before.items(), strict=True):
            moved, expected = p.detach() - was, plain[p].detach() - was
            apart = (moved - expected).norm().item()
            assert update.norm == pytest.approx(expected.norm().item(), rel=1e-6)
            assert update.norm == pytest.approx(moved.norm().item(), rel=1e-6, abs=2 * apart)

    for foreach in (False, True):
        make = lambda p: kind(  # noqa: E731
            p,
            lr=0.05,
            weight_decay=0.0,
            capturable=True,
            foreach=foreach,  # noqa: B023
        )
        trained(make, check, device="cuda")
        plain.clear()
        others.clear()


def test_a_lion_is_measured_by_its_weights() -> None:
    def check(
        net: nn.Module, optimizer: Optimizer, before: dict[nn.Parameter, Tensor], g: list[Tensor]
    ) -> None:
        assert LastStep(optimizer).squares() is None
        assert not updates(net, {}, optimizer)
        found = updates(net, {p: was.clone() for p, was in before.items()}, optimizer)
        for update, (p, was), gradient in zip(found.values(), before.items(), g, strict=True):
            agrees(update, p.detach() - was, gradient)
            decay = 0.01 * 0.1 * was
            rest = p.detach() - was + decay
            share = decay.norm() / (decay.norm() + rest.norm())
            assert update.decay_share == pytest.approx(share.item(), rel=1e-6)
            assert update.m_norm == pytest.approx(optimizer.state[p]["exp_avg"].norm().item())
            assert update.v_norm is None

    trained(Lion, check)


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1, "lambd": 0.1}, {"foreach": True}])
def test_asgd_is_measured_by_its_weights(settings: dict[str, Any]) -> None:
    """Its state has the average of the weights, and not their update."""

    def check(
        net: nn.Module, optimizer: Optimizer, before: dict[nn.Parameter, Tensor], g: list[Tensor]
    ) -> None:
        assert LastStep(optimizer).squares() is None
        assert not updates(net, {}, optimizer)
        found = updates(net, {p: was.clone() for p, was in before.items()}, optimizer)
        assert len(found) == len(before)
        for update, (p, was), gradient in zip(found.values(), before.items(), g, strict=True):
            agrees(update, p.detach() - was, gradient)

    trained(lambda p: optim.ASGD(p, lr=0.05, **settings), check)


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="no Muon in this torch")
def test_muon_has_a_spectral_norm_and_a_stable_rank() -> None:
    def check(
        net: nn.Module, optimizer: Optimizer, before: dict[nn.Parameter, Tensor], g: list[Tensor]
    ) -> None:
        found = updates(net, {p: was.clone() for p, was in before.items()}, optimizer)
        for update, (p, was), gradient in zip(found.values(), before.items(), g, strict=True):
            moved = p.detach() - was
            agrees(update, moved, gradient)
            largest = torch.linalg.svdvals(moved)[0].item()
            assert update.spectral_norm == pytest.approx(largest, rel=1e-6)
            assert update.stable_rank == pytest.approx((moved.norm().item() / largest) ** 2)
            assert update.m_norm == pytest.approx(
                optimizer.state[p]["momentum_buffer"].norm().item()
            )

    trained(lambda p: optim.Muon(p, lr=0.02), check, steps=3)


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_the_share_of_weight_decay(kind: type[Optimizer]) -> None:
    def check(
        net: nn.Module, optimizer: Optimizer, before: dict[nn.Parameter, Tensor], g: list[Tensor]
    ) -> None:
        copies = {p: was.clone() for p, was in before.items()}
        for found in (updates(net, {}, optimizer), updates(net, copies, optimizer)):
            for update, (p, was), gradient in zip(found.values(), before.items(), g, strict=True):
                own, rest = 0.2 * was, gradient  # in the gradient
                if kind is optim.AdamW:
                    own = 0.05 * own
                    rest = p.detach() - was + own
                share = own.norm() / (own.norm() + rest.norm())
                assert update.decay_share == pytest.approx(share.item(), rel=1e-6)

    trained(lambda p: kind(p, lr=0.05, weight_decay=0.2), check)


def test_decay_alone_moves_a_weight_without_a_gradient_in_the_loss() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    (update,) = updates(nn.ParameterList([weight]), {}, optimizer).values()
    assert update.rms == pytest.approx(0.05)
    assert update.decay_share == pytest.approx(1.0)
    assert update.cosine is None


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (optim.Adam, "exp_avg", "exp_avg_sq"),
        (optim.RMSprop, None, "square_avg"),
        (optim.Adagrad, None, "sum"),
        (optim.SGD, "momentum_buffer", None),
    ],
)
def test_moments(kind: type[Optimizer], first: str | None, second: str | None) -> None:
    def check(
        net: nn.Module, optimizer: Optimizer, before: dict[nn.Parameter, Tensor], g: list[Tensor]
    ) -> None:
        for update, p in zip(updates(net, {}, optimizer).values(), before, strict=True):
            state = optimizer.state[p]
            m, v = (None if name is None else state[name] for name in (first, second))
            assert update.m_norm == (None if m is None else pytest.approx(m.norm().item()))
            assert update.v_norm == (None if v is None else pytest.approx(v.norm().item()))
            if v is not None:
                spread = (v.std(correction=0) / v.mean()).item()
                assert update.v_spread == pytest.approx(spread, rel=1e-6)

    more = {"momentum": 0.9} if kind is optim.SGD else {}
    trained(lambda p: kind(p, lr=0.05, **more), check, steps=3)


def test_adafactor_has_the_moment_of_its_factors() -> None:
    def check(
        net: nn.Module, optimizer: Optimizer, before: dict[nn.Parameter, Tensor], g: list[Tensor]
    ) -> None:
        found = updates(net, {p: was.clone() for p, was in before.items()}, optimizer)
        for update, (p, was), gradient in zip(found.values(), before.items(), g, strict=True):
            agrees(update, p.detach() - was, gradient)
            rows, columns = optimizer.state[p]["row_var"], optimizer.state[p]["col_var"]
            v = (rows @ columns) / rows.mean(dim=-2, keepdim=True)
            assert update.v_norm == pytest.approx(v.norm().item(), rel=1e-6)
            assert update.v_spread == pytest.approx((v.std(correction=0) / v.mean()).item())

    trained(lambda p: optim.Adafactor(p, lr=0.05, weight_decay=0.1), check, steps=3)


def test_moments_in_8_bits_are_said_to_be_unknown() -> None:
    class Adam8bit(Lion):
        def step(self, closure: Callable[[], float] | None = None) -> None:
            super().step()
            for p in self.param_groups[0]["params"]:
                self.state[p] = {"state1": torch.zeros(p.shape, dtype=torch.uint8)}

    def check(
        net: nn.Module, optimizer: Optimizer, before: dict[nn.Parameter, Tensor], g: list[Tensor]
    ) -> None:
        found = updates(net, {p: was.clone() for p, was in before.items()}, optimizer)
        for update in found.values():
            assert update.m_norm is update.v_norm is update.decay_share is None
            assert update.rms
        (said,) = hidden_moments(optimizer)
        assert "Adam8bit" in said

    trained(Adam8bit, check, steps=2)


def test_a_fused_step_that_a_scaler_left_out_is_not_told_by_the_state() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = optim.Adam([weight], lr=0.1, fused=True)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.found_inf = torch.tensor(1.0)  # type: ignore[attr-defined]
    assert LastStep(optimizer).squares() is None


def test_many_parameters_of_many_sizes_are_one_number() -> None:
    torch.manual_seed(1)
    sizes = [1, 3, 70_000, 5, 65_536, 2, 131_073, 4]
    weights = [nn.Parameter(torch.randn(n)) for n in sizes]
    optimizer = optim.AdamW([{"params": weights[:4]}, {"params": weights[4:], "lr": 0.2}], lr=0.1)
    for weight in weights[:-1]:
        weight.grad = torch.randn_like(weight)
    before = [weight.detach().clone() for weight in weights]
    optimizer.step()
    told = LastStep(optimizer).squares()
    assert told is not None
    moved = [p.detach().double() - was.double() for p, was in zip(weights, before, strict=True)]
    true = math.sqrt(sum(m.square().sum().item() for m in moved))
    assert told[1] == sum(sizes[:-1])
    # A weight of about 1 is rounded by 6e-8, a step is of about 0.1.
    assert math.sqrt(told[0]) == pytest.approx(true, rel=2e-6)


@pytest.mark.skipif(not one_pass.is_compiled(), reason="PyTorch computes blocks instead")
@pytest.mark.parametrize(("kind", "settings"), [one for one in TERMS if one[0] is not Lion])
@pytest.mark.parametrize("copied", [False, True])
def test_what_a_sample_reads_is_not_read_again(
    kind: type[Optimizer], settings: dict[str, Any], copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(2)
    weights = [nn.Parameter(torch.randn(n) / 100) for n in (17, 1025)]
    optimizer = kind(weights, lr=0.05, **settings)
    for _ in range(7):
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        copies = {p: p.detach().clone() for p in weights} if copied else {}
        optimizer.step()
    alone = LastStep(optimizer).squares()
    calls, step = [], one_pass.step
    monkeypatch.setattr(one_pass, "step", lambda *a, **k: calls.append(k) or step(*a, **k))
    last = LastStep(optimizer)
    updates(nn.ParameterList(weights), copies, optimizer, last=last)
    assert alone is not None
    assert last.squares() == alone  # to the last bit
    assert len(calls) == len(weights)
