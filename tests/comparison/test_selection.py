"""Rows of some layers; and the documentation of what a comparison finds."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gradscope
from gradscope.comparison.reports import of_layers
from gradscope.errors import LayerError, OptionError
from gradscope.records.diff import DiffReport
from gradscope.rules import COMPARISONS, explained, lookup


@pytest.fixture(scope="module")
def report() -> DiffReport:
    a = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    b = copy.deepcopy(a)
    b[1] = nn.Hardtanh()
    return gradscope.diff(a, b, torch.ones(3, 4), loss="sum")


CHOSEN = {
    "one": (["2"], [], ["2"]),
    "a class": (["type:Linear"], [], ["0", "2"]),
    "all but one": ([], ["0"], ["", "1", "2"]),
    "some but one": (["**"], ["type:Linear"], ["", "1"]),
}


@pytest.mark.parametrize(("layers", "exclude", "names"), CHOSEN.values(), ids=CHOSEN)
def test_rows_are_chosen(report, layers, exclude, names):
    found = of_layers(report, layers, exclude)
    assert sorted(row.name for row in found.calls) == names
    owners = {row.name.rpartition(".")[0] for row in found.parameters}
    assert owners == {*names} & {"0", "2"}
    assert found.findings == report.findings  # where the two part does not depend on the rows


def test_a_layer_that_was_not_compared(report):
    with pytest.raises(LayerError, match="`3` matches no layer"):
        of_layers(report, ["3"], [])


def test_findings_are_documented_as_they_are(report):
    rules = {rule.code: rule for rule in COMPARISONS}
    assert [one.code for one in report.findings] == ["GD101", "GD102"]
    for one in report.findings:
        assert (one.rule, one.severity) == (rules[one.code].name, rules[one.code].severity)


@pytest.mark.parametrize("rule", COMPARISONS, ids=lambda rule: rule.code)
def test_each_is_explained_and_no_rule_of_a_report(rule):
    assert explained(rule.code) is explained(rule.name) is explained(rule.code.lower()) is rule
    with pytest.raises(OptionError):
        lookup(rule.code)
    assert all(text.endswith(".") for text in (rule.what, rule.why, rule.fix))


def test_a_code_that_there_is_not():
    with pytest.raises(OptionError) as caught:
        explained("GD109")
    assert "`GD106`" in (caught.value.problems[0].help or "")
    assert explained("GS101").code == "GS101"
