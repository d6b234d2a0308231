"""The graph of runs that are out of the ordinary: other roots, checkpoints, failures, depth."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradscope
from gradscope.records.graph import AutogradGraph, GraphNode

pytestmark = pytest.mark.slow


def ops(graph: AutogradGraph) -> list[str]:
    return [node.op for node in graph.nodes if node.kind == "function"]


def named(graph: AutogradGraph, name: str) -> GraphNode:
    return next(node for node in graph.nodes if node.name == name)


class Net(nn.Module):
    """Linear, tanh, and a cell that runs three times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.cell = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.stem(x)
        for _ in range(3):
            x = torch.tanh(self.cell(x))
        return {"hidden": x, "logits": self.head(x)}


@pytest.mark.parametrize(
    ("root", "leaves", "first"),
    [
        ("stem", {"stem.weight", "stem.bias"}, "stem"),
        ("cell", {"stem.weight", "stem.bias", "cell.weight", "cell.bias"}, "cell"),
        ("cell#0", {"stem.weight", "stem.bias", "cell.weight", "cell.bias"}, "cell"),
        ("output:logits", {n for n, _ in Net().named_parameters()}, "head"),
        ("output", {n for n, _ in Net().named_parameters() if "head" not in n}, ""),
    ],
)
def test_the_graph_can_start_at_any_output(root: str, leaves: set[str], first: str) -> None:
    graph = gradscope.graph(Net(), torch.randn(2, 3), root=root)
    assert graph.start == root
    assert {node.name for node in graph.nodes if node.kind == "parameter"} == leaves
    assert graph.nodes[0].module == first
    assert graph.loss is None


def test_the_gradient_from_an_output_is_that_of_its_sum() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3)
    graph = gradscope.graph(model, x, root="cell#1")
    h = torch.tanh(model.cell(model.stem(x)))
    model.cell(h).sum().backward()
    for name in ("stem.weight", "cell.weight"):
        grad = model.get_parameter(name).grad
        assert grad is not None
        assert named(graph, name).grad_norm == pytest.approx(grad.norm().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("root", "said", "help"),
    [
        ("stom", "there is no layer `stom`", "did you mean `stem`?"),
        ("cell#7", "ran 3 times: it has no call #7", ""),
        ("output:logit", "nothing with a graph at `logit`", "did you mean `logits`?"),
        ("stem:0", "nothing with a graph at `0`", "it returned one tensor"),
        ("stem#1", "`stem` ran once: it has no call #1", ""),
    ],
)
def test_a_root_that_is_not_there_is_refused(root: str, said: str, help: str) -> None:
    with pytest.raises(gradscope.GradscopeError) as caught:
        gradscope.graph(Net(), torch.randn(2, 3), root=root)
    assert caught.value.exit_code == 2
    assert said in caught.value.render()
    assert help in caught.value.render()


@pytest.mark.parametrize("root", ["stem#-1", "stem#x", "stem#", "stem#0#1", "stem#²", 3])
def test_a_malformed_root_is_refused_with_the_form(root: str) -> None:
    with pytest.raises(gradscope.GradscopeError) as caught:
        gradscope.graph(Net(), torch.randn(2, 3), loss="sum", root=root)
    assert caught.value.exit_code == 2
    assert f"`{root}` is not an output that a graph can start from" in caught.value.render()
    assert "`cell#2`" in caught.value.render()


def test_what_is_cut_off_from_another_root_is_explained() -> None:
    class Cut(Net):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            x = self.stem(x).detach()
            for _ in range(2):
                x = self.cell(x)
            return {"hidden": x, "logits": self.head(x)}

    for root in ("cell", "cell#0", "output:hidden"):
        graph = gradscope.graph(Cut(), torch.randn(2, 3), root=root)
        answers = {a.upstream: a for a in graph.answers}
        assert answers["stem.weight", "stem.bias"].cause == "detached"
        later = answers["head.weight", "head.bias"]
        assert later.cause == "not-in-loss"
        assert f"and `{root}`, where the graph starts, does not use it" in later.message
        assert len(answers) == 2


