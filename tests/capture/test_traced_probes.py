"""Probes inside compiled modules: the same numbers as by hand, and the same graphs as without."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental import proxy_tensor
from training.corpus import cxx

from gradscope.capture.names import named_modules
from gradscope.capture.stats import measure
from gradscope.capture.traced_probes import (
    COMPILED,
    GRADIENT,
    Event,
    Probe,
    add_probe,
    calls_of,
    finished,
    listen,
)
from gradscope.records.modules import ModuleCall

Pair = namedtuple("Pair", "first second")


class Residual(nn.Module):
    """In-place operations on what a probe returned, and one module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.inner(x))
        y += x
        return self.act(self.norm(self.act(y)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Residual(), Residual())
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> Pair:
        x = self.blocks(x)
        return Pair(self.head(x), x.detach())


made: list[Observed] = []


class Observed:
    """The probes of a model, and what they saw."""

    def __init__(self, model: nn.Module) -> None:
        self.names = named_modules(model)
        self.events: list[Event] = []
        self.probes = [add_probe(module, self.see) for module in self.names]
        made.append(self)

    def see(self, probe: Probe, x: torch.Tensor, path: str, kind: int) -> None:
        found = measure(x)
        self.events.append(Event(probe, path, kind % COMPILED, kind >= COMPILED, found))

    def calls(self) -> tuple[ModuleCall, ...]:
        return finished(calls_of(self.events, self.names), self.names)


def model() -> Net:
    torch.manual_seed(0)
    return Net().double()


X = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def step(run: Any, net: nn.Module) -> list[torch.Tensor]:
    for parameter in net.parameters():
        parameter.grad = None
    run(X.requires_grad_())[0].square().sum().backward()
    return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


def by_hand(net: Net) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Each output and its gradient, of the same step written with functions."""
    seen: list[tuple[str, torch.Tensor]] = []

    def keep(name: str, tensor: torch.Tensor) -> torch.Tensor:
        seen.append((name, tensor))
        return tensor

    x = X.detach()
    for number, block in enumerate(net.blocks):
        at = f"blocks.{number}"
        y = keep(f"{at}.inner", block.inner(x))
        y = keep(f"{at}.norm", block.norm(y)) + x
        y = keep(f"{at}.norm", block.norm(keep(f"{at}.act", y.relu())))
        x = keep(f"{at}.act", y.relu())
    logits = keep("head", net.head(x))
    tensors = [tensor for _, tensor in seen]
    gradients = torch.autograd.grad(logits.square().sum(), tensors)
    return [(name, t, g) for (name, t), g in zip(seen, gradients, strict=True)]


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    for probe in [probe for one in made for probe in one.probes]:
        probe.remove()
    made.clear()


def graphs() -> tuple[int, int]:
    counters = torch._dynamo.utils.counters
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


@pytest.mark.parametrize("backend", [None, pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_outputs_and_gradients_are_those_by_hand(backend: str | None) -> None:
    net, plain = model(), model()
    observed = Observed(net)
    run = net if backend is None else torch.compile(net, backend=backend, fullgraph=True)
    listen(observed, on=True)
    gradients = step(run, net)
    listen(observed, on=False)
    assert all(map(torch.equal, gradients, step(plain, plain)))
    calls = observed.calls()
    leaves = [call for call in calls if call.name.endswith(("inner", "norm", "act", "head"))]
    expected = by_hand(plain)
    assert [call.name for call in leaves] == [name for name, *_ in expected]
    for call, (_, output, gradient) in zip(leaves, expected, strict=True):
        (found,) = call.outputs
        assert found.gradient is not None and found.requires_grad
        for stats, tensor in ((found.activation, output), (found.gradient, gradient)):
            assert stats.norm == pytest.approx(tensor.norm().item(), rel=1e-12)
            assert stats.mean == pytest.approx(tensor.mean().item(), abs=1e-14, rel=1e-9)
            assert stats.zeros == int((tensor == 0).sum())
    root = calls[0]
    assert (root.name, [one.path for one in root.outputs]) == ("", ["first", "second"])
    assert (root.outputs[1].gradient, root.outputs[1].requires_grad) == (None, False)
    assert [call.call for call in calls if call.name == "blocks.0.norm"] == [0, 1]


def test_a_model_may_get_its_memory_after_its_probes() -> None:
    """As in a script that compiles blocks on the device `meta`."""
    with torch.device("meta"):
        net = Net().double()
    observed = Observed(net)
    net.to_empty(device="cpu").load_state_dict(model().state_dict())
    for probe in observed.probes:
        probe.follow()
    listen(observed, on=True)
    step(net, net)
    listen(observed, on=False)
    assert {call.name for call in observed.calls()} == {one.name for one in observed.names.values()}


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(proxy_tensor, "_get_proxies"), reason="this torch checks all that a graph saves"
)
def test_a_backward_may_go_through_two_calls_of_a_compiled_model() -> None:
    """As in a siamese network: the second backward finds what the first has written."""
    net, plain = model(), model()
    observed = Observed(net)
    run = torch.compile(net, backend="aot_eager")
    listen(observed, on=True)
    x = torch.linspace(-1, 1, 24).double().view(4, 6)
    for each in (run, plain):
        (each(x).first.sum() + each(x.square()).first.square().sum()).backward()
    listen(observed, on=False)
    for one, other in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-12, atol=1e-14)
    assert sum(event.kind == GRADIENT for event in observed.events) >= 2 * 5


@pytest.mark.slow
def test_there_are_as_many_graphs_as_without() -> None:
    plain = model()
    step(torch.compile(plain, backend="eager"), plain)
    before = graphs()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net = model()
    observed = Observed(net)
    run = torch.compile(net, backend="eager")
    step(run, net)
    listen(observed, on=True)
    step(run, net)
    listen(observed, on=False)
    assert graphs() == before == (1, 0)
    count = len(observed.events)
    step(run, net)
    assert len(observed.events) == count > 0


@pytest.mark.slow
@pytest.mark.skipif(
    torch.__version__.startswith("2.8."), reason="torch 2.8 compiles each block by itself"
)
def test_equal_blocks_share_their_code() -> None:
    """Each has its own probe, and none is a reason to compile again."""
    net = model()
    observed = Observed(net)
    for block in net.blocks:
        block.compile(backend="eager")
    listen(observed, on=True)
    step(net, net)
    listen(observed, on=False)
    assert graphs() == (1, 0)
    names = [call.name for call in observed.calls()]
    assert {"blocks.0.inner", "blocks.1.inner", "head"} <= {*names}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_cuda_graphs_call_the_probes_in_each_replay() -> None:
    """Graphs are recorded between the probes, where PyTorch divides them at an operator."""
    net = model().cuda()
    x = X.detach().cuda()
    observed = Observed(net)
    run = torch.compile(net, mode="reduce-overhead")
    listen(observed, on=True)
    for number in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        run(x + number).first.square().sum().backward()
    listen(observed, on=False)
    heads = [call for call in observed.calls() if call.name == "head"]
    assert len(heads) == 5
    if getattr(torch._inductor.config, "graph_partition", False):
        counters = torch._dynamo.utils.counters["inductor"]
        assert (counters["cudagraph_skips"], counters["cudagraph_partitions"] > 1) == (0, True)
    with torch.no_grad():
        for number, call in enumerate(heads):
            expected = net(x + number).first
            assert call.outputs[0].activation.norm == pytest.approx(expected.norm().item())
            gradient = call.outputs[0].gradient
            assert gradient is not None
            assert gradient.norm == pytest.approx(2 * expected.norm().item())


def test_what_is_no_training_has_no_probe() -> None:
    net = model()
    observed = Observed(net)
    listen(observed, on=True)
    with torch.no_grad():
        net(X)
    torch.func.grad(lambda x: net(x).first.sum())(X)
    program = torch.export.export(net, (X,))
    listen(observed, on=False)
    assert observed.events == []
    assert "gradscope" not in str(program.graph)


class Replay:
    """Runs a part of a graph as a CUDA graph does: its results are at the same addresses in each
    call.

    Attributes:
        inside: number of parts that run now.
        parts: number of parts that were made.
    """

    inside = parts = 0

    def __init__(self, part: Any, _: object) -> None:
        self._part, self._results = part, None
        Replay.parts += 1

    def __call__(self, arguments: Any) -> Any:
        Replay.inside += 1
        results = self._part(arguments)
        Replay.inside -= 1
        if self._results is None:
            self._results = tuple(each.clone() for each in results)
        for kept, result in zip(self._results, results, strict=True):
            kept.copy_(result)
        return self._results


@pytest.fixture
def _divided_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from torch._functorch import config as traced
    from torch._inductor import config, scheduler, utils

    if not hasattr(utils, "set_customized_partition_wrappers"):
        pytest.skip("this PyTorch cannot divide CUDA graphs")
    divides = scheduler.Scheduler.should_partition

    def as_on_a_gpu(self: Any, node: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler.BaseSchedulerNode, "is_gpu", lambda _: True)
            return divides(self, node)

    monkeypatch.setattr(scheduler.Scheduler, "should_partition", as_on_a_gpu)
    monkeypatch.setattr(utils._unstable_customized_partition_wrapper, "wrapper", Replay)
    monkeypatch.setattr(Replay, "parts", 0)
    # A cached graph may be undivided. Not by `monkeypatch`, which would remove the settings.
    uncached = config.patch(graph_partition=True, fx_graph_cache=False)
    with uncached, traced.patch(enable_autograd_cache=False):
        yield


@pytest.mark.slow
@pytest.mark.skipif(cxx() is None, reason="no C++ compiler")
@pytest.mark.usefixtures("_divided_as_on_a_gpu")
def test_replayed_parts_of_a_graph_have_no_probe_inside() -> None:
    """On a CPU, the compiler divides the graph as for CUDA graphs: at each probe."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    observed = Observed(net)
    inside = []

    def see(*event: Any) -> None:
        inside.append(Replay.inside)
        observed.see(*event)

    for probe in observed.probes:
        probe.see = see
    run = torch.compile(net)
    listen(observed, on=True)
    for number in range(4):
        run(X.detach() + number).square().sum().backward()
    listen(observed, on=False)
    assert (Replay.parts > 2, {*inside}) == (True, {0})
    calls = observed.calls()
    assert [call.name for call in calls] == ["", "0", "1", "2"] * 4
    for number in range(4):
        results = [net[0](X.detach() + number)]
        results += [(hidden := net[1](results[0])), net[2](hidden)]
        gradients = torch.autograd.grad(results[-1].square().sum(), results)
        each = zip(calls[4 * number + 1 : 4 * number + 4], results, gradients, strict=True)
        for call, result, gradient in each:
            (found,) = call.outputs
            assert found.gradient is not None
            for stats, tensor in ((found.activation, result), (found.gradient, gradient)):
                assert stats.norm == pytest.approx(tensor.norm().item(), rel=1e-12)
