"""Every file of the room keeps the contract; each checker has a rule that it must refuse."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pages import blocks

from gradscope import plugins
from gradscope.config.schema import FAIL_ON as CONFIG_FAIL_ON
from gradscope.config.schema import PRESETS as CONFIG_PRESETS
from gradscope.errors import OptionError
from gradscope.records.json import to_data
from gradscope.records.modules import ParameterStats
from gradscope.records.ranks import RanksRecord
from gradscope.records.report import Report
from gradscope.records.run import RunInfo
from gradscope.records.tensors import TensorStats
from gradscope.records.training import StepSample, TrainingStep
from gradscope.rules import (
    FAIL_ON,
    PRESETS,
    SEVERITIES,
    Rule,
    Runs,
    SampleHistory,
    StepHistory,
    Threshold,
    diagnose,
    lookup,
    rule_book,
    wanted,
)
from gradscope.rules._book import FUNCTIONS, entries

FILES = plugins.names("gradscope.rules")
RUN = RunInfo("net", "cpu", "float32", "train", 0, 1, "cross_entropy")
CODES = [
    *("GS101", "GS102", "GS103", "GS104", "GS201", "GS202", "GS203", "GS204"),
    *("GS205", "GS206", "GS207", "GS208", "GS209"),
    *("GS301", "GS302", "GS303", "GS304", "GS305"),
    *("GS401", "GS402", "GS403", "GS404", "GS405", "GS406", "GS407"),
    *("GS501", "GS502", "GS503", "GS504", "GS505", "GS506", "GS507", "GS508", "GS509"),
    *("GS510", "GS511", "GS512", "GS513", "GS514", "GS515"),
    *("GS601", "GS602", "GS603", "GS604", "GS605", "GS606", "GS607", "GS608", "GS609", "GS610"),
    *("GS611", "GS612", "GS613", "GS614", "GS615", "GS616", "GS617", "GS618", "GS619"),
    *("GS620", "GS621"),
    *("GS701", "GS702", "GS703", "GS704", "GS705", "GS706", "GS707"),
    *("GS801", "GS802", "GS803", "GS804", "GS805", "GS806", "GS807", "GS808"),
    *("GS809", "GS810", "GS811", "GS812", "GS813", "GS814", "GS815", "GS816"),
    *("GS817", "GS818", "GS819", "GS820", "GS821", "GS822", "GS823", "GS824"),
    *("GS825", "GS826", "GS827", "GS828", "GS829", "GS830", "GS831", "GS832"),
    *("GS833", "GS834", "GS835", "GS836", "GS837", "GS838", "GS839", "GS840"),
    *("GS841", "GS842", "GS843", "GS844", "GS845", "GS846", "GS847", "GS848"),
    *("GS849", "GS850", "GS851", "GS852", "GS853", "GS854", "GS855", "GS856"),
    *("GS857", "GS858", "GS859", "GS860", "GS861", "GS862", "GS863", "GS864"),
    *("GS865", "GS866", "GS867", "GS868", "GS869", "GS870", "GS871", "GS872"),
    *(
        "GS873",
        "GS874",
        "GS875",
        "GS876",
        "GS877",
        "GS878",
        "GS879",
        "GS880",
        "GS881",
        "GS882",
        "GS883",
        "GS884",
        "GS885",
        "GS886",
    ),
    *("GS901", "GS902", "GS903", "GS904", "GS905", "GS906", "GS907", "GS908"),
]


def faults(rule: Rule) -> list[str]:
    """Return the gaps in a rule's documentation."""
    found = []
    if not re.fullmatch(r"GS[1-9]\d\d", rule.code):
        found.append("code")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name):
        found.append("name")
    if rule.severity not in SEVERITIES:
        found.append("severity")
    if not rule.summary or rule.summary.endswith(".") or rule.summary[0].isupper():
        found.append("summary")
    for part in ("what", "why", "fix"):
        text = getattr(rule, part)
        if len(text) < 40 or not text.endswith(".") or "  " in text or text != text.strip():
            found.append(part)
    if not rule.sources or not all(rule.sources):
        found.append("sources")
    runs = rule.runs
    if runs is not None:
        often = runs.samples >= (not runs.metrics) and runs.steps >= 1
        known = runs.per in ("place", "model", "run")
        if not (often and known and runs.parameters in ("stepped", "unheld", "all")):
            found.append("runs")
    names = [threshold.name for threshold in rule.thresholds]
    for threshold in rule.thresholds:
        numbers = (threshold.default, *threshold.presets.values())
        right = (
            re.fullmatch(r"[a-z]+(_[a-z]+)*", threshold.name)
            and threshold.meaning
            and threshold.source
            and set(threshold.presets) <= set(PRESETS)
            and all(number is None or number >= 0 for number in numbers)
            and names.count(threshold.name) == 1
        )
        if not right:
            found.append(f"threshold {threshold.name}")
    if any(t.source == "gradscope, calibrated" and t.default for t in rule.thresholds):
        # What was measured says how many of how many, of healthy and of broken models.
        figures = re.findall(r"\d+ of \d+", rule.calibration)
        if len(figures) < 2 or not rule.calibration.endswith("."):
            found.append("calibration")
    return found


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_a_rule(file):
    module = plugins.load("gradscope.rules", file)
    assert file == f"{module.RULE.code.lower()}-{module.RULE.name}"
    assert faults(module.RULE) == []
    assert module.__doc__.startswith(f"{module.RULE.code}: ")
    found = [getattr(module, name) for name in FUNCTIONS if hasattr(module, name)]
    assert all(function.__doc__ for function in found)
    assert {function.__name__ for function in found} - {"wants"}


