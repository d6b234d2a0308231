"""Views and transposes are passed over on demand; every leaf stays reachable."""

from __future__ import annotations

from dataclasses import replace

import torch

import gradscope
from gradscope.diagrams.graph import without_views
from gradscope.records.graph import AutogradGraph


def leaves(graph: AutogradGraph) -> set[int]:
    """Return the leaves that can be reached from the root."""
    nodes = {node.id: node for node in graph.nodes}
    seen: set[int] = set()
    stack = [graph.root]
    while stack:
        one = stack.pop()
        if one is None or one in seen:
            continue
        seen.add(one)
        stack += [edge[0] for edge in nodes[one].to if edge is not None]
    return {one for one in seen if nodes[one].kind != "function"}


def graph_of(model: torch.nn.Module, *shape: int) -> AutogradGraph:
    return gradscope.graph(model, torch.randn(*shape), loss="sum")


def test_views_go_and_what_they_lead_to_stays() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3), torch.nn.ReLU())
    graph = graph_of(model, 2, 3, 4)
    reduced, hidden = without_views(graph)
    gone = {node.op for node in graph.nodes} - {node.op for node in reduced.nodes}
    assert "TBackward0" in gone
    assert hidden == len(graph.nodes) - len(reduced.nodes) > 0
    assert leaves(reduced) == leaves(graph)
    assert "ReluBackward0" in {node.op for node in reduced.nodes}


def test_several_views_in_a_row_and_an_expanded_parameter() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.w.view(1, 3).t().unsqueeze(0).expand(2, 3, 1).squeeze(2)

    reduced, hidden = without_views(graph_of(Net(), 2, 3))
    assert hidden == 5
    (product,) = (node for node in reduced.nodes if node.op == "MulBackward0")
    (weight,) = (node for node in reduced.nodes if node.kind == "parameter")
    assert (weight.id, 0) in product.to


def test_a_view_that_is_the_root_stays() -> None:
    model = torch.nn.Linear(2, 1)
    graph = graph_of(model, 2, 2)
    view = next(node for node in graph.nodes if node.op == "TBackward0")
    turned = replace(graph, root=view.id)
    reduced, _ = without_views(turned)
    assert view.id in {node.id for node in reduced.nodes}


def test_what_picks_a_part_is_no_view() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)[:, :2]

    reduced, _ = without_views(graph_of(Net(), 2, 4))
    assert "SliceBackward0" in {node.op for node in reduced.nodes}
