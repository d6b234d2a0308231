"""SCOUTER's slot attention: its formula written out again, its positions, its bundled specs."""

from __future__ import annotations

import math

import pytest
import torch

import gradscope
from gradscope import cli
from gradscope.demo.scouter import NegativeScouterNet, ScouterNet, SlotAttention, positions

SPECS = ("demo:scouter", "demo:scouter-negative")


def written_out(head, features):
    """One image, one position at a time."""
    channels, height, width = features.shape
    cells = [(i, j) for i in range(height) for j in range(width)]
    place = positions(features[None])
    slots = list(head.slots)
    for iteration in range(head.iterations):
        attention = torch.zeros(len(slots), height, width)
        attended = []
        for c, slot in enumerate(slots):
            total = torch.zeros(channels)
            for i, j in cells:
                key = head.key(features[:, i, j] + place[:, i, j])
                attention[c, i, j] = torch.sigmoid(head.query(slot) @ key / math.sqrt(channels))
                total = total + attention[c, i, j] * features[:, i, j]
            attended.append(total / channels)
        if iteration < head.iterations - 1:
            slots = [head.gru(u, s) for u, s in zip(attended, slots, strict=True)]
    return head.slot_sign * torch.stack([u.sum() for u in attended]), attention


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("iterations", [1, 3])
def test_the_formula(sign, iterations):
    torch.manual_seed(0)
    head = SlotAttention(3, 8, slot_sign=sign, iterations=iterations)
    features = torch.rand(2, 8, 3, 4)
    with torch.no_grad():
        scores, attention = head(features)
        assert attention.shape == (2, 3, 3, 4)
        assert attention.min() >= 0 and attention.max() <= 1
        for k in range(2):
            expected, seen = written_out(head, features[k])
            torch.testing.assert_close(scores[k], expected)
            torch.testing.assert_close(attention[k], seen)


def test_no_two_positions_are_the_same():
    rows = positions(torch.zeros(1, 32, 14, 14)).flatten(1).T
    assert rows.shape == (196, 32)
    assert torch.cdist(rows, rows).fill_diagonal_(1).min() > 1e-2


@pytest.mark.parametrize("net", [ScouterNet, NegativeScouterNet])
def test_nothing_rests_on_blank_paper(net):
    assert not net()(torch.zeros(1, 1, 28, 28)).any()


@pytest.mark.parametrize(("net", "sign"), [(ScouterNet, 1), (NegativeScouterNet, -1)])
def test_the_sign(net, sign):
    torch.manual_seed(0)
    assert (net()(torch.rand(2, 1, 28, 28)) * sign > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("command", ["inspect", "graph"])
def test_the_commands_take_the_spec(command, spec, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gradscope", command, spec])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert spec in out
    assert "gru" in out


def test_the_recurrent_cell_runs_between_the_iterations():
    report = gradscope.inspect("demo:scouter")
    ran = [call.name for call in report.calls]
    assert ran.count("head.gru") == ScouterNet().head.iterations - 1
    assert {"conv3", "head", "head.query", "head.key"} <= set(ran)