GOOD = next(rule for rule in rule_book() if rule.code == "GS101")
REFUSED = {
    "code": replace(GOOD, code="XX1"),
    "name": replace(GOOD, name="Vanishing"),
    "severity": replace(GOOD, severity="fatal"),
    "summary": replace(GOOD, summary="Ends with a period."),
    "what": replace(GOOD, what="too short."),
    "why": replace(GOOD, why=GOOD.why.rstrip(".")),
    "fix": replace(GOOD, fix=""),
    "sources": replace(GOOD, sources=()),
    "runs": replace(GOOD, runs=Runs(per="layer")),
    "threshold x": replace(GOOD, thresholds=(Threshold("x", -1, "below zero", "a paper"),)),
    "threshold y": replace(
        GOOD, thresholds=(Threshold("y", 1, "unknown", "a paper", {"nobody": 1}),)
    ),
    "calibration": replace(GOOD, calibration="Measured well."),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_the_contract_refuses(fault):
    assert faults(REFUSED[fault]) == [fault]


def test_what_a_rule_explains_are_rules_that_find_something_in_runs():
    codes = [entry.rule.code for entry in entries() if entry.rule.runs is not None]
    starts = {start for rule in rule_book() for start in rule.explains}
    assert starts
    assert all(any(code.startswith(start) for code in codes) for start in starts)


def test_the_codes_that_are_promised():
    assert [rule.code for rule in rule_book()] == CODES
    assert len({rule.name for rule in rule_book()}) == len(CODES)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.rule.code)
@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_nothing_is_found_in_nothing(entry, preset):
    report = Report("ok", RUN)
    limits = entry.rule.limits(preset)
    for find in (entry.find, entry.wants, entry.find_sampled, entry.in_runs):
        assert list(find(report, limits) if find else ()) == []
    assert report == Report("ok", RUN)
    steps, samples = StepHistory(TrainingStep(1, "", 1, 0.0, 0.0)), SampleHistory()
    for number in range(2, 200):
        samples.add(StepSample(number, 0, report))
        steps.add(TrainingStep(number, "", number, 0.0, 0.0))
    assert list(entry.find_over_ranks(RanksRecord(), limits) if entry.find_over_ranks else ()) == []
    over_steps, over_samples = entry.find_over_steps, entry.find_over_samples
    assert list(over_steps(steps, limits) if over_steps else ()) == []
    assert list(over_samples(samples, limits) if over_samples else ()) == []


def test_nothing_is_wanted_of_nothing():
    assert wanted(Report("ok", RUN)) == frozenset()
    assert diagnose(Report("ok", RUN)) == ()


@pytest.mark.parametrize("rule", rule_book(), ids=lambda rule: rule.code)
def test_a_rule_is_plain_data(rule):
    json.dumps(to_data(rule), allow_nan=False)
    assert lookup(rule.code) is lookup(rule.name) is lookup(rule.code.lower())


@pytest.mark.parametrize(
    ("word", "offered"),
    [
        ("vanishing", "vanishing-gradient"),
        ("dead_unit", "dead-units"),
        ("GS111", "GS101"),
        ("GX9", "`gradscope rules` lists them"),
        ("", "`gradscope rules` lists them"),
    ],
)
def test_an_unknown_rule(word, offered):
    with pytest.raises(OptionError) as caught:
        lookup(word)
    assert offered in caught.value.problems[0].help


def test_the_config_knows_the_same_words():
    assert tuple(PRESETS) == CONFIG_PRESETS
    assert FAIL_ON == CONFIG_FAIL_ON


def test_presets_say_what_their_tools_do():
    assert lookup("GS101").limits("sagemaker")["mean_abs"] == 1e-7
    assert lookup("GS101").limits("autotrainer")["ratio"] == 1e-3
    assert lookup("GS101").limits("autotrainer")["norm"] == 1e-4
    assert lookup("GS101").limits("deepchecker")["mean_abs"] == 1e-6
    assert lookup("GS101").limits("deepchecker")["decay"] == 0.5
    assert lookup("GS102").limits("autotrainer")["ratio"] == 70
    assert lookup("GS102").limits("deepchecker")["mean_abs"] == 1e6
    assert lookup("GS104").limits("sagemaker")["large"] == 10
    assert lookup("GS104").limits("deepchecker")["small"] == 1e-4
    assert lookup("GS201").limits("autotrainer")["share"] == 0.7
    assert lookup("GS203").limits("deepchecker")["lowest"] == 0.5


def test_a_number_of_ones_own_wins():
    limits = lookup("GS101").limits("sagemaker", {"mean_abs": 1e-3})
    assert (limits["mean_abs"], limits.source("mean_abs")) == (1e-3, "the config")
    assert limits.get("ratio") is None
    assert limits.source("ratio") == PRESETS["sagemaker"]


def test_the_rule_of_the_page():
    """The example of ``docs/architecture.md`` keeps the contract, and finds what it says."""
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    example, *more = [text for text in blocks("python", page) if "RULE = Rule(" in text]
    assert not more
    module: dict[str, Any] = {}
    exec(compile(example, "gs516_large_parameter.py", "exec"), module)
    rule, find = module["RULE"], module["find"]
    assert faults(rule) == []
    # No other rule has its code or its name; who follows the page has the example itself.
    assert {(o.code == rule.code) + (o.name == rule.name) for o in rule_book()} <= {0, 2}
    parameters = [
        ParameterStats(name, (4,), True, TensorStats((4,), "float32", 4, norm=norm))
        for name, norm in {"small": 19.0, "large": 22.0, "meta": None}.items()
    ]
    found = list(find(Report("ok", RUN, parameters=tuple(parameters)), rule.limits()))
    assert [(one.name, one.value, one.threshold) for one in found] == [("large", 11.0, 10.0)]
