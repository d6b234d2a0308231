"""A run says why a parameter gets no gradient, and where; tracing changes nothing."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules import RuleSettings, folded
from gradscope.training.findings import RunFindings
from gradscope.training.observer import Observer
from gradscope.training.sample_schedule import Schedule
from gradscope.training.traced_steps import CauseTracer
from training.traced_programs import TRACED

CODES = ("GS103", "GS401", "GS402", "GS816")


def raised(error: BaseException) -> None:
    raise error


def observed(
    source: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], tuple[TrainingFinding, ...], LoopRecord]:
    """A program that runs to its end: its variables, the causes that were found, and the loop."""
    file = folder / "train.py"
    file.write_text(source)
    main = ModuleType("__main__")
    main.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(folder)
    found = RunFindings(RuleSettings.of(select=list(CODES)))

    def judge(record: LoopRecord) -> None:
        found.loop(record)

    observer = Observer(lambda *_: None, lambda *_: None, judge, Schedule(), failed=raised)
    observer.start()
    try:
        exec(compile(source, str(file), "exec"), vars(main))
        loop = observer.loop()
        judge(loop)
    finally:
        observer.stop()
        left = dict(vars(main))
        vars(main).clear()
        gc.collect()
    return left, tuple(cause.finding for cause in folded(found.all())), loop


#: The quick tests take one that is cut off and one that is zero.
_QUICK = ("a head on detached features", "advantages of zero")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in _QUICK else pytest.mark.slow) for n in TRACED]
)
def test_the_cause_and_its_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = TRACED[name]
    _, found, loop = observed(program.source, tmp_path, monkeypatch)
    assert not loop.untraced
    messages = [one.message for one in found]
    assert [one.code for one in found] == [program.code] * program.findings, messages
    one = found[0]
    assert one.cause == program.cause, one.message
    for words in program.words:
        assert words in one.message
    assert one.location == f"train.py:{program.line}", one.message


#: Whatever a trace could disturb: random numbers, buffers, plain numbers, blocks with modes, errors
#: that are caught, accumulation. `side` has no gradient, so that a step is traced.
_DELICATE = """
import torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU())
        self.head, self.side = nn.Linear(8, 1), nn.Linear(8, 1)
        nn.init.constant_(self.side.bias, -1e3)
    def forward(self, x):
        h = self.body(x)
        return self.head(h), SIDE

net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
logged, kinds, drawn, depths = [], set(), [], set()
for step in range(12):
    for part in range(2):
        x = torch.randn(8, 4)
        with torch.device("cpu"):
            noise = torch.randn(8, 1)
            out, side = net(x + 0.1 * noise.mean())
            try:
                out.view(3, 5)
            except RuntimeError as error:
                logged.append(str(error))
            loss = (out + side - x.sum(1, keepdim=True)).square().mean() / 2
            loss.backward()
        value = loss.item()
        kinds |= {type(value), type(loss.tolist()), type(float(loss.detach())), type(out.shape[0])}
        logged.append(value)
    optimizer.step()
    optimizer.zero_grad()
    drawn.append(torch.rand(1).item())
    depths.add(torch._C._len_torch_function_stack() if step in (0, 11) else 0)
    logged.append(torch.is_anomaly_enabled())
