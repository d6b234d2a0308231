"""Each program with zero gradients gets its cause, module and line; its mended twin has none."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from explain.zero import activations, masks
from explain.zero.cases import ZEROS, X, Y, Zero, zero_names
from gradscope.explain.zero.explain_zero import explain_zeros
from gradscope.explain.zero.traces import any_nonzero
from gradscope.records.answers import Answer

PROGRAMS = (activations, masks)
CAUSES = ("dead-activation", "saturated", "zero-weight", "masked", "underflow")


def explained(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    zero: list[str],
    later: Callable[[], list[str]] | None = None,
) -> tuple[Answer, ...]:
    def backward(loss: torch.Tensor) -> None:
        loss.backward(retain_graph=True)

    for parameter in model.parameters():
        parameter.grad = None
    return explain_zeros(model, forward, backward, zero, later=later)


def after_a_step(model: nn.Module, forward: Callable[[], torch.Tensor]) -> list[str]:
    """Return the parameters with zero gradients after one step of plain PyTorch."""
    before = copy.deepcopy(model.state_dict())
    forward().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    zero = zero_names(model, forward)
    model.load_state_dict(before)
    return zero


def test_the_table_is_whole() -> None:
    files = {case.build.__module__ for case in ZEROS.values()}
    assert files == {module.__name__ for module in PROGRAMS}
    causes = [one.cause for case in ZEROS.values() for one in case.expected]
    assert len(ZEROS) >= 40
    assert all(causes.count(cause) >= 5 for cause in CAUSES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZEROS)
def test_broken_program(name: str) -> None:
    case = ZEROS[name]
    torch.manual_seed(0)
    model, forward = case.build(False)
    zero = zero_names(model, forward)
    assert zero
    answers = explained(model, forward, zero, lambda: after_a_step(model, forward))
    for one in case.expected:
        assert isinstance(one, Zero)
        (found,) = [a for a in answers if a.name == one.name]
        assert found.cause == one.cause
        assert one.module is ... or found.module == one.module
        assert found.location == (case.line(one.mark) if one.mark else None)
        assert one.recovers is None or found.recovers is one.recovers
    assert len(answers) == len(case.expected)
    assert {name for a in answers for name in a.upstream} == set(zero)
    for one in answers:
        assert (one.state, one.name) == ("zero", one.upstream[0])
        assert one.message.endswith(".") and one.advice
        assert (one.recovers is None) == (one.cause not in ("zero-weight", "masked"))


@pytest.mark.parametrize("name", ZEROS)
def test_mended_twin(name: str) -> None:
    torch.manual_seed(0)
    model, forward = ZEROS[name].build(True)
    assert zero_names(model, forward) == []


# ---------------------------------------------------------------- what it does at the edges


def one_answer(model: nn.Module, forward: Callable[[], torch.Tensor]) -> Answer:
    (answer,) = explained(model, forward, zero_names(model, forward))
    return answer


def test_nothing_asked_and_nothing_zero() -> None:
    model = nn.Linear(4, 2)
    assert explained(model, lambda: model(X).sum(), []) == ()
    # Its gradient is not zero in this run, whatever the caller found before.
    assert explained(model, lambda: model(X).square().sum(), ["weight"]) == ()


def test_a_relu_is_counted_by_places_and_units() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.constant_(model[0].bias, -10.0)
    answer = one_answer(model, lambda: F.cross_entropy(model(X), Y))
    assert "at all its 24 elements (8 of 8 units, 3 values each)" in answer.message
    assert "its inputs are between -1" in answer.message


def test_what_a_relu_in_place_was_given_is_not_what_it_left() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    nn.init.constant_(model[0].bias, -10.0)
    answer = one_answer(model, lambda: F.cross_entropy(model(X), Y))
    assert (answer.cause, answer.module) == ("dead-activation", "1")
    assert "its inputs are between -1" in answer.message


def test_units_that_no_gradient_reaches_do_not_count() -> None:
    """The mask leaves one unit, and just that one is dead."""
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([9.0, -9.0]))
    keep = torch.tensor([0.0, 1.0])
    answer = one_answer(model, lambda: (F.relu(model(X)) * keep).sum())
    assert answer.cause == "dead-activation"
    assert "3 of its 6 elements" in answer.message


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_a_checkpoint(reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    nn.init.constant_(block[0].bias, -20.0)
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": block, "c": nn.Linear(4, 2)})

    def forward() -> torch.Tensor:
        h = checkpoint(model["b"], model["a"](X), use_reentrant=reentrant)
        return F.cross_entropy(model["c"](h), Y)

    answer = one_answer(model, forward)
    assert (answer.cause, answer.module) == ("dead-activation", "b.1")
    assert answer.upstream == ("a.weight", "a.bias", "b.0.weight", "b.0.bias", "b.2.weight")
    line = forward.__code__.co_firstlineno + 1
    assert (answer.location or "").endswith(f"test_zero.py:{line}")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_sequence_of_one_step(kind: type[nn.Module]) -> None:
    model = nn.ModuleDict({"rnn": kind(4, 5), "out": nn.Linear(5, 2)})
    answer = one_answer(
        model, lambda: F.cross_entropy(model["out"](model["rnn"](X[None])[0][0]), Y)
    )
    assert (answer.cause, answer.module, answer.name) == ("masked", "rnn", "rnn.weight_hh_l0")


def test_the_first_of_several_states_is_used() -> None:
    model = nn.ModuleDict({"rnn": nn.LSTM(4, 5, batch_first=True), "out": nn.Linear(5, 2)})
    given = torch.randn(len(X), 3, 4)
    answer = one_answer(
        model, lambda: F.cross_entropy(model["out"](model["rnn"](given)[0][:, 0]), Y)
    )
    assert (answer.cause, answer.name) == ("masked", "rnn.weight_hh_l0")
    assert "only the first step" in answer.message and "single step" not in answer.message


def test_a_norm_over_a_single_value_is_called_constant() -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.LayerNorm(1), nn.Linear(1, 2))
    answer = one_answer(model, lambda: F.cross_entropy(model(X), Y))
    assert (answer.cause, answer.module) == (None, "1")
    assert "constant" in answer.message
    assert answer.upstream == ("0.weight", "0.bias", "2.weight") or "1.weight" in answer.upstream


def test_a_weight_norm_of_zero() -> None:
    model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    with torch.no_grad():
        model.parametrizations.weight.original0.zero_()
    answer = one_answer(model, lambda: F.cross_entropy(model(X), Y))
    assert answer.cause == "zero-weight"
    assert "`parametrizations.weight.original0`, which is all zeros" in answer.message


def test_an_input_of_zeros() -> None:
    model = nn.Linear(4, 2)
    answer = one_answer(model, lambda: F.cross_entropy(model(torch.zeros(3, 4)), Y))
    assert (answer.cause, answer.upstream) == ("masked", ("weight",))


def test_a_function_of_the_users_own() -> None:
    class Quiet(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return torch.zeros_like(grad)

    model = nn.Linear(4, 2)
    answer = one_answer(model, lambda: Quiet.apply(model(X)).sum())
    assert answer.cause == "non-differentiable"
    assert "the backward of `Quiet`" in answer.message


def test_zeros_that_backward_starts_from() -> None:
    model = nn.Linear(4, 2)

    def backward(loss: torch.Tensor) -> None:
        loss.backward(torch.zeros_like(loss), retain_graph=True)

    (answer,) = explain_zeros(model, lambda: model(X), backward, ["weight", "bias"])
    assert (answer.cause, answer.upstream) == ("masked", ("weight", "bias"))
    assert "passed to `backward`" in answer.message


def test_two_ends_of_the_same_parameters_are_one_answer() -> None:
    model = nn.ModuleDict({"stem": nn.Linear(4, 4), "out": nn.Linear(4, 2)})

    def forward() -> torch.Tensor:
        h = model["stem"](X)
        masked = h * torch.zeros(4)
        dead = F.relu(h - 50)
        return F.cross_entropy(model["out"](X) + model["out"](masked + dead), Y)

    answer = one_answer(model, forward)
    assert (answer.cause, answer.upstream) == ("masked", ("stem.weight", "stem.bias"))
    assert "Another path is blocked too: `relu`" in answer.message


def test_parts_that_cancel_inside_one_operation() -> None:
    """The sum over a softmax's row is 1 whatever the logits are."""
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    answer = one_answer(model, lambda: model(X).softmax(-1).sum())
    assert answer.cause is None
    assert "add up to 1" in answer.message


