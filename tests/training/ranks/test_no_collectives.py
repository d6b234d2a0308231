"""One process of two, the other of which is not there: whatever waited for it would hang a script.

PyTorch's "fake" backend answers every collective at once, and here each is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import gradscope
from gradscope.capture.parameters import parameter_stats
from gradscope.capture.reductions import gradient_norms
from gradscope.capture.stats import measure, resolve
from gradscope.explain.non_finite.reasons import level
from gradscope.runfile.reader import RunFile
from gradscope.training import memory
from gradscope.training.current_step import loss_of
from gradscope.training.extra_passes import NeedsOtherRanks, no_collectives
from gradscope.training.gradients import are_finite


class Collectives(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented
        if "c10d" in func.namespace:
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def spread(kind: object) -> DTensor:
    mesh = init_device_mesh("cpu", (2,))
    return DTensor.from_local(torch.tensor([3.0, 4.0]), mesh, [kind], run_check=False)


@pytest.mark.parametrize("kind", [Shard(0), Replicate(), Partial()], ids=str)
def test_no_reading_of_a_tensor_waits(kind):
    tensor = spread(kind)
    net = nn.Module()
    net.weight = nn.Parameter(tensor)
    net.weight.grad = tensor.detach()
    with Collectives() as seen:
        assert gradient_norms([tensor]) == [5.0]
        (stats,) = resolve([measure(tensor)]).values()
        assert (stats.norm, stats.numel) == (5.0, 2)
        assert parameter_stats(net)[0].gradient.norm == 5.0
        assert level(tensor) == 0
        assert are_finite([net.weight])
    assert seen.names == []


def test_a_sum_that_is_still_to_be_taken_is_no_loss():
    assert loss_of([spread(Replicate())[0]]) == 3.0
    partial = DTensor.from_local(
        torch.tensor(3.0), init_device_mesh("cpu", (2,)), [Partial()], run_check=False
    )
    with Collectives() as seen:
        assert loss_of([partial]) is None
    assert seen.names == []


def test_what_would_wait_is_refused():
    with no_collectives() as mode:
        assert torch.ones(2).sum().item() == 2.0
        with pytest.raises(NeedsOtherRanks, match="allreduce"):
            dist.all_reduce(torch.ones(2))
        with pytest.raises(NeedsOtherRanks):
            spread(Shard(0)).full_tensor()
    assert mode is not None and mode.refused


def test_the_check_sees_a_collective():
    with Collectives() as seen:
        spread(Partial()).full_tensor()
    assert seen.names


def copied(rank: int, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The parameters that a rank copies in each turn, with room for few of them."""
    monkeypatch.setattr(memory, "_LEAST_ROOM", 200)
    monkeypatch.setattr(memory, "_resident", lambda: rank * 1_000_000)
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    net = nn.Sequential(*(nn.Linear(7, rows) for rows in (1, 7, 7, 7)))
    net = fully_shard(nn.Sequential(*net), mesh=init_device_mesh("cpu", (2,)))
    names = {p: name for name, p in net.named_parameters()}
    return [{names[p] for p in memory.weight_copies([*names], turn)} for turn in range(8)]


def test_all_ranks_copy_the_same_weights_in_a_turn_and_all_of_them_in_several(monkeypatch):
    """The last rank's shards are smaller, and its process may be larger."""
    first, last = copied(0, monkeypatch), copied(1, monkeypatch)
    assert first == last
    assert set().union(*first) == {f"{i}.{kind}" for i in range(4) for kind in ("weight", "bias")}
    assert max(map(len, first)) < 8


class Talking(nn.Module):
    """Its forward communicates, and makes a NaN of negative numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.detach().abs().sum()
        dist.all_reduce(total)
        return self.fc(x.sqrt() / total)


def trained(net: nn.Module, out: Path | None) -> list[str]:
    """The collectives of two steps, the second of which has a NaN."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    with Collectives() as seen:
        if out is None:
            step(torch.ones(2, 4))
            step(-torch.ones(2, 4))
        else:
            with gradscope.watch(net, optimizer, every=1, out=out):
                step(torch.ones(2, 4))
                step(-torch.ones(2, 4))
    return seen.names


@pytest.mark.parametrize("sharded", [False, True], ids=["communicates", "sharded"])
def test_a_nan_is_looked_for_without_the_others(sharded, tmp_path):
    def made() -> nn.Module:
        torch.manual_seed(0)
        net = Talking()
        return fully_shard(net) if sharded else net

    plain = trained(made(), None)
    assert trained(made(), tmp_path / "run") == plain != []
    with RunFile.open(tmp_path / "run" / "rank-0.db") as run:
        assert [step.nonfinite for step in run.steps()] == [None, "nan"]
        (origin,) = [one.origin for one in run.findings if one.origin is not None]
        assert (origin.phase, origin.name, origin.count) == ("forward", None, 8)
        assert "the model (Talking) returned NaN in rank 0's forward" in origin.message
        assert not [event for event in run.events if event.kind == "failed"]


class Steep(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sqrt()


class Deep(nn.Module):
    """Adds to what `down` returns, so that the script does not hold that."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.body = nn.Linear(4, 6), nn.Sequential(nn.Identity(), Steep())
        self.down = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.body(self.up(x))) + 0.0


def sharded(net: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(net.up, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def split(net: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    return parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


#: What the layer before the square root gives: its bias, as its weight is zero.
BIASES = {"healthy": 1.0, "forward": -1.0, "backward": 0.0, "loss": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("fault", BIASES)
@pytest.mark.parametrize("spread_by", [sharded, split])
@pytest.mark.parametrize("every", [1, 1000], ids=["sampled", "not sampled"])
def test_the_first_module_that_is_not_finite(every, spread_by, fault, tmp_path):
    torch.manual_seed(0)
    net = Deep()
    with torch.no_grad():
        net.up.weight.zero_()
        net.up.bias.fill_(BIASES[fault])
    net = spread_by(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    first = 3 if every == 1 else 0
    with gradscope.watch(net, optimizer, every=every, first=first, out=tmp_path / "run"):
        out = (net(torch.ones(2, 4)) - 1.0).square().mean()
        (out - 2 * out.detach()).sqrt().backward() if fault == "loss" else out.backward()
        del out
        optimizer.step()
    with RunFile.open(tmp_path / "run" / "rank-0.db") as run:
        found = [one for one in run.findings if one.finding.code == "GS301"]
        assert not [event for event in run.events if event.kind == "failed"]
    if fault == "healthy":
        assert found == []
        return
    (one,) = found
    assert one.origin is not None
    if every == 1 and fault == "loss":
        assert (one.origin.op, one.origin.phase, one.origin.reason) == (
            *("sqrt", "loss"),
            "sqrt of a negative number",
        )
    elif every == 1:
        assert (one.finding.name, one.origin.phase) == ("body.1", fault)
        assert one.origin.count == (12 if spread_by is sharded else 6)
    else:
        assert one.finding.name == ""
        assert "so one rank cannot replay it" in one.origin.message
        assert "--every 1" in (one.finding.advice or "")
