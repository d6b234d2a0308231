"""Every config runs and shows what the file beside it says, computed without gradscope."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from compare import Deviation, compared, differences, facts_differ
from expected import CONFIGS, EXPECTED, exactly, expected, names, written
from training.ranks.launched import side_by_side

import gradscope
from gradscope.records import json as record_json
from gradscope.records.report import Report

pytestmark = [pytest.mark.numbers, pytest.mark.slow]

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


#: Those of several processes, and how many.
PARALLEL = {"sharded": 2}


def inspected(name: str, folder: Path) -> Report:
    config = CONFIGS / f"{name}.yaml"
    if name not in PARALLEL:
        return gradscope.inspect(str(config))
    words = ["-m", "gradscope", "inspect", config, "-o", "report.json"]
    done = side_by_side(folder, PARALLEL[name], *words)
    assert done.returncode == 0, done.stderr
    return record_json.load(folder / "report.json", Report)


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
def test_a_config_shows_what_is_expected(name, tmp_path):
    needs(name)
    report = inspected(name, tmp_path)
    assert report.status == ("findings" if report.findings else "ok")
    assert report.error is None
    assert differences(record_json.to_data(report), expected(name)) == []
    errors = {finding.code for finding in report.findings if finding.severity == "error"}
    assert errors == ERRORS.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_the_file_beside_a_config_holds_on_this_machine(name):
    """In float64 and in float32, within the bound that the file states."""
    needs(name)
    facts = stored(name)
    assert _shape(expected(name)) == _shape(_facts(facts))
    assert facts_differ(exactly(name), facts) == []
    assert facts_differ(expected(name), facts) == []


#: Networks that magnify a rounding: what their files state as bound, and why.
WIDE = {
    "autocast": 0.005,  # bfloat16 has eight bits
    "micro-batches": 0.0005,  # a batch norm over two samples
    "mask-rcnn": 0.05,  # which boxes are proposed hangs on the last bits of their scores
    "optical-flow": 0.001,  # twelve steps of one recurrent cell
    "resnet18-step": 0.05,  # one picture: batch norms over four values a channel, then ReLUs
    "timm-resnet": 0.05,  # the same with two
    "timm-vit": 0.001,
    "video": 0.005,  # one clip
}


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_is_no_wider_than_the_network_makes_it(name):
    facts = stored(name)
    assert facts["tolerance"] <= WIDE.get(name, 3e-5)
    assert facts["residue"] <= 1e-6


def test_float64_is_told_from_float32():
    """Else the files could hold float32's own numbers, and a bound could be no bound."""
    found = list(compared(expected("simplenet"), exactly("simplenet")))
    errors = [d.share for d in found if isinstance(d, Deviation)]
    assert 1e-9 < max(errors) < 1e-6


def _facts(stored: dict) -> dict:
    """Return the facts on a config, without the file's own settings."""
    return {k: v for k, v in stored.items() if k not in ("computed", "tolerance", "residue")}


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