def test_an_output_that_is_written_to_later_is_the_root_as_it_was() -> None:
    class Overwritten(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            return x.mul_(self.cell(torch.ones(4)).detach()).add_(self.head(x.detach()).sum())

    graph = gradscope.graph(Overwritten(), torch.randn(2, 3), root="stem")
    # Both went into what the output became, not into what it was.
    assert {a.cause for a in graph.answers} == {"not-in-loss"}
    behind = {name for answer in graph.answers for name in answer.upstream}
    assert behind == {"cell.weight", "cell.bias", "head.weight", "head.bias"}


def test_an_output_without_a_graph_is_no_root() -> None:
    class Quiet(Net):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            with torch.no_grad():
                return super().forward(x)

    with pytest.raises(gradscope.GradscopeError, match="has no graph"):
        gradscope.graph(Quiet(), torch.randn(2, 3), root="stem")


class Nested(nn.Module):
    """A reentrant checkpoint within another, and one layer inside and outside of both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.b(x))

    def outer(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=True) * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.outer, self.a(x), use_reentrant=True)
        return self.c(self.b(x))


def reached(graph: AutogradGraph) -> set[int]:
    """Return the nodes upstream of the root; within a checkpoint, by the graph inside it alone."""
    nodes = {node.id: node for node in graph.nodes}
    seen: set[int] = set()
    stack = [0]
    while stack:
        node = nodes[stack.pop()]
        if node.id not in seen:
            seen.add(node.id)
            stack += [edge[0] for edge in node.inner or node.to if edge]
    return seen


def test_the_graphs_inside_reentrant_checkpoints_are_joined_in() -> None:
    torch.manual_seed(0)
    model, x = Nested(), torch.randn(2, 3)
    graph = gradscope.graph(model, x, loss="sum")
    assert reached(graph) == set(range(len(graph.nodes)))
    assert ops(graph).count("CheckpointFunctionBackward") == 2
    assert {"TanhBackward0", "MulBackward0"} <= set(ops(graph))
    assert all(e[0] > node.id for node in graph.nodes for e in (*node.to, *node.inner) if e)
    model(x).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        truth = parameter.grad.norm().item()
        assert named(graph, name).grad_norm == pytest.approx(truth, rel=1e-5)
    inside = next(node for node in graph.nodes if node.op == "TanhBackward0")
    assert (inside.module, inside.call) == ("", 0)
    b = [(node.module, node.call) for node in graph.nodes if node.module == "b"]
    assert set(b) == {("b", 0), ("b", 1)}


def test_a_checkpoint_that_is_not_reentrant_has_its_graph_at_once() -> None:
    class Light(Nested):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.b(checkpoint(self.inner, self.a(x), use_reentrant=False)))

    graph = gradscope.graph(Light(), torch.randn(2, 3), loss="sum")
    assert ops(graph).count("AddmmBackward0") == 4
    assert all(node.grad_norm is not None for node in graph.nodes)
    # What lies behind the checkpoint's hooks is not looked at: that would run it again.
    assert any(node.saved_bytes is None for node in graph.nodes)
    assert graph.saved_bytes is not None


def test_operations_that_a_reentrant_checkpoint_runs_again_have_their_line() -> None:
    graph = gradscope.graph(Nested(), torch.randn(2, 3), loss="sum", lines=True)
    inside = [node for node in graph.nodes if node.op in ("TanhBackward0", "MulBackward0")]
    assert len(inside) == 2
    assert all((node.location or "").split(":")[0].endswith(Path(__file__).name) for node in inside)
    assert not torch.is_anomaly_enabled()
    plain = gradscope.graph(Nested(), torch.randn(2, 3), loss="sum")
    assert all(node.location is None for node in plain.nodes)


def test_zero_missing_and_broken_gradients_are_told_apart() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.zero, self.nan = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
            self.none = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            class Drop(torch.autograd.Function):
                @staticmethod
                def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
                    return x.clone()

                @staticmethod
                def backward(ctx: object, *grad: torch.Tensor) -> None:
                    return None

            dropped: torch.Tensor = Drop.apply(self.none * 1)
            return self.zero * 0 * x + (self.nan * x).sqrt() * 0 + dropped

    graph = gradscope.graph(Odd(), torch.ones(2), loss="sum")
    assert named(graph, "zero").grad_norm == 0.0
    assert named(graph, "nan").grad_nonfinite == 2
    assert named(graph, "none").grad_norm is None
    # What is all NaN did get a gradient.
    assert [(a.cause, a.upstream) for a in graph.answers] == [("non-differentiable", ("none",))]
    assert "`Drop`" in graph.answers[0].message


def test_an_empty_gradient_is_a_gradient() -> None:
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.empty, self.unused = (nn.Parameter(torch.zeros(0, 6)) for _ in range(2))
            self.fc = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x).sum() + self.empty.sum()

    graph = gradscope.graph(Empty(), torch.randn(2, 6), loss="sum")
    assert named(graph, "empty").grad_norm == 0.0
    assert [a.upstream for a in graph.answers] == [("unused",)]


def test_lines_are_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n"
        "        x = self.fc(x)\n"
        "        return torch.tanh(\n"
        "            x * 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    config = "./net.py:Net"
    options = {"overrides": ["input.shape=[1, 2]"], "loss": "sum"}
    graph = gradscope.graph(config, lines=True, **options)
    lines = {node.op: node.location for node in graph.nodes if node.module is not None}
    assert lines["AddmmBackward0"] == "net.py:8"
    assert lines["MulBackward0"] == "net.py:10"
    assert lines["TanhBackward0"] in ("net.py:9", "net.py:10")
    plain = gradscope.graph(config, **options)
    assert all(node.location is None for node in plain.nodes)
    assert not torch.is_anomaly_enabled()


def test_repeats_show_the_last_backward() -> None:
    config = ["model=demo", "backward.repeats=2", "backward.retain_graph=true"]
    once = gradscope.graph("demo")
    twice = gradscope.graph("demo", overrides=config[1:])
    inner = [n.grad_norm for n in once.nodes if n.kind == "function"]
    assert [n.grad_norm for n in twice.nodes if n.kind == "function"] == inner


def test_frozen_parameters_are_told_from_missing_ones() -> None:
    model = Net()
    model.stem.requires_grad_(False)
    graph = gradscope.graph(model, torch.randn(2, 3), loss=lambda output: output["hidden"].sum())
    assert graph.frozen == ("stem.weight", "stem.bias")
    assert {a.cause for a in graph.answers} == {"not-in-loss"}
    assert {n for a in graph.answers for n in a.upstream} == {"head.weight", "head.bias"}


def test_a_loss_without_a_graph_says_why() -> None:
    def detached(output: dict[str, torch.Tensor]) -> torch.Tensor:
        return output["logits"].detach().sum()

    with pytest.raises(gradscope.GradscopeError) as caught:
        gradscope.graph(Net(), torch.randn(2, 3), loss=detached)
    record = caught.value.report  # type: ignore[attr-defined]
    assert caught.value.exit_code == 3
    assert record.error.kind == "no-grad-root"
    assert record.root is None and record.nodes == ()
    assert [a.cause for a in record.answers] == ["detached"]
    assert len(record.answers[0].upstream) == 6


def failing(phase: str) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    class Bang(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grad: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt if phase == "ctrl-c" else ValueError("bang")

    def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
        if phase == "loss":
            raise ValueError("bang")
        bang: torch.Tensor = Bang.apply(output["logits"])
        return bang.sum()

    return loss


@pytest.mark.parametrize("phase", ["loss", "backward", "ctrl-c"])
def test_a_run_that_stops_leaves_the_model_and_what_it_knew(phase: str) -> None:
    model, x = Net(), torch.randn(2, 3)
    before = copy.deepcopy(model.state_dict())
    model.stem.weight.grad = torch.ones(4, 3)
    with pytest.raises(gradscope.GradscopeError) as caught:
        gradscope.graph(model, x, loss=failing(phase))
    record = caught.value.report  # type: ignore[attr-defined]
    assert record.status == "failed"
    assert bool(record.nodes) is (phase != "loss")
    if record.nodes:
        assert record.nodes[0].grad_norm == 1.0
        assert named(record, "stem.weight").grad_norm is None
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(model.stem.weight.grad, torch.ones(4, 3))


def test_a_live_model_comes_back_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    x = torch.randn(5, 3, requires_grad=True)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    gradscope.graph(model, x, lines=True)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    assert x.grad is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_no_activation_outlives_the_run() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    class Watched(Net):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            output = super().forward(x)
            alive.extend(weakref.ref(t) for t in output.values())
            return output

    gc.disable()
    try:
        gradscope.graph(Watched(), torch.randn(2, 3), root="output:logits")
        assert [ref() for ref in alive] == [None, None]
    finally:
        gc.enable()


class Chain(nn.Module):
    """As many additions as it is reported."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.weight, self.length = nn.Parameter(torch.ones(())), length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.weight * 1
        for _ in range(self.length):
            y = y + x
        return y


@pytest.mark.slow
@pytest.mark.parametrize("look", [gradscope.graph, gradscope.inspect])
def test_a_very_deep_graph_is_no_danger(look: Callable[..., object]) -> None:
    """Neither Python's stack nor, when it is freed, C's."""
    look(Chain(50_000), torch.ones(()), loss="sum")


def test_nothing_is_known_on_meta_but_the_graph() -> None:
    graph = gradscope.graph("demo", device="meta")
    assert ops(graph) == ops(gradscope.graph("demo"))
    assert all(node.grad_norm is None for node in graph.nodes)
    assert graph.saved_bytes
