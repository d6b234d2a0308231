"""Every config runs and shows what the file beside it says, computed without gradscope."""

from __future__ import annotations

import copy
import json

import pytest
from compare import differences
from expected import CONFIGS, EXPECTED, expected, names, written

import gradscope
from gradscope.records import json as record_json

NAMES = list(names())
#: What is wrong on purpose, or would be in training: everywhere else no rule may call an error.
ERRORS = {
    "detached": {"GS401"},
    "no-grad": {"GS401"},
    "digits": {"GS502"},
    "simplenet": {"GS502"},
    "resnet18-step": {"GS504"},
    "video": {"GS504"},
}


def needs(name: str) -> None:
    for prefix, package in (("timm-", "timm"), ("gpt2", "transformers"), ("bert", "transformers")):
        if name.startswith(prefix):
            pytest.importorskip(package)
    if name == "photograph":
        pytest.importorskip("sklearn")


def stored(name: str) -> dict:
    return json.loads(written(name).read_text(encoding="utf-8"))


def test_every_config_has_expected_values():
    assert sorted(EXPECTED) == NAMES
    assert {path.name for path in CONFIGS.glob("*.expected.json")} == {
        written(name).name for name in NAMES
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_config_shows_what_is_expected(name):
    needs(name)
    report = gradscope.inspect(str(CONFIGS / f"{name}.yaml"))
    assert report.status == ("findings" if report.findings else "ok")
    assert report.error is None
    assert differences(record_json.to_data(report), stored(name)) == []
    errors = {finding.code for finding in report.findings if finding.severity == "error"}
    assert errors == ERRORS.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_the_expected_values_are_those_of_plain_pytorch(name):
    needs(name)
    now, then = expected(name), stored(name)
    bare = {"calls": [], "parameters": [], "history": []}
    assert _shape(now) == _shape(then)
    # Keyed by name already: compare them where compare.py would put a report's own.
    assert differences({**bare, "facts": now}, {**_tolerance(then), "facts": then}) == []


def _tolerance(facts: dict) -> dict:
    return {key: facts[key] for key in ("tolerance",) if key in facts}


def _shape(facts: object) -> object:
    """The facts without their numbers."""
    if isinstance(facts, dict):
        return {key: _shape(value) for key, value in facts.items()}
    if isinstance(facts, list):
        return [_shape(value) for value in facts]
    return None if facts is None else type(facts).__name__


def test_starting_the_comparison_over_finds_nothing():
    report = _report(stored("simplenet"))
    assert differences(report, stored("simplenet")) == []


FAULTS = {
    "a missed call": lambda calls, _: calls.pop("conv2"),
    "a call twice": lambda calls, _: calls["conv2"].append(calls["conv2"][0]),
    "swapped gradients": lambda calls, _: _swap(calls["relu2"][0]),
    "half a gradient": lambda calls, _: _scale(calls["conv1"][0]["outputs"][""]["gradient"], 0.5),
    "a gradient too many": lambda calls, _: calls["conv1"][0]["inputs"]["0"].update(gradient={}),
    "another operation": lambda calls, _: calls["conv1"][0]["outputs"][""].update(grad_fn="Other"),
    "a norm off by a thousandth": lambda calls, _: _scale(
        calls["fc1"][0]["outputs"][""]["activation"], 1.001
    ),
    "another mean": lambda calls, _: calls["fc1"][0]["outputs"][""]["activation"].update(mean=0.5),
    "a wrong count": lambda calls, _: calls["relu1"][0]["outputs"][""]["activation"].update(
        zeros=0
    ),
    "a missing parameter": lambda _, parameters: parameters.pop("fc1.bias"),
    "a parameter without its gradient": lambda _, parameters: parameters["out.weight"].update(
        gradient=None
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_comparison_finds_a_planted_fault(fault):
    facts = stored("simplenet")
    wrong = copy.deepcopy(facts)
    fault(wrong["calls"], wrong["parameters"])
    assert differences(_report(wrong), facts) != []


def _report(facts: dict) -> dict:
    """Expected facts in the form of a report."""
    calls = [
        {**call, "name": name, "inputs": _paths(call["inputs"]), "outputs": _paths(call["outputs"])}
        for name, several in facts["calls"].items()
        for call in several
    ]
    parameters = [{"name": name, **value} for name, value in facts["parameters"].items()]
    return {**facts, "calls": calls, "parameters": parameters, "history": []}


def _paths(tensors: dict) -> list:
    return [{"path": path, **tensor} for path, tensor in tensors.items()]


def _swap(call: dict) -> None:
    side, other = call["inputs"]["0"], call["outputs"][""]
    side["gradient"], other["gradient"] = other["gradient"], side["gradient"]


def _scale(statistics: dict, factor: float) -> None:
    statistics["norm"] *= factor
