"""A step that is located goes on as if nobody had looked."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradscope.running.state import same_bits
from training.nan_detector.loop import CASES, Loop, Program
from training.nan_detector.programs import data


class Busy(nn.Module):
    """Draws of all generators, keeps statistics, counts, writes to its input, and prints."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("average", torch.zeros(4))
        self.calls, self.last, self.factor = 0, None, 1.0
        self.register_forward_hook(self._counted)

    def _counted(self, *_: Any) -> None:
        self.calls += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(1.0 + 0.01 * random.random() + 0.01 * float(np.random.rand()))
        print("forward")
        h = F.dropout(self.norm(self.fc(x)), 0.2) * self.factor
        with torch.no_grad():
            self.average.lerp_(h.mean(0), 0.1)
        self.last = h.detach()
        return self.head(h * self.average.sum().cos())


def busy(where: str) -> Program:
    net = Busy()

    def step(loop: Loop, number: int) -> None:
        x, y = data(number)
        net.factor = float("inf") if where == "forward" and number == 6 else 1.0
        out = loop.call("net", x)
        gap = out - out.detach()
        extra = gap.square().sum().sqrt() if where == "gradients" and number == 6 else 0.0
        loop.backward(F.cross_entropy(out, y) + extra + (1 - number // 6) * 0.0)

    return Program({"net": net}, step)


def state(models: dict[str, nn.Module]) -> dict[str, Any]:
    """All that a script could see of its models and of the generators."""
    seen: dict[str, Any] = {
        "torch": torch.get_rng_state().clone(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].copy(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "grad": torch.is_grad_enabled(),
    }
    for key, model in models.items():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            seen[f"{key}.{name}"] = tensor.detach().clone(), tensor._version, id(tensor)
            seen[f"{key}.{name}.grad"] = None if tensor.grad is None else tensor.grad.clone()
            seen[f"{key}.{name}.grad is"] = id(tensor.grad)
        for name, module in model.named_modules():
            held = [(k, id(v)) for k, v in module.__dict__.items()]
            hooks = len(module._forward_hooks), len(module._forward_pre_hooks)
            seen[f"{key}.{name} module"] = held, hooks, module.training
    return seen


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return same_bits(one, other)
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    keys = {**before, **after}
    return [k for k in keys if not same(before.get(k), after.get(k))]


def put_back(run: Loop) -> Callable[[Callable[[], Any]], Any]:
    """Runs ``locate`` and asserts that it leaves everything as it was."""

    def around(locate: Callable[[], Any]) -> Any:
        before = state(run.program.models)
        found = locate()
        assert differences(before, state(run.program.models)) == []
        return found

    return around


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0:UserWarning")
def test_a_located_step(name: str) -> None:
    torch.manual_seed(0)
    run = Loop(CASES[name].build(False))
    assert run.run(put_back(run)) is not None


@pytest.mark.parametrize("where", ["forward", "gradients"])
def test_a_model_that_does_much_beside(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    run = Loop(busy(where))
    assert run.run(put_back(run)) == 6
    (origin,) = run.non_finite
    expected = ("forward", "mul", "") if where == "forward" else ("backward", "SqrtBackward0", None)
    assert (origin.phase, origin.op, origin.name) == expected
    assert capsys.readouterr().out == "forward\n" * 6  # what it printed again is not seen


class Unwatched:
    """In place of a NaN detector."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: None


@pytest.mark.parametrize("where", ["", "forward", "gradients"])
def test_numbers_are_those_of_an_unwatched_run(where: str) -> None:
    """Also those of the steps that come after one that was located."""
    ends = []
    for watched in (False, True):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        run = Loop(busy(where))
        if not watched:
            run.detector = Unwatched()  # type: ignore[assignment]
        net = run.program.models["net"]
        optimizer = torch.optim.Adam(net.parameters())
        for number in range(1, 9):
            run.number = number
            optimizer.zero_grad()
            run.program.step(run, number)
            for place in ("loss", "gradients") if number == 6 else ():
                run.detector.locate(where=place)
            for parameter in net.parameters():
                parameter.grad = parameter.grad.nan_to_num(0.0, 1.0, -1.0)
            optimizer.step()
            run.detector.step_ended()
        run.detector.close()
        end = state(run.program.models)
        ends.append({k: v[:2] if isinstance(v, tuple) else v for k, v in end.items()
                     if not k.endswith((" is", " module"))})  # fmt: skip
    assert differences(*ends) == []
