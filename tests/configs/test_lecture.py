"""Results of the lecture's cases beyond single numbers."""

from __future__ import annotations

import json
from collections import Counter

import processes
import pytest
import torch
from expected import CONFIGS, beside

import gradscope


@pytest.mark.slow
def test_the_chain_of_w_reaches_x_twice():
    words = ["inspect", "grad-fn.yaml", "--chain", "added", "-f", "json"]
    done = processes.gradscope(words, cwd=CONFIGS)
    assert done.returncode == 0, done.stderr
    (chain,) = json.loads(done.stdout)["chains"]
    nodes = {node["id"]: node for node in chain["nodes"]}
    ends = Counter(to[0] for node in nodes.values() for to in node["to"] if to is not None)
    leaves = [node for node in nodes.values() if node["kind"] == "input"]
    assert chain["nodes"][0]["op"] == "AddBackward0"
    assert {node["op"] for node in nodes.values()} >= {"AddBackward0", "MulBackward0"}
    assert len(leaves) == 1
    assert ends[leaves[0]["id"]] == 2


def test_nothing_is_recorded_once_the_hooks_are_gone(handles, unchanged):
    model = beside("lecture").MyNet()
    image = torch.randn(1, 3, 8, 8)
    with unchanged(model):
        report = gradscope.inspect(model, image)
    assert handles, "nothing was observed"
    seen = [call.name for call in report.calls]
    assert sorted(seen) == ["", "conv", "fc1", "relu"]
    before = len(handles)
    model(image).sum().backward()
    assert len(handles) == before
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())


@pytest.mark.slow
def test_every_parameter_of_resnet18_has_a_gradient_and_moves():
    report = gradscope.inspect(str(CONFIGS / "resnet18-step.yaml"))
    assert len(report.parameters) == 62
    for parameter in report.parameters:
        assert parameter.gradient is not None
        # What starts at zero has no ratio: its optimizer step is not relative to anything.
        assert parameter.update_ratio != 0
        assert (parameter.update_ratio is None) is (parameter.value.norm == 0)


@pytest.mark.slow
def test_only_the_new_head_learns_in_fine_tuning():
    report = gradscope.inspect(str(CONFIGS / "fine-tuning.yaml"))
    learnt = [p.name for p in report.parameters if p.gradient is not None]
    assert learnt == ["fc.weight", "fc.bias"]
    assert [p.name for p in report.parameters if p.requires_grad] == learnt
    assert report.totals.trainable == 512 * 10 + 10
