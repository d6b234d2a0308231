"""Dead and saturated units, against plain hooks, the slope by autograd, and planted ones."""

from __future__ import annotations

import inspect as source
import math

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from truth.cases import swin

from gradscope.explain.units import unit_activity
from gradscope.records.modules import UnitActivity

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Whatever other tests drew before."""
    torch.manual_seed(0)


def watched(model: nn.Module, *inputs: torch.Tensor, **options) -> tuple[UnitActivity, ...]:
    return unit_activity(model, lambda: model(*inputs), **options)


def line_of(text: str) -> str:
    """This file and the only line in it with such a text at its end."""
    lines = source.getsource(source.getmodule(line_of)).splitlines()
    found = [i for i, line in enumerate(lines, 1) if line.endswith(text)]
    assert len(found) == 1
    return f"tests/explain/units/test_activity.py:{found[0]}"


class One(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x * 1)


# ------------------------------------------------------------------------------- one function

RECTIFIERS = {
    "module": (nn.ReLU(), "relu"),
    "module in place": (nn.ReLU(inplace=True), "relu"),
    "function": (F.relu, "relu"),
    "method": (lambda x: x.relu(), "relu"),
    "method in place": (lambda x: x.relu_(), "relu"),
    "function in place": (lambda x: F.relu(x, inplace=True), "relu"),
    "relu6": (nn.ReLU6(), "relu6"),
    "relu6 in place": (nn.ReLU6(inplace=True), "relu6"),
    "hardtanh from 0": (nn.Hardtanh(0.0, 2.0), "hardtanh"),
    "threshold": (nn.Threshold(0.0, 0.0), "threshold"),
    "clamp": (lambda x: x.clamp(min=0), "clamp"),
    "clamp in place": (lambda x: x.clamp_(min=0), "clamp"),
    "clamp_min": (lambda x: x.clamp_min(0), "clamp"),
    "clip": (lambda x: torch.clip(x, 0.0), "clamp"),
    "leaky relu without a leak": (nn.LeakyReLU(0.0), "leaky_relu"),
    "hardswish": (lambda x: F.hardswish(x - 3), "hardswish"),
}


@pytest.mark.parametrize(("function", "op"), RECTIFIERS.values(), ids=RECTIFIERS)
def test_rectifiers_however_they_are_written(function, op):
    x = torch.ones(5, 4, requires_grad=True)
    planted = x.detach().clone()
    planted[:, 1] = -1  # never on
    planted[1:, 2] = -1  # on once
    model = One(function)
    (found,) = watched(model, planted.requires_grad_())
    assert (found.op, found.units, found.samples, found.dead) == (op, 4, 5, 1)
    assert found.saturated == 0
    slope = torch.autograd.grad(model(planted).sum(), planted)[0]
    assert int((slope == 0).all(0).sum()) == found.dead


def test_a_share_makes_a_unit_dead():
    x = -torch.ones(1000, 3, requires_grad=True)
    x.data[:9, 0] = 1  # on in less than 1 %
    x.data[:10, 1] = 1  # just not
    (found,) = watched(One(F.relu), x)
    assert (found.dead, found.samples) == (2, 1000)
    assert watched(One(F.relu), x, active=0.02)[0].dead == 3
    assert watched(One(F.relu), x, active=1e-9)[0].dead == 1


FLAT = {
    "relu6 above": (nn.ReLU6(), 6.0, 5.9),
    "hardtanh": (nn.Hardtanh(), -1.0, -0.9),
    "hard clamp": (lambda x: x.clamp(-2, 2), 2.0, 1.9),
    "hardsigmoid": (F.hardsigmoid, -3.0, 2.9),
    "sigmoid below": (torch.sigmoid, -23.1, -22.9),
    "sigmoid above": (torch.sigmoid, 17.1, 16.9),
    "sigmoid in place": (lambda x: x.sigmoid_(), 17.1, 16.9),
    "tanh": (nn.Tanh(), -9.6, -9.4),
    "tanh above": (torch.tanh, 9.6, 9.4),
}


@pytest.mark.parametrize(("function", "flat", "steep"), FLAT.values(), ids=FLAT)
def test_flat_ends(function, flat, steep):
    x = torch.tensor([[flat, steep, 0.5]] * 3, requires_grad=True)
    (found,) = watched(One(function), x)
    assert (found.saturated, found.dead, found.units) == (1, 0, 3)


def test_thresholds_of_ones_own():
    x = torch.tensor([[-3.0, 0.0, 2.5]])
    assert watched(One(torch.tanh), x)[0].saturated == 0
    assert watched(One(torch.tanh), x, tanh=2.2)[0].saturated == 2
    assert watched(One(torch.sigmoid), x, sigmoid=(-2.9, 3.0))[0].saturated == 1


SMOOTH = {
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "steep softplus": lambda x: F.softplus(x, beta=3.0),
    "elu": F.elu,
    "small elu": lambda x: F.elu(x, alpha=1e-3),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, alpha=0.5),
    "log-sigmoid": F.logsigmoid,
}


@pytest.mark.parametrize("slope", [1e-6, 1e-3])
@pytest.mark.parametrize("function", SMOOTH.values(), ids=SMOOTH)
def test_smooth_ones_are_flat_where_their_slope_is(function, slope):
    x = torch.linspace(-40, 40, 4001, dtype=torch.float64)[None].requires_grad_()
    actual = torch.autograd.grad(function(x).sum(), x)[0].abs()
    level = function in (F.gelu, F.silu, F.mish)  # near -1
    outer = x.detach().abs() > (4 if level else 0)
    (found,) = watched(One(function), x, slope=slope)
    assert found.dead + found.saturated == int((outer & (actual < slope)).sum()) > 1000
    assert found.samples == 1


@pytest.mark.parametrize("function", [nn.LeakyReLU(), nn.PReLU()], ids=["leaky", "prelu"])
def test_what_leaks_is_never_dead(function):
    (found,) = watched(One(function), -torch.ones(4, 3))
    assert (found.units, found.dead, found.saturated) == (3, 0, 0)


GUARDS = {
    "norm": lambda x: F.normalize(x),
    "lower guard": lambda x: x.clamp_min(1e-6),
    "upper guard": lambda x: x.clamp(max=0.0),
    "integers": lambda x: x.long().clamp(min=0),
    "boxes without a gradient": lambda x: x.detach().clamp(min=0),
    "by a tensor": lambda x: torch.clamp(x, min=torch.zeros(3)),
}


@pytest.mark.parametrize("function", GUARDS.values(), ids=GUARDS)
def test_guards_are_no_nonlinearities(function):
    assert watched(One(function), -torch.ones(4, 3, requires_grad=True)) == ()


def test_nan_is_not_off():
    (found,) = watched(One(F.relu), torch.full((4, 2), math.nan))
    assert found.dead == 0


# ------------------------------------------------------------------------------- softmax


def test_distributions_with_all_in_one_entry():
    x = torch.tensor([[30.0, 0.0, 1.0], [2.0, 1.0, 0.0], [-torch.inf, 5.0, -torch.inf]])
    (found,) = watched(One(nn.Softmax(-1)), x)
    assert (found.units, found.samples, found.saturated) == (3, 3, 1)  # the last had no choice
    assert watched(One(nn.Softmax(0)), x)[0].units == 3


@pytest.mark.parametrize("mask", [-torch.inf, -1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_causal_mask_saturates_nothing(mask):
    class Attention(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            scores = q @ q.transpose(-1, -2)
            causal = torch.ones(8, 8, dtype=torch.bool).triu(1)
            return scores.masked_fill(causal, mask).softmax(-1) @ q

    (found,) = watched(Attention(), torch.randn(2, 8, 4))
    assert (found.op, found.units, found.samples, found.saturated) == ("softmax", 16, 8, 0)


def test_attention_of_large_scores():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    (fine,) = watched(attention, x, x, x)
    assert (fine.op, fine.name, fine.units, fine.saturated) == ("softmax", "", 20, 0)
    with torch.no_grad():
        attention.in_proj_weight.mul_(1e3)
    assert watched(attention, x, x, x)[0].saturated > 15


# ------------------------------------------------------------------------------- few values


def test_the_shares_of_all_values():
    (found,) = watched(One(F.relu), torch.tensor([[-1.0, 2.0, -3.0], [-1.0, -2.0, 3.0]]))
    assert found.off == pytest.approx(4 / 6)
    (found,) = watched(One(torch.tanh), torch.tensor([[0.0, 9.6, -9.6], [1.0, 2.5, 0.0]]))
    assert (found.flat, found.near) == (pytest.approx(2 / 6), pytest.approx(3 / 6))


def sleeping(*, bias: bool = True, width: int = 64) -> nn.Linear:
    """A layer of which a quarter lies below zero, whatever comes that is as long as its inputs."""
    layer = nn.Linear(16, width, bias=bias)
    with torch.no_grad():
        if bias:
            layer.bias[: width // 4] = -1e3
    return layer


@pytest.mark.parametrize("rows", [1, 4, 15])
def test_units_that_no_such_input_wakes(rows):
    layer = sleeping()
    x = torch.randn(rows, 16)
    (found,) = watched(nn.Sequential(layer, nn.ReLU()), x)
    assert (found.units, found.asleep) == (64, 16)
    # The worst that any input of this length can do to each unit.
    worst = x.norm(dim=1).max() * layer.weight / layer.weight.norm(dim=1, keepdim=True)
    assert int((layer(worst).diagonal() <= 0).sum()) == 16


def test_inputs_of_one_sign_wake_less():
    layer = nn.Linear(16, 8)
    with torch.no_grad():
        layer.weight[:5].abs_()
        layer.bias.zero_()
    (found,) = watched(nn.Sequential(layer, nn.ReLU()), -torch.rand(2, 16) - 0.1)
    assert found.asleep == 5


WAYS = {
    "a function": lambda layer, x: F.relu(layer(x)),
    "in place": lambda layer, x: F.relu_(layer(x)),
    "more axes": lambda layer, x: F.relu(layer(x[:, None])),
    "a smooth one": lambda layer, x: F.gelu(layer(x)),
}
OTHER_WAYS = {
    "something between": lambda layer, x: F.relu(layer(x) + 1e4),
    "something in place": lambda layer, x: F.relu(layer(x).add_(1e4)),
    "other axes": lambda layer, x: F.relu(layer(x[:, None]).transpose(1, 2)),
    "many rows": lambda layer, x: F.relu(layer(x.repeat(16, 1))),
}


class Layered(nn.Module):
    def __init__(self, layer, way):
        super().__init__()
        self.layer, self.way = layer, way

    def forward(self, x):
        return self.way(self.layer, x)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_ways_to_a_layer_in_front(way):
    assert watched(Layered(sleeping(), way), torch.randn(2, 16))[0].asleep == 16


@pytest.mark.parametrize("way", OTHER_WAYS.values(), ids=OTHER_WAYS)
def test_what_is_not_straight_behind_a_layer_proves_nothing(way):
    assert watched(Layered(sleeping(), way), torch.randn(2, 16))[0].asleep == 0


def test_a_loop_must_not_wake_them_in_any_round():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = sleeping(width=16)

        def forward(self, x):
            for _ in range(2):
                x = F.relu(self.layer(x * 1e6))
            return x

    (found,) = watched(Net(), torch.randn(2, 16))
    assert (found.samples, found.asleep) == (4, 0)


# ------------------------------------------------------------------------------- whole models


def by_hooks(model: nn.Module, kinds: tuple[type, ...], x: torch.Tensor) -> dict:
    """Units, values and dead units of each call of a rectifier, from its output by a plain hook."""
    seen: dict[tuple[str, int], tuple[int, int, int]] = {}
    names = {m: n for n, m in model.named_modules()}

    def read(module: nn.Module, args: object, output: torch.Tensor) -> None:
        call = sum(name == names[module] for name, _ in seen)
        on = (output != 0).transpose(0, 1).flatten(1) if output.dim() > 1 else output != 0
        dead = int((on.double().mean(1) < 0.01).sum())
        seen[names[module], call] = (on.shape[0], on.shape[1], dead)

    handles = [m.register_forward_hook(read) for m in model.modules() if isinstance(m, kinds)]
    model(x)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1", "densenet121", "mobilenet_v3_small"])
def test_pictures_against_plain_hooks(name):
    model = torchvision.models.get_model(name, weights=None).eval()
    x = torch.randn(2, 3, 64, 64)
    kinds = (nn.ReLU, nn.ReLU6, nn.Hardswish)
    expected = by_hooks(model, kinds, x)
    if name == "densenet121":  # it ends in a function
        expected["", 0] = None
    found = {(a.name, a.call): (a.units, a.samples, a.dead) for a in watched(model, x)}
    assert found.keys() - {k for k in found if "scale_activation" in k[0]} == expected.keys() - {
        k for k in expected if "scale_activation" in k[0]
    }
    assert {k: v for k, v in found.items() if expected.get(k)} == {
        k: v for k, v in expected.items() if v
    }


def test_channels_last_as_swin_and_convnext_have_them():
    model = torchvision.models.convnext_tiny(weights=None)
    found = [a for a in watched(model, torch.randn(2, 3, 64, 64)) if a.op == "gelu"]
    linear = [m.out_features for m in model.modules() if isinstance(m, nn.Linear)][:-1:2]
    assert [a.units for a in found] == linear
    assert {a.units * a.samples for a in found} == {2 * 16**2 * 4 * 96, 2 * 8**2 * 768,
                                                    2 * 4**2 * 1536, 2 * 2**2 * 3072}  # fmt: skip


def test_convolutions_over_time_have_their_channels_second():
    model = nn.Sequential(nn.Conv1d(3, 7, 3, padding=1), nn.ReLU())
    (found,) = watched(model, torch.randn(2, 3, 9))
    assert (found.units, found.samples) == (7, 18)
    model = nn.Sequential(nn.Linear(9, 7), nn.ReLU())
    (found,) = watched(model, torch.randn(2, 3, 9))
    assert (found.units, found.samples) == (7, 6)


class Functional(nn.Module):
    """A user's net: functional, in place, in a branch, in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.cell = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))  # first
        for _ in range(3):
            x = torch.tanh(self.cell(x))  # loop
        return x.relu_()  # last


