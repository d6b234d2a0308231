"""GS508: what `--gradcheck` calls wrong is a finding, and nothing else of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import gradscope
from gradscope.records.full_samples import GradientCheck
from gradscope.records.report import Report
from gradscope.records.run import RunInfo
from gradscope.rules import diagnose

RUN = RunInfo("net", "cpu", "float32", "train", 0, 1, "sum")
CHECK = GradientCheck("act", "Act", 0, "input 0", "right", 1.0, 1.0)
WRONG = replace(CHECK, verdict="wrong", backward=1.5)


@pytest.mark.parametrize("verdict", ["right", "kink", "unchecked"])
def test_what_is_left_alone(verdict):
    report = Report("ok", RUN, gradient_checks=(replace(CHECK, verdict=verdict),))
    assert diagnose(report) == ()


@pytest.mark.parametrize(
    ("verdict", "severity"), [("wrong", "error"), ("non-deterministic", "warning")]
)
def test_what_is_found(verdict, severity):
    checks = (CHECK, replace(WRONG, verdict=verdict, call=1))
    (found,) = diagnose(Report("ok", RUN, gradient_checks=checks))
    assert (found.code, found.name, found.call, found.severity) == ("GS508", "act", 1, severity)


def test_a_layer_is_told_once_and_by_what_is_wrong():
    noisy = replace(CHECK, verdict="non-deterministic")
    checks = (noisy, WRONG, replace(WRONG, input="weight"), replace(WRONG, name="other"))
    found = diagnose(Report("ok", RUN, gradient_checks=checks))
    assert [(one.name, one.value, one.threshold) for one in found] == [
        ("act", 1.5, 1.0),
        ("other", 1.5, 1.0),
    ]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Act(nn.Module):
    def forward(self, x):
        return Doubled.apply(x)


class Honest(nn.Module):
    def forward(self, x):
        return x.tanh()


@pytest.mark.parametrize(("kind", "codes"), [(Act, ["GS508"]), (Honest, [])])
def test_in_a_model(kind, codes):
    model = nn.Sequential(nn.Linear(3, 3), kind())
    report = gradscope.inspect(model, torch.ones(2, 3), loss="sum", gradcheck=["1"])
    assert [one.code for one in report.findings] == codes
