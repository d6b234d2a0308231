"""Origins without a place are reported as such, and compiled modules run eagerly."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradscope.records.answers import NonFiniteOrigin
from training.nan_detector.loop import BAD, Loop, Program
from training.nan_detector.programs import data, scored


def origins(program: Program) -> tuple[NonFiniteOrigin, ...]:
    torch.manual_seed(0)
    run = Loop(program)
    assert run.run() == BAD
    return run.non_finite


def test_inputs_that_were_overwritten() -> None:
    class Log(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) + torch.log(x.sum())

    net = Log()

    def step(loop: Loop, number: int) -> None:
        x = data(number)[0] * float(number != BAD)
        loop.backward(loop.call("net", x).mean())
        x.fill_(1.0)

    (origin,) = origins(Program({"net": net}, step))
    assert (origin.kind, origin.phase, origin.op) == ("inf", "loss", None)
    assert origin.message == (
        "the loss is infinite; the models' forward, replayed, made no NaN or Inf from finite"
        " inputs, and the loss graph does not show the operation; the inputs of `net`"
        " were overwritten before its replay."
    )


class Odd(torch.autograd.Function):
    """Right at finite numbers; at the bad step one of its two ways is not."""

    broken = ""

    @staticmethod
    def forward(ctx, x):
        return x / 0 if Odd.broken == "forward" else x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 0 if Odd.broken == "backward" else gradient


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_function_of_ones_own_in_the_loss(way: str) -> None:
    def loss(out: torch.Tensor, y: torch.Tensor, broken: bool) -> torch.Tensor:
        Odd.broken = way if broken else ""
        return Odd.apply(out).abs().sum()

    (origin,) = origins(scored(loss))
    if way == "forward":
        assert (origin.phase, origin.op) == ("loss", "Odd")
        assert "which is not replayed" in (origin.reason or "")
    else:
        assert (origin.phase, origin.op) == ("backward", None)
        assert origin.message == (
            "gradients have NaN or Inf, the loss is finite; the loss's gradients for the models"
            " already had NaN or Inf, and its graph is freed."
        )


@pytest.mark.slow
def test_a_compiled_module() -> None:
    class Log(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(self.fc(x).abs() * x[0, 0])

    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    net = torch.compile(Log(), backend=backend)

    def step(loop: Loop, number: int) -> None:
        x, y = data(number)
        x[0, 0] = 0.0 if number == BAD else 1.0
        loop.backward(F.cross_entropy(loop.call("net", x), y))

    (origin,) = origins(Program({"net": net}, step))
    assert (origin.phase, origin.op, origin.name) == ("forward", "log", "")
    compiled = len(graphs)
    net(data(1)[0])
    assert len(graphs) == compiled  # what was compiled still holds


def test_a_gradient_that_the_script_gave() -> None:
    net = nn.Linear(4, 3)
    run = Loop(Program({"net": net}, lambda loop, number: None))
    out = run.call("net", data(1)[0])
    given = torch.full_like(out, float("inf"))
    assert run.detector.backward_begins([out], [given]) is None
    out.backward(given)
    (origin,) = run.detector.locate(where="gradients")
    assert (origin.kind, origin.phase) == ("inf", "input")
    run.detector.close()


def test_random_numbers_that_were_never_drawn_before() -> None:
    """Their random state was not kept: of other numbers nothing may be told."""

    class Late(nn.Module):
        late = False

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.fc(x)
            return torch.log(F.dropout(h.abs() + 1, 0.5) if self.late else h.abs() + 1)

    net = Late()

    def step(loop: Loop, number: int) -> None:
        net.late = number == BAD
        x, y = data(number)
        loop.backward(F.cross_entropy(loop.call("net", x), y))

    (origin,) = origins(Program({"net": net}, step))
    assert origin.name is None
    assert "`net` draws random numbers, but did not in its first steps" in origin.message


@pytest.mark.parametrize("split", [False, True])
def test_a_gradient_that_a_hook_of_the_script_spoils(split: bool) -> None:
    """The model got what the hook made of it, not what the loss had sent."""

    def step(loop: Loop, number: int) -> None:
        x, y = data(number)
        out = loop.call("net", x)
        (out,) = out if split else (out,)
        if number == BAD:
            out.register_hook(lambda gradient: gradient * math.inf)
        loop.backward(F.cross_entropy(out, y))

    class Split(nn.Linear):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return super().forward(x).split(3, dim=1)

    (origin,) = origins(Program({"net": (Split if split else nn.Linear)(4, 3)}, step))
    assert "the loss's gradients for the models already had NaN or Inf" in origin.message


def test_a_model_whose_weights_are_all_frozen() -> None:
    def step(loop: Loop, number: int) -> None:
        x, y = data(number)
        h = loop.call("frozen", x * (0.0 if number == BAD else 1.0))
        loop.backward(F.cross_entropy(loop.call("net", h.log()), y))

    frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
    nn.init.ones_(frozen.weight)
    models = {"frozen": frozen, "net": nn.Linear(4, 3)}
    (origin, *_) = origins(Program(models, step))
    assert (origin.name, origin.op) == ("net", "linear")


def test_a_step_of_nothing() -> None:
    run = Loop(Program({"net": nn.Linear(4, 3)}, lambda loop, number: None))
    assert run.run() is None
    (origin,) = run.detector.locate(where="gradients")
    assert origin.op is None
