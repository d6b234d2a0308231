"""Reports without findings: the rules that judged, and those without enough samples."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from reporters.run_samples import CALLS, empty, many, one_step, small

from gradscope import plugins
from gradscope.records.answers import Judgement, NotJudged
from gradscope.records.training import RunHistory, TrainingRun
from gradscope.reporters.run.findings import answers, news
from gradscope.reporters.verdict import Verdict, codes, in_short, no_problem, not_enough, summary
from gradscope.reporters.views import TextView, View

FEW = NotJudged("GS401", "samples", 5, 3, "--every 12")
MORE = NotJudged("GS605", "samples", 16, 3, "--every 12")
METRICS = NotJudged("GS601", "steps", 33, 18, "--every 12")
LONGER = NotJudged("GS603", "steps", 1026, 60, "a run of 1,026 steps or more")
FIRST = NotJudged("GS506", "first-step", 1, 0, "--first 1")
ENDED = NotJudged("GS810", "end", 1, 0, "run the script to its end")
COMPILED = NotJudged("GS101", "calls", 1, 0, "--compiled")

#: Three of 60 steps were sampled: a run in each of the three states.
PARTLY = Judgement(("GS101", "GS102", "GS104", "GS301"), (FEW, MORE, LONGER))
STATES = {
    "nothing found by those that could be judged": replace(
        small(), findings=(), judgement=PARTLY, sampled=(1, 2, 3), steps=small().steps[:60]
    ),
    "not enough seen": replace(
        small(),
        findings=(),
        judgement=Judgement((), (FEW, FIRST)),
        sampled=(),
        steps=small().steps[:60],
    ),
    "a finding, and not enough seen": replace(small(), judgement=PARTLY),
    "all could be judged": replace(small(), findings=(), judgement=Judgement(("GS101", "GS301"))),
}
FORMATS = ("terminal", "markdown", "html", "github", "json", "sarif")


def rendered(history: RunHistory, format: str) -> str:
    module = plugins.load("gradscope.reporters.training", format)
    return str(module.render(history, View()))


def why(history: RunHistory, format: str, *patterns: str) -> str:
    module = plugins.load("gradscope.reporters.answers", format)
    return str(module.render(answers(history, patterns=patterns), TextView()))


@pytest.mark.parametrize(
    ("several", "lines"),
    [
        ((), []),
        ((FEW,), ["Not enough samples for GS401 (needs 5, 3 recorded): --every 12"]),
        (
            (FEW, MORE, METRICS),
            [
                "Not enough samples for GS401, GS605 (need 5 to 16, 3 recorded): --every 12",
                "Not enough steps with metrics for GS601 (needs 33, 18 recorded): --every 12",
            ],
        ),
        ((LONGER,), ["The run is too short for GS603 (needs 1,026 steps)"]),
        ((FIRST,), ["Not enough samples for GS506 (needs step 1): --first 1"]),
        (
            (ENDED, replace(ENDED, code="GS812")),
            ["The script ended too early for GS810, GS812: run the script to its end"],
        ),
        (
            (COMPILED,),
            ["No calls are recorded for GS101: --compiled"],
        ),
    ],
)
def test_what_gives_enough(several: tuple[NotJudged, ...], lines: list[str]) -> None:
    assert list(map(str, not_enough(Judgement((), several)))) == lines


def test_codes_that_follow_each_other_are_one() -> None:
    assert codes(["GS104", "GS101", "GS102", "GS103", "GS201"]) == "GS101–104, GS201"
    assert codes(["GS101", "GS102", "GS104"]) == "GS101, GS102, GS104"
    assert codes([]) == ""


def test_only_a_run_in_which_every_rule_could_be_judged_is_good() -> None:
    tones = [
        line.tone
        for found in (Judgement(("GS101",)), Judgement(("GS101",), (FEW,)), Judgement((), (FEW,)))
        for line in no_problem(found, "in all 60 steps")
    ]
    assert tones == ["good", "", "warn"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("state", STATES)
def test_every_format_has_the_three_states(state: str, format: str) -> None:
    history = STATES[state]
    text = rendered(history, format)
    lowered = text.lower()
    assert "healthy" not in lowered
    if format == "json":
        data = json.loads(text)
        assert data["status"] == ("findings" if history.findings else "ok")
        assert data["judged"] == list(history.judgement.judged)
        assert [one["code"] for one in data["not_judged"]] == [
            one.code for one in history.judgement.not_judged
        ]
        assert all(
            {*one} == {"code", "unit", "needs", "seen", "help"} for one in data["not_judged"]
        )
        return
    for one in history.judgement.not_judged:
        assert one.code in text
        assert one.help in text or "The run is too short for" in text
    assert ("No problem found" in text) == (not history.findings and bool(history.judgement.judged))
    assert ("Nothing was judged" in text) == (not history.judgement.judged)


def test_code_scanning_gets_notes() -> None:
    run = json.loads(rendered(STATES["not enough seen"], "sarif"))["runs"][0]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is True
    told = invocation["toolExecutionNotifications"]
    assert {one["level"] for one in told} == {"note"}
    assert told[0]["message"]["text"] == "Nothing was judged: every rule needs more samples"


@pytest.mark.parametrize("format", ["terminal", "markdown", "html"])
@pytest.mark.parametrize("state", STATES)
def test_answers_have_them_too(state: str, format: str) -> None:
    history = STATES[state]
    judged, text = history.judgement.judged, why(history, format)
    assert ("No problem found" in text) == (not history.findings and bool(judged))
    assert ("Nothing was judged" in text) == (not judged)
    assert ("Not enough samples for" in text) == bool(history.judgement.not_judged)


def test_a_parameter_is_healthy_where_every_rule_over_samples_could_be_judged() -> None:
    for state, expected in (
        ("all could be judged", "healthy"),
        ("nothing found by those that could be judged", "not-judged"),
        ("not enough seen", "not-judged"),
    ):
        data = json.loads(why(STATES[state], "json", "conv1.weight"))
        assert [one["state"] for one in data["answers"]] == [expected]
        assert data["status"] == "ok"
        assert data["judged"] == list(STATES[state].judgement.judged)
        text = why(STATES[state], "terminal", "conv1.weight")
        assert ("healthy" in text) == (expected == "healthy")


def test_a_run_without_a_step_is_no_success() -> None:
    for text in (rendered(empty(), "terminal"), why(empty(), "terminal")):
        assert "Nothing was judged: no step was recorded\n" in text
        assert "No problem" not in text


def test_a_run_that_ended_says_so_to_who_follows_it() -> None:
    history = STATES["nothing found by those that could be judged"]
    found, samples, short, last = news(history, history, before=0)
    judged = "No problem found in steps 1–3 of 60; judged: GS101, GS102, GS104, GS301"
    assert found == f"verdict: {judged}"
    assert samples.startswith("verdict: Not enough samples for GS401, GS605")
    assert short.startswith("verdict: The run is too short for")
    assert last == "finished: exit code 0"


@pytest.mark.parametrize(
    ("judgement", "said"),
    [
        (Judgement(("GS101", "GS301")), "no problem found; 2 rules could be judged"),
        (
            PARTLY,
            "no problem found; 4 rules could be judged, 3 rules need more samples (--every 12)",
        ),
        (Judgement((), (FIRST,)), "nothing was judged: 1 rule needs more samples (--first 1)"),
    ],
)
def test_the_end_of_a_run_says_it_in_a_line(judgement: Judgement, said: str) -> None:
    assert in_short(judgement) == said
    run = TrainingRun("train.py", 0.0, steps=60)
    ended = Verdict(run, sampled=3, judgement=judgement)
    assert summary(ended, "run.db").splitlines()[1] == f"gradscope: {said}"
    assert said not in summary(replace(ended, findings=small().findings), "run.db")


def test_calls_of_compiled_modules_have_a_reason() -> None:
    said = "CausalLM: no calls are recorded, as it is compiled (torch.compile); parameters, "
    for format in ("terminal", "markdown", "html"):
        module = plugins.load("gradscope.reporters.training", format)
        text = " ".join(str(module.render(many(), View(table="calls"))).split())
        assert text.count(said) == 2  # in the header, and in the place of the table
    assert set(CALLS) <= {one.code for one in many().judgement.not_judged}
    assert "torch.compile" not in rendered(one_step(), "terminal")
