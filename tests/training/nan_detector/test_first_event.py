"""The first module with a NaN or Inf, by the events of its probes."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch import nn

from gradscope.capture.names import module_names
from gradscope.capture.traced_probes import DIFFERENTIABLE, GRADIENT, INPUT, Event, Probe
from gradscope.training.compiled_calls import CompiledCalls
from gradscope.training.nan_detector.first_event import first_non_finite_event

NET = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
NAMES = module_names(NET)
NOTHING = torch.zeros(1)
PROBES = {
    name: Probe(weakref.ref(module), lambda *_: None, NOTHING, NOTHING, NOTHING)
    for module, name in NAMES.items()
}
NAN, INF = math.nan, math.inf


def step(**bad: float) -> list[Event]:
    """The sums that probes see in one step; ``in_0_1=nan``: the input of `0.1` has a NaN."""

    def event(kind: int, name: str) -> Event:
        what = {INPUT: "in", DIFFERENTIABLE: "out", GRADIENT: "grad"}[kind]
        total = bad.get("_".join([what, *filter(None, name.split("."))]), 1.0)
        path = "0" if kind == INPUT else ""
        return Event(PROBES[name], path, kind, True, torch.tensor(total))

    order = [(INPUT, ""), (INPUT, "0"), (INPUT, "0.0"), (DIFFERENTIABLE, "0.0"), (INPUT, "0.1")]
    order += [(DIFFERENTIABLE, "0.1"), (DIFFERENTIABLE, "0"), (INPUT, "1"), (DIFFERENTIABLE, "1")]
    outputs = [name for kind, name in order if kind == DIFFERENTIABLE]
    back = [(GRADIENT, name) for name in reversed([*outputs, ""])]
    return [event(*one) for one in (*order, (DIFFERENTIABLE, ""), *back)]


@pytest.mark.parametrize(
    ("bad", "where", "phase", "name", "kind"),
    [
        ({"out_0_1": NAN, "out_0": NAN, "out": NAN}, "loss", "forward", "0.1", "nan"),
        ({"in_0_1": NAN, "out_0_1": NAN}, "loss", "forward", "0", "nan"),
        ({"in": NAN, "in_0": NAN, "out": NAN}, "loss", "input", None, "nan"),
        ({"out_0_0": INF, "in_0_1": INF, "out_0_1": NAN}, "loss", "forward", "0.0", "inf"),
        ({"out_0_0": -INF, "out_1": NAN}, "loss", "forward", "1", "nan"),
        ({"grad_0": NAN, "grad_0_1": NAN}, "gradients", "backward", "1", "nan"),
        ({"grad_0_0": INF}, "gradients", "backward", "0.1", "inf"),
    ],
)
def test_the_module_that_made_it(
    bad: dict[str, float], where: str, phase: str, name: str | None, kind: str
) -> None:
    found = first_non_finite_event(step(**bad), NAMES, where)
    assert found is not None
    assert (found.phase, found.name, found.kind) == (phase, name, kind)


@pytest.mark.parametrize("bad", [{}, {"grad": NAN, "grad_1": NAN}])
def test_what_the_loss_sent_is_of_no_module(bad: dict[str, float]) -> None:
    assert first_non_finite_event(step(**bad), NAMES, "gradients") is None


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).conj() / x.sum()


class Magnitude(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs()


def test_complex_tensors_are_checked_too() -> None:
    net = nn.Sequential(nn.Linear(4, 4), Spectrum(), Magnitude())
    calls = CompiledCalls(("**",), lambda function: function, checked=True)
    calls.observe([net])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    net(torch.ones(2, 4))
    (origin,) = calls.refined((), [("net", net)], "loss", replayed=False)
    calls.close()
    assert (origin.phase, origin.name, origin.kind) == ("forward", "1", "nan")
