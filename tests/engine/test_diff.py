"""``gradscope.diff``: planted faults are found at their place, and what is right is left alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparison.planted import LinearOfMean, Scaled
from torch import Tensor, nn
from torch.nn import functional as F

import gradscope
from gradscope.api._differences import which_is_off
from gradscope.capture.differences import Difference
from gradscope.config import loaded_config as config
from gradscope.errors import ModelError, OptionError
from gradscope.records.diff import DiffReport
from gradscope.running.divergent_calls import Noise, OutputDiff

X, Y = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2] * 2)


class Block(nn.Module):
    """A residual with a norm, an in-place activation and code of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 8)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Linear(8, 8)
        self.gain = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    """Two blocks between a BatchNorm and a head, with a bias that the BatchNorm cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.batch_norm = nn.BatchNorm1d(8)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.batch_norm(self.stem(x))))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def compared(a: nn.Module, b: nn.Module, inputs: Any = X, **options: Any) -> DiffReport:
    return gradscope.diff(a, b, inputs, **{"target": Y} | options)


def scaled_backward(b: Net) -> None:
    forward = b.blocks[1].up.forward
    b.blocks[1].up.forward = lambda x: Scaled.apply(forward(x))


def in_bfloat16(b: Net) -> None:
    layer = b.blocks[0].down
    layer.forward = lambda x: F.linear(
        x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16()
    ).float()


def wrong_function(b: Net) -> None:
    layer = b.blocks[0].up
    layer.forward = lambda x: LinearOfMean.apply(x, layer.weight, layer.bias)


def transposed(b: Net) -> None:
    with torch.no_grad():
        b.blocks[1].down.weight.copy_(b.blocks[1].down.weight.T.clone())


def another_epsilon(b: Net) -> None:
    b.blocks[0].norm.eps = 1e-6


def another_batch_norm_epsilon(b: Net) -> None:
    b.batch_norm.eps = 1e-4


def another_gain(b: Net) -> None:
    b.blocks[0].gain = 1.001


def another_activation(b: Net) -> None:
    b.blocks[1].act = nn.LeakyReLU(0.001, inplace=True)


PLANTED: dict[str, tuple[Callable[[Net], None], str, str]] = {
    "a backward that is off by 1 %": (scaled_backward, "GD102", "blocks.1.up"),
    "a layer in bfloat16": (in_bfloat16, "GD101", "blocks.0.down"),
    "a wrong gradient of a custom function": (wrong_function, "GD102", "blocks.0.up"),
    "a transposed weight": (transposed, "GD101", "blocks.1.down"),
    "another epsilon": (another_epsilon, "GD101", "blocks.0.norm"),
    "another epsilon of a BatchNorm": (another_batch_norm_epsilon, "GD101", "batch_norm"),
    "a block's own code": (another_gain, "GD101", "blocks.0"),
    "another activation, in place": (another_activation, "GD101", "blocks.1.act"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_planted_fault_is_found_at_its_place(name, seed):
    plant, code, place = PLANTED[name]
    a = net(seed)
    b = copy.deepcopy(a)
    plant(b)
    found = {finding.code: finding for finding in compared(a, b).findings}
    assert found[code].name == place
    if code == "GD102":
        assert "GD101" not in found


@pytest.mark.slow
def test_two_faults_are_two_places():
    a = net()
    b = copy.deepcopy(a)
    in_bfloat16(b)
    scaled_backward(b)
    forward, backward = compared(a, b).findings
    assert (forward.name, backward.name) == ("blocks.0.down", "blocks.1.up")
    assert "`blocks.0.down`" in backward.message


@pytest.mark.slow
def test_a_fault_is_found_in_bfloat16_too():
    """Every number of B is rounded, and one layer does something else besides."""
    a = net()
    b = copy.deepcopy(a).bfloat16()
    b.blocks[1].gain = -1.0
    wrong = compared(a, b, X)
    assert [f.name for f in wrong.findings if f.code == "GD101"] == ["blocks.1"]


def halves(b: Net) -> None:
    for layer in (b.stem, b.blocks[0].up, b.blocks[1].down):
        layer.forward = lambda x, m=layer: (
            F.linear(x[:, 4:], m.weight[:, 4:]) + F.linear(x[:, :4], m.weight[:, :4], m.bias)
        )


def by_hand(b: Net) -> None:
    norm = b.blocks[0].norm

    def forward(x: Tensor) -> Tensor:
        x = x.flip(-1)
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        return scaled.flip(-1) * norm.weight + norm.bias

    norm.forward = forward


def untouched(b: Net) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("change", [untouched, halves, by_hand])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_computed_otherwise_is_no_fault(change, seed):
    a = net(seed)
    b = copy.deepcopy(a)
    change(b)
    report = compared(a, b)
    assert report.status == "ok"
    assert report.findings == ()


def test_errors_are_those_of_two_plain_runs():
    a = net()
    b = copy.deepcopy(a)
    another_gain(b)
    report = compared(a, b)
    outputs, gradients = [], []
    for model in (copy.deepcopy(a).double(), copy.deepcopy(b).double()):
        output = model(X.double())
        F.cross_entropy(output, Y).backward()
        outputs.append(output.detach())
        gradients.append(model.head.weight.grad)
    root = next(row for row in report.calls if row.name == "")
    head = next(row for row in report.parameters if row.name == "head.weight")
    for diff, (one, other) in ((root.activation, outputs), (head.gradient, gradients)):
        assert diff is not None
        assert diff.error == pytest.approx(float((other - one).norm() / one.norm()), rel=1e-3)
        assert diff.largest == pytest.approx(float((other - one).abs().max()), rel=1e-3)
        cosine = F.cosine_similarity(one.flatten(), other.flatten(), 0)
        assert diff.cosine == pytest.approx(float(cosine), abs=1e-6)


def test_the_loss_is_a_place():
    a, b = (config.read("demo", [f"loss={loss}"]) for loss in ("sum", "mean"))
    report = gradscope.diff(a, b)
    assert [(f.code, f.cause) for f in report.findings] == [("GD101", "loss"), ("GD102", "loss")]


def test_models_are_given_back_as_they_were(unchanged):
    a, b = net(0), net(1)
    with unchanged(a), unchanged(b):
        report = compared(a, b)
    assert report.findings[0].name == "stem"
    assert "its `weight` differs from A's" in report.findings[0].message


class Renamed(nn.Module):
    """The same net under other names, and with one layer that the other has not."""

    def __init__(self, of: Net) -> None:
        super().__init__()
        self.first = of.stem
        self.second = of.batch_norm
        self.body = of.blocks
        self.last = of.head

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.second(self.first(x))))


def test_other_names_are_matched_by_order_and_shape():
    a = net()
    report = compared(a, Renamed(copy.deepcopy(a)))
    assert (report.status, report.only_a, report.only_b) == ("ok", (), ())
    names = {row.name: row.name_b for row in report.parameters}
    assert names["blocks.0.up.weight"] == "body.0.up.weight"


def test_other_names_can_be_said():
    a = net()
    b = Renamed(copy.deepcopy(a))
    b.body[1].gain = 1.01
    match = ["blocks.**=body.**", "stem=first", "head=last", "batch_norm=second"]
    report = compared(a, b, match=match)
    assert report.findings[0].name == "blocks.1"
    assert all(row.name_b for row in report.parameters)


@pytest.mark.parametrize(
    ("match", "words"),
    [
        ("a.*=b", "same stars"),
        ("nothing.**=none.**", "fits no parameter"),
        ("a", "does not map names"),
    ],
)
def test_a_match_that_says_nothing_is_refused(match, words):
    with pytest.raises(OptionError) as caught:
        compared(net(), net(), match=[match])
    assert words in caught.value.render()


def test_what_raises_is_named():
    b = net()
    b.head = nn.Linear(5, 3)
    with pytest.raises(ModelError, match="forward raised") as caught:
        compared(net(), b)
    assert "of the model B" in caught.value.render()


def test_a_gradient_that_does_not_come_is_a_divergence():
    a = net()
    b = copy.deepcopy(a)
    forward = b.blocks[1].up.forward
    b.blocks[1].up.forward = lambda x: forward(x.detach())
    (found,) = [f for f in compared(a, b).findings if f.code == "GD102"]
    assert found.name == "blocks.1.up"


def test_a_nan_on_one_side_is_no_agreement():
    a = net()
    b = copy.deepcopy(a)
    forward = b.blocks[0].up.forward
    b.blocks[0].up.forward = lambda x: forward(x) * math.nan
    found = compared(a, b).findings[0]
    assert (found.name, found.value) == ("blocks.0.up", None)


class Masked(nn.Module):
    """Infinities that are meant."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 8)
        self.mask = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        scores = self.mask(self.scores(x).masked_fill(torch.eye(8)[:6].bool(), -math.inf))
        return scores.softmax(-1)


