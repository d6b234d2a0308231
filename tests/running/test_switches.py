"""PyTorch's switches: the caller's own after a run, and gradients whatever they say."""

from __future__ import annotations

from collections.abc import Callable

import guards
import pytest
import torch
from torch import nn

import gradscope
from gradscope.running.state import switches_restored

FULL_SAMPLES = pytest.mark.parametrize("look", [gradscope.graph, gradscope.inspect])

TURNS: dict[str, Callable[[], object]] = {
    "grad mode": lambda: torch.set_grad_enabled(False),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
}


class Turns(nn.Module):
    """Its forward turns a switch, and leaves one layer out of the graph."""

    def __init__(self, turn: Callable[[], object]) -> None:
        super().__init__()
        self.used, self.cut, self.turn = nn.Linear(3, 3), nn.Linear(3, 3), turn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = (self.used(x) + self.cut(x).detach()).sum()
        self.turn()
        return loss


@pytest.mark.slow
@FULL_SAMPLES
@pytest.mark.parametrize("switch", TURNS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
def test_what_a_forward_turns_is_turned_back(look, switch: str) -> None:
    before = guards.switches()
    look(Turns(TURNS[switch]), torch.randn(2, 3), loss=lambda output: output)
    assert guards.switches() == before


@pytest.mark.parametrize("switch", TURNS)
def test_the_comparison_of_switches_can_fail(switch: str) -> None:
    with switches_restored():
        before = guards.switches()
        TURNS[switch]()
        assert guards.switches() != before


@FULL_SAMPLES
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_who_asks_for_gradients_gets_them(look, mode: Callable[[], object]) -> None:
    model = nn.Linear(3, 3)
    with mode():
        before = guards.switches()
        x, target = torch.randn(2, 3), torch.randn(2, 3)
        one, other = look(model, x, target=target, loss="mse"), look("demo")
        assert guards.switches() == before
    for record in (one, other):
        assert record.status == "ok"
    if isinstance(one, gradscope.AutogradGraph):
        assert {n.name for n in one.nodes if n.kind == "parameter"} == {"weight", "bias"}
    else:
        assert all(p.gradient for p in one.parameters)


@FULL_SAMPLES
def test_a_model_of_inference_tensors_is_refused(look) -> None:
    with torch.inference_mode():
        model = nn.Linear(3, 3)
    with pytest.raises(gradscope.GradscopeError) as caught:
        look(model, torch.randn(2, 3), loss="sum")
    assert caught.value.exit_code == 2
    assert "inference_mode" in caught.value.render()
