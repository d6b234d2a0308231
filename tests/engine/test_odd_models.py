"""Odd models that are read right and given back whole, against plain PyTorch by hand."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

import gradscope
from gradscope.errors import Interrupted, ModelError
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report


class Net(nn.Module):
    """Runs a function of itself and its inputs; keyword arguments become its modules."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def call(report: Report, name: str, number: int = 0) -> ModuleCall:
    return next(c for c in report.calls if (c.name, c.call) == (name, number))


def near(found: Any, expected: Tensor) -> bool:
    values = torch.tensor(found.values, dtype=torch.float64)
    return torch.allclose(values, expected.detach().double().reshape(-1), rtol=1e-5, atol=1e-7)


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(144, 3))
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    model[0].eval()
    model[1].weight.requires_grad_(False)
    return model


def state(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {"rng": torch.get_rng_state().tolist(), "python": random.getstate()}
    for name, module in model.named_modules():
        hooks = [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks]
        found[name, "module"] = (module.training, [list(h) for h in hooks])
    for name, p in model.named_parameters():
        found[name] = (id(p), p.requires_grad, id(p.grad), p._backward_hooks, p.tolist())
        found[name, "grad"] = None if p.grad is None else p.grad.tolist()
    found |= {name: (id(b), b.tolist()) for name, b in model.named_buffers()}
    return found


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise error

    return function


def with_raising_backward(error: BaseException) -> Callable[[Tensor], Tensor]:
    class Raise(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise error

    return Raise.apply


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 3, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)},
        {"steps": 2, "optimizer": torch.optim.Adam, "mode": "eval", "verify": True},
        {"steps": 2, "optimizer": lambda p: torch.optim.LBFGS(p, max_iter=3)},
        {"repeats": 2, "retain_graph": True},
    ],
    ids=["momentum", "adam-eval-verify", "lbfgs", "repeats"],
)
def test_a_live_model_comes_back_whole(options: dict[str, Any]) -> None:
    model = conv_net()
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    x.grad = kept = torch.ones_like(x)
    before = state(model)
    gradscope.inspect(model, x, loss="sum", **options)
    assert state(model) == before
    assert x.grad is kept
    assert bool((kept == 1).all())


@pytest.mark.parametrize("where", ["forward", "loss", "backward"])
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (ValueError("x"), ModelError),
        (KeyboardInterrupt(), Interrupted),
        (SystemExit(3), ModelError),
    ],
    ids=["error", "ctrl-c", "exit"],
)
def test_a_model_comes_back_whole_when_the_run_raises(
    where: str, error: BaseException, seen: type[BaseException]
) -> None:
    model, x = conv_net(), torch.randn(2, 3, 8, 8)
    loss: Any = {"loss": raising(error), "backward": with_raising_backward(error)}.get(where, "sum")
    if where == "forward":
        model.append(Net(raising(error)))
    before = state(model)
    with pytest.raises(seen):
        gradscope.inspect(model, x, loss=loss)
    assert state(model) == before


def test_the_users_own_hooks_stay_and_count() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[0].register_forward_hook(lambda module, args, output: output * 10)
    model[1].register_full_backward_hook(lambda module, grads, _: (grads[0] * 2,))
    model[0].weight.register_hook(lambda gradient: gradient * 7)
    x = torch.randn(1, 2, dtype=torch.float64)
    report = gradscope.inspect(model, x, loss="sum", verify=True)
    model(x).sum().backward()
    assert report.run.verified is not None
    assert report.run.verified.identical
    rows = {row.name: row.gradient for row in report.parameters}
    assert all(near(rows[name], p.grad) for name, p in model.named_parameters())
    assert near(call(report, "0").inputs[0].activation, x + 1)


