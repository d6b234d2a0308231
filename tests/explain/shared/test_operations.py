"""The function, ATen's operator and the node are found to be one and the same operation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradscope.explain.shared import operations
from gradscope.explain.shared.operations import (
    Trait,
    by_function,
    by_node,
    by_operator,
    function_name,
    node_name,
)
from gradscope.explain.shared.tracing_modes import FunctionTracer, OperatorTracer, TracedCall

X = torch.randn(2, 3, 4, 4, requires_grad=True)
FLAT = torch.randn(3, 4, requires_grad=True)
RUNS = {
    "relu": lambda: F.relu(X),
    "mul": lambda: FLAT * FLAT,
    "div": lambda: FLAT / FLAT,
    "mm": lambda: FLAT @ FLAT.T,
    "softmax": lambda: F.softmax(FLAT, -1),
    "log_softmax": lambda: F.log_softmax(FLAT, -1),
    "native_layer_norm": lambda: F.layer_norm(FLAT, [4]),
    "convolution": lambda: F.conv2d(X, torch.randn(5, 3, 3, 3)),
    "max_pool2d_with_indices": lambda: F.max_pool2d(X, 2),
    "nll_loss": lambda: F.nll_loss(FLAT, torch.tensor([0, 1, 2])),
    "log_sigmoid": lambda: F.logsigmoid(FLAT),
    "prelu_kernel": lambda: nn.PReLU()(FLAT),
    "index_put": lambda: FLAT.clone().index_put((torch.tensor([0]),), torch.ones(4)),
    "gelu": lambda: F.gelu(FLAT),
    "linalg_vector_norm": lambda: FLAT.norm(dim=1),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_operator_and_the_node_are_one_operation(name: str) -> None:
    seen = []

    def handle(call: TracedCall) -> object:
        seen.append(by_operator(call.function._schema.name.split("::")[1]).name)  # type: ignore[attr-defined]
        return call.run()

    with OperatorTracer(handle):
        result = RUNS[name]()
    assert name in seen
    assert result.grad_fn is not None
    assert by_node(result.grad_fn).name == name
    assert by_operator(name) is by_node(result.grad_fn)


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (lambda x: x + 1, "add"),
        (lambda x: 1 / x, "div"),
        (lambda x: x @ x, "matmul"),
        (lambda x: x.fill_(1), "fill"),
        (lambda x: torch.detach(x), "detach"),
        (lambda x: x.data, ".data"),
        (lambda x: len(x), "__len__"),
    ],
)
def test_the_function_that_python_calls(run, name) -> None:
    seen = []

    def handle(call: TracedCall) -> object:
        seen.append(by_function(function_name(call.function)).name)
        return call.run()

    x = torch.ones(3, 3)
    with FunctionTracer(handle):
        run(x)
    assert seen[0] == name


def test_what_is_not_in_the_table_has_a_name_and_nothing_else() -> None:
    node = torch.ones(2, requires_grad=True).cosh().grad_fn
    assert node is not None
    assert node_name(node) == "Cosh"
    assert by_node(node) == by_operator("cosh")
    assert not any(by_node(node).has(trait) for trait in Trait)


def test_a_users_function_keeps_its_name() -> None:
    class Square2(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    node = Square2.apply(torch.ones(2, requires_grad=True)).grad_fn
    assert node_name(node) == "Square2"


def test_an_operation_is_entered_once() -> None:
    with pytest.raises(ValueError, match="relu is in the table already"):
        operations._enter("relu", Trait.FLAT)