def test_a_run_that_raises_answers_nothing_and_leaves_nothing() -> None:
    model = nn.Linear(4, 2)

    def forward() -> torch.Tensor:
        model(X)
        raise RuntimeError("planted")

    assert explained(model, forward, ["weight"]) == ()
    assert not model._forward_hooks


def test_the_graph_and_its_activations_are_freed() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.constant_(model[0].bias, -10.0)
    seen: list[weakref.ref[torch.Tensor]] = []

    def forward() -> torch.Tensor:
        h = model[1](model[0](X))
        seen.append(weakref.ref(h))
        return model[2](h).square().sum()

    gc.collect()
    gc.disable()
    try:
        explained(model, forward, ["0.weight", "0.bias"])
        assert [ref() for ref in seen] == [None]
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_chain_of_many_thousand_operations() -> None:
    """Five times as many as Python calls may be nested."""
    model = nn.Linear(4, 4)

    def forward() -> torch.Tensor:
        h = F.relu(model(X) - 50)
        for _ in range(5_000):
            h = h + 1
        return h.sum()

    assert one_answer(model, forward).cause == "dead-activation"


def test_attention_of_which_only_the_first_token_counts() -> None:
    """Under a causal mask it sees itself alone, so no score matters.

    With one number a head: of sums of several, what backward subtracts from each other would be
    rounded differently.
    """
    model = nn.ModuleDict({"qkv": nn.Linear(4, 12, bias=False), "out": nn.Linear(4, 2)})
    with torch.no_grad():
        model["qkv"].weight[:8] = torch.eye(4).repeat(2, 1)
    q = nn.Linear(4, 4, bias=False)
    model["q"] = q

    def heads(h: torch.Tensor) -> torch.Tensor:
        return h.unflatten(-1, (4, 1)).transpose(1, 2)

    def forward() -> torch.Tensor:
        _, k, v = map(heads, model["qkv"](X[None]).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(heads(q(X[None])), k, v, is_causal=True)
        return F.cross_entropy(model["out"](mixed[:, :, 0, 0]), Y[:1])

    answer = one_answer(model, forward)
    assert (answer.cause, answer.upstream) == ("saturated", ("q.weight",))
    # Older releases of PyTorch compute it step by step, with their own softmax.
    alone, certain = "each query has a single key", "each probability is 0 or 1"
    assert alone in answer.message or (
        "safe_softmax" in answer.message and certain in answer.message
    )


def test_a_part_of_what_was_joined_that_nobody_reads() -> None:
    """A class token alone is read, and nothing mixes the tokens."""
    model = nn.ModuleDict({"patch": nn.Linear(4, 4), "out": nn.Linear(4, 2)})
    token = torch.ones(1, 4)

    def forward() -> torch.Tensor:
        tokens = torch.cat([token, model["patch"](X)])
        return F.cross_entropy(model["out"](tokens * 2)[:1], Y[:1])

    answer = one_answer(model, forward)
    assert (answer.cause, answer.upstream) == ("masked", ("patch.weight", "patch.bias"))
    assert "is in its other inputs only" in answer.message


def test_sparse_gradients() -> None:
    table = nn.Embedding(4, 3, padding_idx=0, sparse=True)
    model = nn.ModuleDict({"table": table, "out": nn.Linear(3, 2)})

    def forward() -> torch.Tensor:
        return F.cross_entropy(model["out"](table(torch.zeros(3, dtype=torch.long))), Y)

    answer = one_answer(model, forward)
    assert (answer.cause, answer.upstream) == ("masked", ("table.weight", "out.weight"))
    assert "padding" in answer.message


# ---------------------------------------------------------------- what is left out, and what not


class _Strict(torch.autograd.Function):
    """A function that cannot do without a gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.clone() * 2


class _Penalty(torch.autograd.Function):
    """A function that adds its own gradient, as the balance loss of mixtures of experts."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 + 1


def behind_zeros(middle: Callable[[torch.Tensor], torch.Tensor]):
    """A head of zeros, before it a layer, and something between the two."""
    x = X.clone().requires_grad_()
    model = nn.ModuleDict({"stem": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    nn.init.zeros_(model["head"].weight)
    return model, lambda: F.cross_entropy(model["head"](middle(model["stem"](x))), Y)


def hooked(tensor: torch.Tensor) -> torch.Tensor:
    tensor.register_hook(lambda gradient: gradient * 3)
    return tensor


@pytest.mark.parametrize("middle", [F.gelu, _Strict.apply, hooked, nn.Identity()])
def test_behind_a_head_of_zeros(middle: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model, forward = behind_zeros(middle)
    answer = one_answer(model, forward)
    assert (answer.cause, answer.module) == ("zero-weight", "head")
    assert answer.upstream == ("stem.weight", "stem.bias")


def test_behind_zeros_nothing_is_computed() -> None:
    """Plain PyTorch would fill ``.grad`` with zeros there."""
    model, forward = behind_zeros(F.gelu)
    explained(model, forward, ["stem.weight", "stem.bias"])
    filled = {name for name, p in model.named_parameters() if p.grad is not None}
    assert filled == {"head.weight", "head.bias"}


@pytest.mark.parametrize("where", ["module", "parameter"])
def test_hooks_in_backward_are_run_with_gradients(where: str) -> None:
    model, forward = behind_zeros(F.gelu)
    got: list[torch.Tensor | None] = []
    if where == "module":
        model["stem"].register_full_backward_hook(lambda *a: got.append(a[2][0]))
    else:
        model["stem"].weight.register_hook(got.append)
    zero = ["stem.weight", "stem.bias"]
    (answer,) = explained(model, forward, zero)
    assert answer.upstream == tuple(zero)
    assert [one is not None and not one.any() for one in got] == [True]


def test_a_gradient_that_begins_behind_zeros_arrives() -> None:
    model, forward = behind_zeros(_Penalty.apply)
    assert zero_names(model, forward) == []
    explained(model, forward, ["head.bias"])
    gradient = model["stem"].weight.grad
    assert gradient is not None and gradient.any()


def test_zeros_at_the_beginning_are_not_all() -> None:
    tensor = torch.zeros(100, 100)
    assert not any_nonzero(tensor)
    tensor[-1, -1] = 1e-40
    assert any_nonzero(tensor) and any_nonzero(tensor.T) and any_nonzero(tensor[50:, 7:])


def test_a_margin_outside_the_model_has_its_own_advice() -> None:
    model = nn.Linear(4, 1)
    answer = one_answer(model, lambda: F.relu(model(X) - 9).mean())
    assert "margin" in (answer.advice or "")