def test_a_custom_function_that_runs_modules_in_its_backward() -> None:
    class Rerun(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
            ctx.module = module
            ctx.save_for_backward(x)
            with torch.no_grad():
                return module(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                ctx.module(x).backward(gradient)
            return x.grad, None

    torch.manual_seed(0)
    parts = {"stem": nn.Linear(2, 2), "mid": nn.Linear(2, 2), "head": nn.Linear(2, 2)}
    model = Net(lambda net, x: net.head(Rerun.apply(net.stem(x), net.mid).tanh()), **parts).double()
    x = torch.randn(1, 2, dtype=torch.float64)
    report = gradscope.inspect(model, x, loss="sum")
    inner = model.stem(x)
    middle = model.mid(inner)
    loss = model.head(middle.tanh()).sum()
    expected = torch.autograd.grad(loss, [inner, middle])
    assert [c.name for c in report.calls] == ["", "stem", "mid", "head"]
    assert near(call(report, "mid").inputs[0].gradient, expected[0])
    assert near(call(report, "mid").outputs[0].gradient, expected[1])


@pytest.mark.parametrize("reentrant", [False, True])
def test_segments_that_share_a_module_inside_and_outside(reentrant: bool) -> None:
    def forward(net: Any, x: Tensor, checkpointed: bool = True) -> Tensor:
        def segment(h: Tensor) -> Tensor:
            if not checkpointed:
                return net.block(h)
            return checkpoint.checkpoint(net.block, h, use_reentrant=reentrant)

        h = segment(net.stem(x))
        with torch.no_grad():
            frozen = net.block(h)
        return net.block(segment(h) + frozen)

    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Dropout())
    model = Net(forward, stem=nn.Linear(2, 2), block=block).double()
    x = torch.randn(3, 2, dtype=torch.float64)
    found = gradscope.inspect(model, x, loss="sum", seed=3)
    model.function = lambda net, x: forward(net, x, checkpointed=False)
    expected = gradscope.inspect(model, x, loss="sum", seed=3)
    for one, other in zip(found.calls, expected.calls, strict=True):
        assert (one.name, one.call) == (other.name, other.call)
        for left, right in zip(
            (*one.inputs, *one.outputs), (*other.inputs, *other.outputs), strict=True
        ):
            assert left.activation == right.activation
            assert left.gradient == right.gradient


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_no_activation_outlives_the_run(reentrant: bool | None) -> None:
    seen: list[weakref.ref[Tensor]] = []

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        if reentrant is None:
            y = net.second(h)
        else:
            y = checkpoint.checkpoint(net.second, h, use_reentrant=reentrant)
        seen.extend((weakref.ref(h), weakref.ref(y)))
        return y

    model = Net(forward, first=nn.Linear(4, 4), second=nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    gc.collect()
    gc.disable()
    try:
        gradscope.inspect(model, torch.randn(3, 4), loss="sum")
        assert seen
        assert all(reference() is None for reference in seen)
    finally:
        gc.enable()


def test_odd_results_of_modules_are_left_alone() -> None:
    results = {"nothing": None, "text": "x", "number": 3, "many": iter(())}
    parts = {name: Net(lambda net, x, r=result: r) for name, result in results.items()}

    def forward(net: Any, x: Tensor) -> Tensor:
        for name, result in results.items():
            assert net.get_submodule(name)(x) is result
        return net.fc(x)

    report = gradscope.inspect(Net(forward, fc=nn.Linear(4, 2), **parts), torch.randn(3, 4))
    assert all(call(report, name).outputs == () for name in results)


class SparseWeight(nn.Module):
    """A parameter that is stored as a sparse tensor, as graph networks' adjacency may be."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.mix = nn.Parameter(torch.eye(3).to_sparse())

    def forward(self, x):
        return torch.sparse.mm(self.mix, self.fc(x).t()).t()


def test_a_sparse_parameter():
    torch.manual_seed(0)
    model, x = SparseWeight(), torch.randn(2, 4)
    model(x).sum().backward()
    norms = {n: p.grad.to_dense().norm().item() for n, p in model.named_parameters()}
    report = gradscope.inspect(model, x, loss="sum", verify=True)
    assert report.run.verified.identical
    assert {p.name: p.gradient.norm for p in report.parameters} == pytest.approx(norms)
    drawn = gradscope.graph(model, x, loss="sum")
    assert {node.name for node in drawn.nodes} >= {"mix", "fc.weight", "fc.bias"}
