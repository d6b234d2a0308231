"""Interventions against values computed by hand, and against the hooks that a user would write."""

from __future__ import annotations

import copy

import guards
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradscope
from gradscope import plugins
from gradscope.actions import ACTIONS, PLACES, action
from gradscope.errors import ConfigError, GradscopeError, LayerError, OptionError
from gradscope.records import json as record_json
from gradscope.records.report import Report
from gradscope.reporters.views import View

markdown = plugins.load("gradscope.reporters.report", "markdown")
terminal = plugins.load("gradscope.reporters.report", "terminal")

pytestmark = pytest.mark.numbers


class Double(nn.Module):
    def forward(self, a):
        return 2 * a


class Residual(nn.Module):
    """Two paths from one tensor; the inner layers are read by the block and by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + torch.tanh(self.body(x)))


@pytest.fixture
def model() -> Residual:
    torch.manual_seed(0)
    return Residual().double()


X = torch.arange(20.0, dtype=torch.float64).reshape(5, 4).sin()


def inspected(model, *interventions, x=X, **options):
    return gradscope.inspect(model, x, loss="sum", interventions=interventions, **options)


def by_hand(model, *, output=None, given=None, parameter=None, activation=None, layer="body"):
    """The gradients of every parameter with hooks as a user writes them."""
    model = copy.deepcopy(model)
    module, x = getattr(model, layer), model.stem(X)
    kept = x.clone()  # what this layer alone reads
    if given:
        kept.register_hook(given)
    out = module(kept)
    out = activation(out) if activation else out
    if output:
        out.register_hook(output)
    if parameter:
        for one in module.parameters():
            one.register_hook(parameter)
    model.head(x + torch.tanh(out)).sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def clipped(limit):
    return lambda g: g * min(1.0, limit / float(g.norm()))


CASES = {
    "scale grad_output": ("scale", "grad_output", 3, {"output": lambda g: 3 * g}),
    "scale grad_input": ("scale", "grad_input", 3, {"given": lambda g: 3 * g}),
    "scale parameter_grad": ("scale", "parameter_grad", -2, {"parameter": lambda g: -2 * g}),
    "scale activation": ("scale", "activation", 0.5, {"activation": lambda y: 0.5 * y}),
    "zero grad_input": ("zero", "grad_input", None, {"given": torch.zeros_like}),
    "zero grad_output": ("zero", "grad_output", None, {"output": torch.zeros_like}),
    "zero activation": ("zero", "activation", None, {"activation": lambda y: y * 0}),
    "clip grad_output": ("clip_norm", "grad_output", 0.1, {"output": clipped(0.1)}),
    "clip grad_input": ("clip_norm", "grad_input", 0.1, {"given": clipped(0.1)}),
    "a clip that does not bind": ("clip_norm", "grad_input", 1e9, {}),
    "clip parameter_grad": ("clip_norm", "parameter_grad", 0.1, {"parameter": clipped(0.1)}),
    "clip values": ("clip_value", "grad_output", 0.2, {"output": lambda g: g.clamp(-0.2, 0.2)}),
    "replace grad_output": ("replace", "grad_output", 0.5, {"output": lambda g: g * 0 + 0.5}),
    "detach": ("detach", "activation", None, {"activation": torch.Tensor.detach}),
}


@pytest.mark.parametrize(("do", "at", "value", "hooks"), CASES.values(), ids=CASES)
def test_gradients_are_those_of_the_hook_that_a_user_writes(model, do, at, value, hooks):
    one = {"layers": "body", "at": at, "do": do, "value": value}
    expected = by_hand(model, **hooks)
    with guards.unchanged(model):
        report = inspected(model, one, verify=True)
    assert report.run.verified.identical
    for parameter in report.parameters:
        found, wanted = parameter.gradient, expected[parameter.name]
        assert (found is None) is (wanted is None), parameter.name
        if wanted is not None:
            assert found.norm == pytest.approx(float(wanted.norm()), rel=1e-12)
            assert found.mean == pytest.approx(float(wanted.mean()), rel=1e-9, abs=1e-14)


def test_the_lectures_hook_doubles_the_gradient_on_its_way():
    """b = 2a: b.grad is 0.2, a.grad 0.4; doubled in a hook of b it is 0.8."""
    a = torch.ones(5, requires_grad=True)
    (plain,) = gradscope.inspect(Double(), a, loss="mean").calls
    one = {"layers": "", "do": "scale", "value": 2}
    report = gradscope.inspect(Double(), a, loss="mean", interventions=[one])
    (call,), (change,) = report.calls, report.interventions
    assert plain.inputs[0].gradient.values == pytest.approx([0.4] * 5)
    assert change.before.values == pytest.approx([0.2] * 5)
    assert change.after.values == pytest.approx([0.4] * 5)
    assert change.factor == pytest.approx(2)
    assert call.inputs[0].gradient.values == pytest.approx([0.8] * 5)
    assert a.grad is None


def test_to_double_it_after_backward_is_too_late():
    a = torch.ones(5, requires_grad=True)
    b = 2 * a
    b.retain_grad()
    b.mean().backward()
    b.grad *= 2
    assert a.grad.tolist() == pytest.approx([0.4] * 5)


def test_before_after_and_factor(model):
    grads = by_hand(model)
    one = {"layers": "body", "at": "parameter_grad", "do": "clip_norm", "value": 0.5}
    weight, bias = inspected(model, one).interventions
    assert (weight.name, bias.name, weight.call) == ("body.weight", "body.bias", None)
    norm = float(grads["body.weight"].norm())
    assert norm > 0.5
    assert weight.before.norm == pytest.approx(norm, rel=1e-12)
    assert weight.after.norm == pytest.approx(0.5, rel=1e-12)
    assert weight.factor == pytest.approx(0.5 / norm, rel=1e-12)


def test_what_else_is_recorded_has_the_change_in_it(model):
    report = inspected(model, {"layers": "body", "at": "grad_input", "do": "zero"})
    calls = {call.name: call for call in report.calls}
    # What the layer computed stands in its row; what came of it, in the rows before it.
    assert calls["body"].inputs[0].gradient.norm > 0
    expected = X.new_ones(5, 3) @ model.head.weight
    assert calls["stem"].outputs[0].gradient.norm == pytest.approx(float(expected.detach().norm()))


def test_several_in_their_order(model):
    clip = {"layers": "body", "do": "clip_norm", "value": 1}
    twice = {"layers": "body", "do": "scale", "value": 2}
    first, second = inspected(model, clip, twice).interventions
    assert (first.after.norm, second.after.norm) == pytest.approx((1, 2))
    first, second = inspected(model, twice, clip).interventions
    assert second.after.norm == pytest.approx(1)


def test_repeats_add_up_what_each_backward_had(model):
    one = {"layers": "body", "do": "scale", "value": 3}
    (once,) = inspected(model, one).interventions
    (twice,) = inspected(model, one, repeats=2, retain_graph=True).interventions
    assert twice.before.norm == pytest.approx(2 * once.before.norm)
    assert twice.factor == pytest.approx(3)


def test_noise_is_the_runs_own_and_repeatable(model):
    one = {"layers": "body", "at": "activation", "do": "noise", "value": 0.1}
    first, again = (inspected(model, one).interventions[0] for _ in range(2))
    other = inspected(model, one, seed=1).interventions[0]
    assert first == again
    assert first.after.norm != other.after.norm
    torch.manual_seed(0)
    noise = 0.1 * torch.empty(5, 4, dtype=torch.float64).normal_()
    expected = float((model.body(model.stem(X)) + noise).detach().norm())
    assert first.after.norm == pytest.approx(expected)


def test_a_tensor_in_the_place_of_a_gradient(model, tmp_path):
    torch.save(torch.full((4,), 0.25), tmp_path / "g.pt")
    for value in ([0.25] * 4, {"file": str(tmp_path / "g.pt")}):
        one = {"layers": "body", "do": "replace", "value": value}
        (change,) = inspected(model, one).interventions
        assert change.after.norm == pytest.approx(0.25 * 20**0.5)
        assert change.value is None
    with pytest.raises(ConfigError, match=r"shape \[3\].* `body` has \[5, 4\]"):
        inspected(model, {"layers": "body", "do": "replace", "value": [1, 2, 3]})


class Odd(nn.Module):
    """A layer that is not called, one whose result is not used, one that returns integers."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.idle, self.body = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.pick = Argmax()
        self.body.bias.requires_grad = False

    def forward(self, x):
        self.idle(x)
        y = self.body(x)
        return y + self.pick(y)


