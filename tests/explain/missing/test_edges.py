"""The second run's errors, the state it leaves, and the limits of its answers."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradscope
from explain.missing.cases import missing_names
from gradscope.explain.missing.explain_missing import explain_missing
from gradscope.explain.missing.observed_tensors import Number

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_healthy_and_nothing_asked() -> None:
    model = nn.Linear(4, 2)
    assert explain_missing(model, lambda: model(X).sum(), []) == ()
    # What this run's loss leads to is not missing, whatever the caller found before.
    assert explain_missing(model, lambda: model(X).sum(), ["weight"]) == ()


def test_no_graph_at_all() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(X).sum()

    (one,) = explain_missing(model, forward, missing_names(model, forward))
    assert (one.cause, one.module, one.call) == ("no-grad", "0", 0)
    assert one.upstream == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert "with torch.no_grad():" in one.message


def test_a_run_that_raises_tells_what_was_decided() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 4)})

    def forward() -> torch.Tensor:
        with torch.no_grad():
            h = model["a"](X)
        model["b"](h)
        raise RuntimeError("planted")

    names = [name for name, _ in model.named_parameters()]
    (one,) = explain_missing(model, forward, names)
    # b has a graph that might have reached the loss, c might have been called.
    assert (one.cause, one.upstream) == ("no-grad", ("a.weight", "a.bias"))
    assert _hooks(model) == 0


def test_ctrl_c_goes_through() -> None:
    model = nn.Linear(4, 2)

    def forward() -> torch.Tensor:
        model(X)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explain_missing(model, forward, ["weight"])
    assert _hooks(model) == 0


def test_activations_are_freed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    seen: list[weakref.ref[torch.Tensor]] = []

    def forward() -> torch.Tensor:
        h = model[0](X)
        t = model[1](h)
        seen.extend((weakref.ref(h), weakref.ref(t)))
        return model[2](t.detach()).sum()

    gc.collect()
    gc.disable()
    try:
        (one,) = explain_missing(model, forward, ["0.weight", "0.bias"])
        assert one.cause == "detached"
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()


def test_a_name_of_a_shared_parameter_stays_with_it() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight

    def forward() -> torch.Tensor:
        return model["b"](X.detach()).detach().sum().requires_grad_()

    names = ["a.weight", "b.weight", "b.bias"]
    (one,) = explain_missing(model, forward, names)
    assert (one.cause, one.name, one.upstream) == ("detached", "a.weight", tuple(names))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
def test_what_scripted_code_calls_is_not_told() -> None:
    class Quiet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x).detach()

    model = nn.ModuleDict({"quiet": torch.jit.script(Quiet()), "out": nn.Linear(4, 2)})
    forward = lambda: model["out"](model["quiet"](X)).sum()  # noqa: E731
    assert explain_missing(model, forward, missing_names(model, forward)) == ()


def test_frozen_during_forward_and_thawed_after() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)

    def forward() -> torch.Tensor:
        loss = model(X).sum()
        model[0].requires_grad_(True)
        return loss

    missing = missing_names(model, forward)
    assert missing == ["0.weight", "0.bias"]
    # The second run finds them thawed, and its loss leads to them.
    assert explain_missing(model, forward, missing) == ()


def test_gradients_off_around_a_reentrant_checkpoint() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "out": nn.Linear(4, 2)})

    def forward() -> torch.Tensor:
        h = model["a"](X)
        with torch.no_grad():
            h = checkpoint(model["b"], h, use_reentrant=True)
        return model["out"](h).sum()

    (one,) = explain_missing(model, forward, missing_names(model, forward))
    assert (one.cause, one.module) == ("no-grad", "b")
    assert one.upstream == ("a.weight", "a.bias", "b.weight", "b.bias")


def test_the_same_module_called_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    model = nn.ModuleDict({"t": Twice(), "out": nn.Linear(4, 2)})

    def forward() -> torch.Tensor:
        h = model["t"](X)
        unused = model["t"](h)
        return F.mse_loss(model["out"](X), unused[:, :2].detach())

    (one,) = explain_missing(model, forward, missing_names(model, forward))
    assert (one.cause, one.module, one.name) == ("detached", None, "t.fc.weight")


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda y: 2 if y > 0 else 1, ("decides the branch", "passes no gradient")),
        (lambda y: int(y) / 100, ("leaves for Python by `int(…)`", "no gradient comes back")),
        (lambda y: 1, ("the loss does not use it",)),
    ],
    ids=["branch", "int", "unused"],
)
def test_nothing_false_is_said_of_what_left_for_python(use, said) -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "out": nn.Linear(4, 2)})
    forward = lambda: model["out"](X).sum() * use(model["a"](X).sum())  # noqa: E731
    (one,) = explain_missing(model, forward, missing_names(model, forward))
    assert one.cause == "not-in-loss"
    assert all(words in one.message for words in said)
    assert ("does not use it" in one.message) == (said == ("the loss does not use it",))


def test_another_start_than_the_loss_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    outputs = []

    def forward() -> torch.Tensor:
        outputs.append(model[0](X).sum())
        model[1](X).sum()
        return outputs[-1]

    missing = missing_names(model, forward)
    (one,) = explain_missing(model, forward, missing, start="0")
    assert (one.cause, one.upstream) == ("not-in-loss", ("1.weight", "1.bias"))
    assert "and `0`, where the graph starts, does not use it" in one.message
    assert "downstream of it" in (one.advice or "")


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)  # else what comes after a `Drop` gets zeros
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return None if grad is None else grad * 2


class Drop(Double):
    @staticmethod
    def backward(ctx, grad):
        return None


def test_the_function_that_gave_nothing_on_is_blamed() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "out": nn.Linear(4, 2)})
    forward = lambda: model["out"](Drop.apply(Double.apply(model["a"](X)))).sum()  # noqa: E731
    missing = missing_names(model, forward)
    (one,) = explain_missing(model, forward, missing, silent={"DropBackward"})
    assert (one.cause, one.upstream) == ("non-differentiable", ("a.weight", "a.bias"))
    assert "`Drop`" in one.message
    assert explain_missing(model, forward, missing, silent=set()) == ()


def test_numbers_keep_their_trace() -> None:
    one, two = Number(2.0, frozenset({1})), Number(3.0, frozenset({2}))
    assert (one * two + 1).sources == {1, 2}
    assert sum([one, two]).sources == {1, 2}
    assert (2 / one, -two, one < two) == (1.0, -3.0, True)
    assert torch.tensor([one, two]).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("way", ["load", "copy"])
def test_a_state_is_a_copy_without_a_graph(way: str) -> None:
    """No `detach` stands in the user's code: `state_dict()` does it."""
    model = nn.ModuleDict({"slow": nn.Linear(4, 2), "fast": nn.Linear(4, 2)})

    def forward() -> torch.Tensor:
        if way == "load":
            model["fast"].load_state_dict(model["slow"].state_dict())
            return model["fast"](X).sum()
        state = model["slow"].state_dict()
        return F.linear(X, state["weight"], state["bias"]).sum() + model["fast"](X).sum()

    (one,) = explain_missing(model, forward, ["slow.weight", "slow.bias"])
    assert one.cause == "detached"
    assert one.message.startswith("`state_dict()` at ")
    assert "functional_call" in (one.advice or "") and "detach" not in (one.advice or "")


def test_a_check_of_torchs_own_is_no_branch():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.policy, self.value = nn.Linear(4, 2), nn.Linear(4, 1)

        def forward(self, x):
            return torch.distributions.Categorical(logits=self.policy(x)), self.value(x)

    (answer,) = gradscope.why(Net(), torch.ones(3, 4), loss=lambda output: output[1].sum()).answers
    assert answer.cause == "not-in-loss"
    assert "decides the branch" not in answer.message