def test_where_in_the_users_file():
    model = Functional()
    nn.init.constant_(model.stem.bias, -1e3)
    first, loop, last = watched(model, torch.randn(5, 6))
    place = line_of("# first")
    assert first == UnitActivity(
        "relu", "", 0, 8, 5, 8, location=place, off=1.0, flat=0.0, asleep=8
    )
    assert (loop.op, loop.samples, loop.location) == ("tanh", 15, line_of("# loop"))
    assert (last.op, last.location) == ("relu", line_of("# last"))


def test_a_loss_outside_the_model_is_not_the_models():
    model = nn.Linear(3, 1)
    x = torch.randn(4, 3)
    assert unit_activity(model, lambda: (1 - model(x)).clamp(min=0).mean()) == ()


def test_a_transformer():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, attn_implementation="eager",
    )  # fmt: skip
    found = watched(BertModel(config), torch.randint(50, (2, 7)))
    assert [(a.op, a.name, a.units, a.samples) for a in found] == [
        ("softmax", "encoder.layer.0.attention.self", 28, 7),
        ("gelu", "encoder.layer.0.intermediate.intermediate_act_fn", 32, 14),
        ("softmax", "encoder.layer.1.attention.self", 28, 7),
        ("gelu", "encoder.layer.1.intermediate.intermediate_act_fn", 32, 14),
        ("tanh", "pooler.activation", 16, 2),
    ]