class Argmax(nn.Module):
    def forward(self, x):
        return x.argmax(-1, keepdim=True)


ABSENT = {
    "never called": ("unused", "grad_output", "the layer did not run"),
    "not in the loss": ("idle", "grad_output", "no gradient arrived"),
    "an input without gradient": ("body", "grad_input", "needs no gradient"),
    "a frozen parameter": ("body.bias", "parameter_grad", "needs no gradient"),
    "integers": ("pick", "activation", "it returned no floating tensor"),
}


@pytest.mark.parametrize(("layers", "at", "note"), ABSENT.values(), ids=ABSENT)
def test_where_nothing_was_changed_a_row_says_why(layers, at, note):
    one = {"layers": layers, "at": at, "do": "zero"}
    report = gradscope.inspect(Odd(), torch.randn(2, 4), loss="sum", interventions=[one])
    (change,) = report.interventions
    assert (change.note, change.before, change.factor) == (note, None, None)
    assert note in terminal.render(report, View())


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_changed_like_any_other_part(reentrant):
    class Checkpointed(Residual):
        def forward(self, x):
            x = self.stem(x)
            body = checkpoint(self.body, x, use_reentrant=reentrant)
            return self.head(x + torch.tanh(body))

    torch.manual_seed(0)
    checkpointed = Checkpointed().double()
    torch.manual_seed(0)
    plain = Residual().double()
    for at in PLACES:
        one = {"layers": "body", "at": at, "do": "scale", "value": 2}
        found, expected = (inspected(m, one) for m in (checkpointed, plain))
        for p, q in zip(found.parameters, expected.parameters, strict=True):
            assert p.gradient.norm == pytest.approx(q.gradient.norm, rel=1e-12), at
        factors = [change.factor for change in found.interventions]
        assert factors == [pytest.approx(2)] * (2 if at == "parameter_grad" else 1), at


