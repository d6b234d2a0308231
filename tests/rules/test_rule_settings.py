"""Choice of rules: options, the config's key `rules`, and every mistake in it with its line."""

from __future__ import annotations

import pytest

from gradscope.config import loaded_config as config
from gradscope.config.schema import json_schema
from gradscope.errors import ConfigError, OptionError
from gradscope.records.modules import ParameterStats
from gradscope.records.report import Finding, Report
from gradscope.records.run import RunInfo
from gradscope.records.tensors import TensorStats
from gradscope.rules import RuleSettings, diagnose, explained, reaches, wanted

RUN = RunInfo("net", "cpu", "float32", "train", 0, 1, "cross_entropy", optimizer="SGD")


def lost(name: str, **more: object) -> ParameterStats:
    """A parameter that trains, without a gradient, outside the optimizer."""
    return ParameterStats(name, (2,), True, TensorStats((2,), "float32", 2), None, **more)


REPORT = Report("ok", RUN, parameters=(lost("a", in_optimizer=False),))


def codes(settings: RuleSettings) -> list[str]:
    return [entry.rule.code for entry, _ in settings.active()]


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        (["GS10"], [], ["GS101", "GS102", "GS103", "GS104"]),
        (["gs10"], ["GS102", "zero-gradient"], ["GS101", "GS104"]),
        (["vanishing_gradient"], [], ["GS101"]),
        (
            ["GS20", "GS5"],
            ["GS5", "GS205", "GS206", "GS207", "GS208", "GS209"],
            ["GS201", "GS202", "GS203", "GS204"],
        ),
        (["all"], ["GS"], []),
    ],
)
def test_select_and_ignore(select, ignore, expected):
    assert codes(RuleSettings.of(select=select, ignore=ignore)) == expected


def test_everything_looks_unless_told_otherwise():
    assert len(codes(RuleSettings())) == 154


def test_options_over_the_config():
    said = {"select": ["GS1"], "ignore": ["GS101"], "preset": "sagemaker", "fail_on": "info"}
    settings = RuleSettings.of(said, select=["GS2"], ignore=["GS203"], fail_on="error")
    assert codes(settings)[:4] == ["GS201", "GS202", "GS204", "GS205"]
    assert (settings.preset, settings.fail_on) == ("sagemaker", "error")
    assert settings.ignore == ("GS101", "GS203")


def test_what_is_not_selected_neither_looks_nor_asks():
    assert wanted(REPORT) == {"missing"}
    assert [f.code for f in diagnose(REPORT)] == ["GS401", "GS404"]
    only = RuleSettings.of(select=["GS404"])
    assert wanted(REPORT, only) == frozenset()
    assert [f.code for f in diagnose(REPORT, only)] == ["GS404"]