def test_infinities_in_the_same_places_are_equal():
    torch.manual_seed(0)
    a = Masked()
    report = compared(a, copy.deepcopy(a), loss="sum", target=None)
    assert report.status == "ok"


class Noisy(nn.Module):
    """Random numbers, which both draw alike."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_random_numbers_are_the_same_for_both():
    a = Noisy()
    b = copy.deepcopy(a)
    assert compared(a, b).status == "ok"
    b.body[1].p = 0.4
    assert compared(a, b).findings[0].name == "body.1"


@pytest.mark.slow
def test_a_compiled_model_is_compared_by_its_probes(unchanged):
    a = net()
    with unchanged(a):
        report = compared(a, torch.compile(a, backend="aot_eager"))
    assert (report.status, report.measured) == ("ok", "outputs")
    assert {"", "blocks.0", "blocks.1.up", "batch_norm"} <= {row.name for row in report.calls}
    assert max(row.activation.error for row in report.calls) < 1e-5
    assert max(row.gradient.error for row in report.parameters if row.name != "stem.bias") < 1e-5
    assert not [said for said in report.b.notices if "as it was written" in said]


#: One in forward, one in backward, one whose function is its own, one of a layer with state.
IN_COMPILED = (
    *("a transposed weight", "a backward that is off by 1 %"),
    *("a wrong gradient of a custom function", "another epsilon of a BatchNorm"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_COMPILED)
def test_what_a_compiled_model_does_otherwise_is_found_at_its_place(name):
    plant, code, place = PLANTED[name]
    a = net()
    b = copy.deepcopy(a)
    plant(b)
    b.compile(backend="eager")
    (found,) = compared(a, b).findings
    if plant is wrong_function:  # what flows on is right
        place += ".bias"
    assert (found.code, found.name, found.cause) == (code, place, "compiler")
    assert found.message.endswith(": B is off by more than rounding")


@pytest.mark.slow
def test_a_compiled_model_has_no_other_batch():
    a = net()
    b = copy.deepcopy(a)
    b.head.compile(backend="eager")
    with pytest.raises(OptionError, match="needs its calls, which gradscope cannot observe"):
        compared(a, b, inputs_b=X.flip(0), target_b=Y.flip(0))


@pytest.mark.slow
def test_a_compiled_model_has_a_reference():
    """Without fusion both are as far from float64 as a computation by hand."""
    a = net()
    b = copy.deepcopy(a)
    b.compile(backend="eager")
    report = compared(a, b, reference="float64")
    assert (report.status, report.reference) == ("ok", "float64")
    with torch.no_grad():
        exact = copy.deepcopy(a).double()(X.double())
        off = float((a(X).double() - exact).norm() / exact.norm())
    root = next(row.activation for row in report.calls if not row.name)
    assert root.reference_a == root.reference_b == pytest.approx(off, rel=1e-3)
    inside = [row for row in report.calls if row.name]
    assert all(row.activation.reference_b == row.activation.reference_a < 1e-5 for row in inside)
    assert all(row.gradient.reference_b < 1e-5 for row in inside if row.gradient)
    others = [row for row in report.parameters if row.name != "stem.bias"]  # its gradient is 0
    assert all(row.gradient.reference_b < 1e-5 for row in others)


@pytest.mark.parametrize(
    ("a", "b", "who"),
    [
        (1e-7, 1e-3, "B is off"),
        (1e-3, 1e-7, "A is off"),
        (1e-3, 1e-3, "A and B are off"),
        (1e-6, 1e-6, "none of them is off"),
    ],
)
def test_the_finding_says_which_is_off(a, b, who):
    """Its limit is 16 times the noise: 1.6e-6."""
    errors = Difference(a, 1.0, a), Difference(b, 1.0, b)
    one = OutputDiff(torch.ones(2), errors[1], Noise(1e-7, 1e-7), errors)
    figures = f"A is off by {a:.1e} and B by {b:.1e}"
    assert which_is_off(one) == f"; from float64, {figures}: {who} by more than rounding"
    assert which_is_off(OutputDiff(torch.ones(2), errors[1], one.noise)) == ""


FAULTY = """
import torch
from torch import nn

class Sometimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return self.inner(x * 1.001 if torch.compiler.is_compiling() else x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), Sometimes(), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.second(self.first(x)))
"""


@pytest.mark.slow
def test_a_config_compiles_its_model(tmp_path):
    (tmp_path / "net.py").write_text(FAULTY)
    for name, more in (("eager", ""), ("compiled", "compile: {backend: eager}\n")):
        text = f"model: ./net.py:Net\ninput: {{shape: [5, 4]}}\n{more}"
        (tmp_path / f"{name}.yaml").write_text(text)
    report = gradscope.diff(tmp_path / "eager.yaml", tmp_path / "compiled.yaml")
    (found,) = report.findings
    assert (found.code, found.name, report.reference) == ("GD101", "second", "float64")
    assert found.message.startswith("the result of its code right before `second.inner` is larger")
    assert found.message.endswith("B is off by more than rounding")
    second = next(row.activation for row in report.calls if row.name == "second")
    assert second.reference_b == pytest.approx(1e-3, rel=1e-2)
    assert second.reference_a < 1e-6


def test_a_reference_says_which_is_nearer():
    a = net()
    b = copy.deepcopy(a).bfloat16()
    report = compared(a, b, reference="float64")
    with torch.no_grad():
        exact = copy.deepcopy(a).double()(X.double())
        off = b(X.bfloat16()).double() - exact
    root = next(row.activation for row in report.calls if not row.name)
    assert root.reference_b == pytest.approx(float(off.norm() / exact.norm()), rel=1e-3)
    assert root.reference_a < 1e-6 < 1e-4 < root.reference_b
    head = next(row.gradient for row in report.parameters if row.name == "head.weight")
    assert head.reference_a < 1e-6 < head.reference_b


def test_what_a_is_not_sure_of_is_no_fault_of_b():
    """A's own rounding, that the last bits of its numbers do not show, is noise too."""

    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            fine = x.dtype == torch.float64
            return super().forward(x) if fine else super().forward(x).bfloat16().to(x.dtype)

    torch.manual_seed(0)
    a = nn.Sequential(Rounded(8, 8), nn.Tanh(), nn.Linear(8, 3))
    b = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    b.load_state_dict(a.state_dict())
    assert [f.name for f in compared(a, b).findings if f.code == "GD101"] == ["0"]
    assert compared(a, b, reference="float64").findings == ()