def test_recurrent_layers_run():
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 4, batch_first=True)
            self.gru = nn.GRU(4, 4, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.head(self.gru(self.lstm(x)[0])[0]))

    found = watched(Tagger(), torch.randn(2, 5, 6))
    assert [(a.op, a.units, a.samples) for a in found if a.name == ""] == [("relu", 3, 10)]
    assert {a.name for a in found} <= {"", "gru", "lstm"}  # gates, where they can be seen


# ------------------------------------------------------------------------------- harmless


@pytest.mark.parametrize("build", [torchvision.models.resnet18, swin])
def test_looking_changes_nothing(build, unchanged):
    model = build().eval()
    x = torch.randn(2, 3, 64, 64)
    plain, seen = model(x), []
    plain.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    with unchanged(model):
        unit_activity(model, lambda: seen.append(model(x)))
    assert torch.equal(plain, seen[0])
    model.zero_grad()
    seen[0].sum().backward()
    assert all(map(torch.equal, gradients, (p.grad for p in model.parameters())))


def test_a_run_that_raises_tells_what_it_saw():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(2, 3), nn.ReLU())
    assert [a.name for a in watched(model, torch.randn(2, 3))] == ["1"]


def test_inside_vmap():
    class Mapped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.func.vmap(torch.relu)(x)

    (found,) = watched(Mapped(), torch.tensor([[-1.0, 1.0]] * 3))
    assert (found.units, found.samples, found.dead) == (2, 3, 1)


def test_what_has_no_values_is_passed_over():
    assert watched(nn.ReLU(), torch.empty(0, 3)) == ()
    assert watched(nn.ReLU(), torch.zeros(4, 3, device="meta")) == ()
    assert watched(nn.ReLU(), torch.zeros(())) == ()
    (found,) = watched(nn.ReLU(), torch.tensor([-1.0, 1.0]))
    assert (found.units, found.samples, found.dead) == (2, 1, 1)