def test_a_write_into_the_input_is_refused():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    with pytest.raises(ConfigError, match="`1` writes into its input in place"):
        gradscope.inspect(net, x, interventions=[{"layers": "*", "at": "grad_input", "do": "zero"}])
    allowed = {"layers": ["*", "!1"], "at": "grad_input", "do": "zero"}
    report = gradscope.inspect(net, x, interventions=[allowed])
    assert report.parameters[0].gradient.zeros == report.parameters[0].gradient.numel


def test_sparse_gradients():
    net = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    one = {"layers": "0", "at": "parameter_grad", "do": "clip_norm", "value": 0.01}
    report = gradscope.inspect(net, torch.tensor([1, 2, 2]), loss="sum", interventions=[one])
    assert report.interventions[0].after.norm == pytest.approx(0.01)
    assert report.parameters[0].gradient.norm == pytest.approx(0.01)


def test_every_look_sees_the_same_step(model):
    cut = {"layers": "body", "do": "detach"}
    loose = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    report = inspected(loose, {**cut, "layers": "1"}, x=X.float())
    assert {f.code for f in report.findings} == {"GS401"}
    text = terminal.render(report, View())
    assert "note: interventions: detach at activation" in text
    assert "### Interventions" in markdown.render(report, View())
    assert (
        record_json.loads(record_json.dumps(report), Report).interventions == report.interventions
    )
    assert '"interventions"' not in record_json.dumps(inspected(loose, x=X.float()))


WRONG = {
    "no such action": ({"layers": "body", "do": "clip"}, OptionError, "unknown action `clip`"),
    "no layer": ({"layers": "boddy", "do": "zero"}, LayerError, "matches no layer"),
    "no layers": ({"do": "zero"}, OptionError, "lacks the key `layers`"),
    "no value": ({"layers": "body", "do": "scale"}, OptionError, "needs a value: a number"),
    "a value too many": ({"layers": "body", "do": "zero", "value": 0}, OptionError, "no value"),
    "a limit below 0": ({"layers": "body", "do": "clip_norm", "value": -1}, OptionError, "above 0"),
    "detached gradients": (
        {"layers": "body", "do": "detach", "at": "grad_output"},
        OptionError,
        "cannot be done at grad_output",
    ),
    "an unknown key": ({"layers": "body", "do": "zero", "att": 1}, OptionError, "unknown key"),
}


@pytest.mark.parametrize(("one", "error", "message"), WRONG.values(), ids=WRONG)
def test_mistakes_are_told(model, one, error, message):
    with pytest.raises(GradscopeError, match=message) as caught:
        inspected(model, one)
    assert isinstance(caught.value, error)


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_keeps_shape_and_dtype_and_says_what_it_does(name):
    known = action(name)
    assert set(known.places) <= set(PLACES)
    assert known.help.endswith(".")
    value = 0.5 if known.takes else None
    assert known.accepts(value)
    for dtype in (torch.float32, torch.float16, torch.complex64):
        if name == "clip_value" and dtype.is_complex:
            continue  # what is complex has no order
        tensor = torch.ones(3, 2, dtype=dtype)
        changed = known.change(tensor, value)
        assert (changed.shape, changed.dtype) == (tensor.shape, dtype)
        assert torch.equal(tensor, torch.ones(3, 2, dtype=dtype))


def test_a_norm_beyond_float16_is_clipped_all_the_same():
    clip = action("clip_norm").change(torch.full((100,), 6e4, dtype=torch.float16), 1.0)
    assert clip.tolist() == pytest.approx([0.1] * 100, rel=1e-2)