class Narrow(nn.Module):
    """It takes no other dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.float())


def test_a_model_that_has_no_reference_is_named():
    with pytest.raises(ModelError) as caught:
        compared(Narrow(), Narrow(), reference="float64")
    assert "of the model A in float64" in caught.value.render()
    with pytest.raises(OptionError, match="unknown reference"):
        compared(net(), net(), reference="float16")


def test_there_is_nothing_to_compare_without_values():
    a, b = (config.read("demo", [f"device={device}"]) for device in ("cpu", "meta"))
    with pytest.raises(OptionError, match="only shapes"):
        gradscope.diff(a, b)


def test_another_batch_is_the_first_finding():
    keys = ["input.shape=[2,1,28,28]"]
    a, b = (config.read("demo:lecture", [*keys, f"input.fill={n}"]) for n in ("zeros", "ones"))
    found = gradscope.diff(a, b).findings[0]
    assert (found.code, found.cause, found.value) == ("GD101", "batch", None)


ORDER = torch.tensor([3, 5, 0, 1, 4, 2])


def in_order(a: nn.Module, b: nn.Module, order: Tensor, **options: Any) -> DiffReport:
    """B has samples of A's batch in an order of its own."""
    own = {"inputs_b": X[order], "target_b": Y[order]}
    return compared(a.eval(), b.eval(), **own | options)


@pytest.mark.slow
@pytest.mark.parametrize("order", [ORDER, ORDER[:2], torch.tensor([4])], ids=len)
@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss(reduction="sum")])
def test_samples_are_compared_with_themselves(order, loss):
    """A mean over fewer samples has larger gradients, a sum has not."""
    a = net()
    report = in_order(a, copy.deepcopy(a), order, loss=loss)
    assert report.findings == ()
    diffs = [g for row in report.calls for g in (row.activation, row.gradient) if g is not None]
    assert max(diff.error for diff in diffs if diff.note is None) < 1e-6
    assert sum(diff.note is None for diff in diffs) == len(diffs)


@pytest.mark.slow
def test_what_is_summed_over_other_samples_is_not_compared():
    a = net()
    whole, part = (in_order(a, copy.deepcopy(a), order) for order in (ORDER, ORDER[:4]))
    assert max(row.gradient.error for row in whole.parameters) < 1e-6
    assert {row.gradient.note for row in part.parameters} == {"of other samples"}


@pytest.mark.slow
@pytest.mark.parametrize("order", [ORDER, ORDER[:2]], ids=len)
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_found_in_another_batch_too(name, order):
    plant, code, place = PLANTED[name]
    if name == "a wrong gradient of a custom function" and len(order) < len(X):
        pytest.skip("it is the gradient of a parameter alone, a sum over samples")
    a = net()
    b = copy.deepcopy(a)
    plant(b)
    assert {finding.code: finding.name for finding in in_order(a, b, order).findings}[code] == place


def test_a_layer_that_mixes_samples_is_found():
    a = net()
    report = in_order(a, copy.deepcopy(a), ORDER[:3])
    assert report.findings == ()
    a.train()
    b = copy.deepcopy(a)
    report = compared(a, b, inputs_b=X[ORDER[:3]], target_b=Y[ORDER[:3]])
    assert (report.findings[0].code, report.findings[0].name) == ("GD101", "batch_norm")


class Positions(nn.Module):
    """As many positions as samples: rows alone do not tell which they are."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(6, 8)
        self.mix = nn.Identity()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        table = self.mix(self.places(torch.arange(6)))
        return self.head((x[:, None] + table).tanh().mean(1))


def test_positions_are_no_samples():
    torch.manual_seed(0)
    a = Positions()
    assert in_order(a, copy.deepcopy(a), ORDER).findings == ()