weights = [p.detach().clone() for p in net.state_dict().values()]
"""
_SIDES = {"missing": "self.side(h).detach()", "zero": "self.side(h).relu()"}


@pytest.mark.parametrize("state", _SIDES)
def test_a_trace_changes_nothing(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _DELICATE.replace("SIDE", _SIDES[state])
    seen, found, loop = observed(source, tmp_path, monkeypatch)
    assert len(loop.causes) == 1, loop.untraced  # a step was traced
    assert len(found) == 1
    plain: dict[str, Any] = {"__name__": "plain"}
    exec(compile(source, "plain.py", "exec"), plain)
    for name in ("logged", "kinds", "drawn"):
        assert seen[name] == plain[name]
    assert seen["depths"] == {0}
    for one, other in zip(seen["weights"], plain["weights"], strict=True):
        assert torch.equal(one, other)
    assert torch._C._len_torch_function_stack() == 0


_SHORT = """
import torch
from torch import nn
net = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
BEFORE
for step in range(12):
    x = torch.randn(8, 4)
    loss = net[0](x).square().mean() + net[1](x).detach().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_UNTRACED = {
    "a mode of the script's": (
        "from torch.overrides import TorchFunctionMode\n"
        "class Mode(TorchFunctionMode):\n"
        "    def __torch_function__(self, f, types, args=(), kwargs=None):\n"
        "        return f(*args, **(kwargs or {}))\n"
        "mode = Mode(); mode.__enter__()",
        "`TorchFunctionMode`",
    ),
    "a function that is compiled": (
        "torch.compile(lambda x: x)",
        "`torch.compile`",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _UNTRACED)
def test_what_cannot_be_traced_is_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, words = _UNTRACED[name]
    try:
        _, found, loop = observed(_SHORT.replace("BEFORE", before), tmp_path, monkeypatch)
    finally:
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()
    assert words in loop.untraced
    (one,) = found
    assert one.cause is None
    assert f"No step was traced: {loop.untraced}." in one.advice


def test_a_default_device_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = 'torch.set_default_device("cpu")'
    try:
        _, (one,), _ = observed(_SHORT.replace("BEFORE", before), tmp_path, monkeypatch)
    finally:
        torch.set_default_device(None)
    assert one.cause == "detached"


def test_an_error_of_the_tracer_is_not_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("gradscope.explain.missing.dataflow_tracer.Tracer.run", fails)
    left, found, loop = observed(_SHORT.replace("BEFORE", ""), tmp_path, monkeypatch)
    assert left["step"] == 11
    assert "internal error in gradscope's tracer: ZeroDivisionError: a defect" in loop.untraced
    assert [one.cause for one in found] == [None]


def test_a_tracer_that_cannot_begin_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: CauseTracer, *arguments: Any) -> None:
        missing(self, *arguments)
        raise ZeroDivisionError("a defect")

    missing = CauseTracer._trace_missing
    monkeypatch.setattr(CauseTracer, "_trace_missing", fails)
    source = _SHORT.replace("BEFORE", "") + "\ndepth = torch._C._len_torch_function_stack()\n"
    left, (one,), loop = observed(source, tmp_path, monkeypatch)
    assert left["depth"] == 0
    assert one.cause is None and "ZeroDivisionError: a defect" in loop.untraced


def test_what_backward_leaves_out_is_not_said_to_be_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _SHORT.replace("BEFORE", "").replace(".detach()", "")
    source = source.replace("loss.backward()", "loss.backward(inputs=list(net[0].parameters()))")
    _, (one,), _ = observed(source, tmp_path, monkeypatch)
    assert (one.code, one.cause) == ("GS401", None)


def test_at_most_three_steps_are_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    begin = CauseTracer.begin

    def counted(self: CauseTracer, models: Any) -> None:
        begun.append(self)
        begin(self, models)

    monkeypatch.setattr(CauseTracer, "begin", counted)
    source = (
        "import torch\n"
        "from torch import nn\n"
        "nets = []\n"
        "for turn in range(5):\n"  # each has an optimizer and a part without a gradient
        "    net = nn.ModuleDict({'a': nn.Linear(4, 1), f'b{turn}': nn.Linear(4, 1)})\n"
        "    nets.append(net)\n"
        "    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "    for step in range(12):\n"
        "        optimizer.zero_grad()\n"
        "        x = torch.ones(1, 4)\n"
        "        loss = net['a'](x) + net[f'b{turn}'](x).detach()\n"
        "        loss.sum().backward()\n"
        "        optimizer.step()\n"
    )
    observed(source, tmp_path, monkeypatch)
    assert len(begun) == 3