def test_severities_in_order():
    def finding(severity):
        return Finding("GS101", "vanishing-gradient", severity, "a", "m.", "A.")

    assert reaches([finding("error")], "error")
    assert reaches([finding("warning")], "info")
    assert not reaches([finding("warning")], "error")
    assert not reaches([finding("error")], "never")
    assert not reaches([], "info")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select": ["GX9"]}, "unknown rule `GX9`"),
        ({"ignore": ["dead"]}, "unknown rule `dead`"),
        ({"preset": "sagemakr"}, "unknown preset `sagemakr`"),
        ({"fail_on": "errors"}, "unknown severity `errors`"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(OptionError, match=message):
        RuleSettings.of(**options)


@pytest.mark.parametrize("value", ["high", True, float("nan"), float("inf"), -1, None])
def test_a_threshold_that_is_no_number(value):
    with pytest.raises(ConfigError, match="must be a number from 0"):
        RuleSettings.of({"thresholds": {"GS101": {"ratio": value}}})


def read(tmp_path, text: str):
    path = tmp_path / "c.yaml"
    path.write_text(f"model: demo\nrules:\n{text}")
    return config.read(path)


def test_a_config_that_is_right(tmp_path):
    loaded = read(
        tmp_path,
        "  preset: deepchecker\n  select: GS1\n  ignore: [zero-gradient]\n"
        "  thresholds: {vanishing-gradient: {ratio: 1e-4}}\n  fail_on: warning\n",
    )
    settings = RuleSettings.of(loaded.config.rules.model_dump(), loaded.place)
    assert codes(settings) == ["GS101", "GS102", "GS104"]
    (_, limits), *_ = settings.active()
    assert (limits["ratio"], limits["decay"]) == (1e-4, 0.5)
    assert settings.fail_on == "warning"


@pytest.mark.parametrize(
    ("text", "line", "message", "help"),
    [
        ("  prset: sagemaker\n", 3, "unknown key `prset` in `rules`", "did you mean `preset`?"),
        ("  preset: sagemakr\n", 3, "`rules.preset` expects", "did you mean `sagemaker`?"),
        ("  fail_on: warnings\n", 3, "`rules.fail_on` expects", "did you mean `warning`?"),
        (
            "  select:\n    - GS1\n    - 5\n",
            5,
            "`rules.select.1` expects text: a rule's code",
            "quotes",
        ),
        ("  thresholds:\n    GS101: 3\n", 4, "expects a mapping of a rule's thresholds", None),
        (
            "  thresholds:\n    GS101:\n      ratio: low\n",
            5,
            "`rules.thresholds.GS101.ratio` expects a number from 0",
            None,
        ),
        ("  thresholds: {GS101: {ratio: -1}}\n", 3, "expects a number from 0", None),
        ("  thresholds: {GS101: {ratio: .inf}}\n", 3, "expects a number from 0", None),
        ("  thresholds: {GS101: {ratio: true}}\n", 3, "expects a number from 0", None),
        ("  thresholds: []\n", 3, "expects a mapping of rules to thresholds", None),
    ],
)
def test_types_are_checked_with_the_config(text, line, message, help, tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    (problem,) = caught.value.problems
    assert message in problem.message
    assert problem.place.line == line
    assert help is None or help in problem.help


@pytest.mark.parametrize(
    ("text", "line", "message", "help"),
    [
        ("  select: [GS1, GX9]\n", 3, "unknown rule `GX9`", "lists them"),
        ("  ignore:\n    - dead-unit\n", 4, "unknown rule `dead-unit`", "`dead-units`"),
        ("  thresholds:\n    GS111: {x: 1}\n", 4, "unknown rule `GS111`", "`GS101`"),
        (
            "  thresholds:\n    GS101:\n      ratoi: 1\n",
            5,
            "GS101 has no threshold `ratoi`",
            "did you mean `ratio`?",
        ),
        (
            "  thresholds: {GS405: {x: 1}}\n",
            3,
            "GS405 has no threshold `x`",
            "it has no thresholds",
        ),
    ],
)
def test_names_are_checked_by_the_rules(text, line, message, help, tmp_path):
    loaded = read(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        RuleSettings.of(loaded.config.rules.model_dump(), loaded.place)
    (problem,) = caught.value.problems
    assert problem.message == message
    assert problem.place.line == line
    assert help in problem.help


def test_keys_that_belong_below_rules():
    with pytest.raises(ConfigError) as caught:
        config.read("demo", ["fail_on=error"])
    assert caught.value.problems[0].help == "did you mean `rules.fail_on`?"


def test_an_override_of_one_threshold():
    loaded = config.read("demo", ["rules.thresholds.GS101.ratio=1e-3"])
    assert loaded.config.rules.thresholds == {"GS101": {"ratio": 1e-3}}


def test_the_schema_shows_it():
    schema = json_schema()
    rules = schema["$defs"]["Rules"]["properties"]
    assert set(rules) == {"preset", "select", "ignore", "thresholds", "fail_on"}
    assert rules["thresholds"]["additionalProperties"]["additionalProperties"]["minimum"] == 0
    assert all("description" in part for part in rules.values())


def test_a_threshold_is_set_by_its_old_name():
    settings = RuleSettings.of({"thresholds": {"GS704": {"looks": 7}}})
    (limits,) = [limits for entry, limits in settings.active() if entry.rule.code == "GS704"]
    assert limits["samples"] == 7


@pytest.mark.parametrize(
    ("old", "code"),
    [("forward-departs", "GD101"), ("backward-departs", "GD102"), ("runs-part", "GD106")],
)
def test_a_rule_is_explained_by_its_old_name(old, code):
    assert explained(old).code == code
