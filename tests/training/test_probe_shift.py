"""By how much probes move the loss of step 1, with a compiler that computes otherwise for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config

from gradscope.records.training import TrainingEvent
from gradscope.training.observer import Observer
from gradscope.training.sample_schedule import Schedule

ERROR = 1e-4
#: Whether the graphs that were compiled have probes.
graphs: list[bool] = []
pytestmark = pytest.mark.slow


def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """Graphs with a probe have outputs that are off by this share, and written as by kernels."""
    probed = "gradscope" in graph.code or "_tap" in graph.code
    graphs.append(probed)

    def call(*args: torch.Tensor) -> Any:
        outputs = graph(*args)
        return [out.clone().mul_(1 + ERROR) if out.is_floating_point() else out for out in outputs]

    return call if probed else graph


def train(*, in_place: bool = False, scale: float = 1.0) -> tuple[list[float], torch.Tensor]:
    """The losses of three steps, and all that is left behind."""
    torch._dynamo.reset()
    graphs.clear()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    net.double()
    if in_place:
        net.compile(backend=backend)
    model = net if in_place else torch.compile(net, backend=backend)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(torch.randn(6, 4, dtype=torch.float64)) - scale).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = [tensor.detach().double().flatten() for tensor in net.state_dict().values()]
    return losses, torch.cat([*state, torch.rand(3).double()])


def raised(error: BaseException) -> None:
    raise error


def probed(**how: Any) -> tuple[list[float], torch.Tensor, str, list[TrainingEvent]]:
    """The same under observation, with the line at its end and the events."""
    events: list[TrainingEvent] = []

    def write(*records: Any) -> None:
        events.extend(one for one in records if isinstance(one, TrainingEvent))

    observer = Observer(
        write, lambda *_: None, lambda *_: None, Schedule(), compiled=True, failed=raised
    )
    observer.start()
    try:
        losses, state = train(**how)
    finally:
        observer.stop()
        torch._dynamo.reset()
    (line,) = observer.compiled_lines()
    return losses, state, line, events


def test_it_is_the_difference_of_two_runs() -> None:
    """To first order: the share 1e-4 leaves one of 1e-4 of it."""
    plain, _ = train()
    losses, _, line, events = probed()
    (event,) = [one for one in events if one.kind == "probes"]
    assert event.step == 1
    assert event.details["loss"] == losses[0]
    assert graphs == [True, False]  # the code with probes stays valid
    moved = losses[0] - plain[0]
    assert moved != 0
    assert event.details["moved"] == pytest.approx(moved, rel=1e-3)
    assert line == event.message
    assert line.startswith("--compiled: the probes moved the loss of step 1 by ")


def test_the_extra_forward_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch statistics, random numbers and weights are those of a run without it."""
    monkeypatch.setattr("gradscope.training.compiled_calls.notices", lambda _: "not today")
    losses, state, line, _ = probed()
    assert line == "--compiled: how far the probes moved the loss is unknown: not today"
    monkeypatch.undo()
    again, left, line, _ = probed()
    assert "moved the loss of step 1 by" in line
    assert (again, left.tolist()) == (losses, state.tolist())


@pytest.mark.parametrize("why", ["in place", "no second compilation"])
def test_where_it_is_unknown_the_line_says_why(why: str) -> None:
    with config.patch(error_on_recompile=why == "no second compilation"):
        losses, _, line, _ = probed(in_place=why == "in place")
    assert len(losses) == 3
    expected = "compiled in place" if why == "in place" else "raised `RecompileError"
    assert line.startswith("--compiled: how far the probes moved the loss is unknown")
    assert expected in line
