"""``--max-tokens``: always a document that fits, and the worst stays."""

from __future__ import annotations

import json

import pytest
from commands.run_files import with_findings
from reporters import report_samples

import gradscope
from gradscope.api.showing import rendered
from gradscope.records import json as record_json
from gradscope.records.coord_check import CoordCheckReport, LayerScaling, Slope
from gradscope.records.experiment import ArmResult, ExperimentReport
from gradscope.records.run import RunInfo
from gradscope.records.spike import SpikeReport, SpikeSample, SpikeSignals
from gradscope.reporters.shortening import LEAST_TOKENS, shortened


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    run = gradscope.load(with_findings(tmp_path_factory.mktemp("run") / "run.db"))
    return [str(rendered(run, "json")), str(rendered(report_samples.resnet(), "json"))]


@pytest.mark.parametrize("tokens", [LEAST_TOKENS, 500, 2000, 10_000, 10**7])
def test_it_fits_and_is_a_document(tokens, texts):
    for text in texts:
        short = shortened(text, tokens)
        assert len(short) <= 3 * tokens
        data = json.loads(short)
        assert isinstance(data, dict)
        if tokens == 10**7:
            assert data == json.loads(text) or sorted(data) == sorted(json.loads(text))
        else:
            assert "left_out" in data or len(text) <= 3 * tokens


def test_the_findings_stay_longest(texts):
    for tokens in (1500, 3000):
        data = json.loads(shortened(texts[0], tokens))
        assert [one["code"] for one in data["findings"]] == ["GS101", "GS301"]


def test_the_worst_come_first():
    text = json.dumps(
        {
            "findings": [
                {"severity": "info", "name": "c"},
                {"severity": "error", "name": "b"},
                {"severity": "warning", "name": "a"},
            ],
            "calls": [{"name": "x"}, {"name": "b"}],
            "parameters": [{"name": "x.weight"}, {"name": "a.weight"}],
        }
    )
    data = json.loads(shortened(text, 1000))
    assert [one["name"] for one in data["findings"]] == ["b", "a", "c"]
    assert [one["name"] for one in data["calls"]] == ["b", "x"]
    assert [one["name"] for one in data["parameters"]] == ["a.weight", "x.weight"]


def test_series_keep_the_same_steps():
    table = {"step": list(range(1000)), "loss": [n / 2 for n in range(1000)]}
    data = json.loads(shortened(json.dumps({"step_metrics": table}), 400))
    steps, losses = data["step_metrics"]["step"], data["step_metrics"]["loss"]
    assert losses == [step / 2 for step in steps]
    assert (steps[0], steps[-1]) == (0, 999)
    assert data["left_out"]["step_metrics.step"] == 1000 - len(steps)


def test_a_single_text_that_is_too_long_is_no_reason_to_fail():
    text = json.dumps({"status": "ok", "findings": [{"message": "x" * 10**6}]})
    data = json.loads(shortened(text, LEAST_TOKENS))
    assert data["status"] == "ok"
    assert len(shortened(json.dumps("x" * 10**6), LEAST_TOKENS)) <= 3 * LEAST_TOKENS


def test_of_a_check_the_worst_model_stays_with_its_worst_finding():
    filler = [{"name": f"layer{n}", "text": "x" * 50} for n in range(100)]
    info = {"code": "GS501", "severity": "info", "message": "small"}
    error = {"code": "GS301", "severity": "error", "message": "NaN " * 200}
    models = [
        {"name": "good", "findings": [], "calls": filler},
        {"name": "bad", "findings": [info, error], "calls": filler},
    ]
    text = json.dumps({"status": "findings", "rules": filler, "models": models})
    for tokens in (LEAST_TOKENS, 500, 2000):
        short = shortened(text, tokens)
        assert len(short) <= 3 * tokens
        data = json.loads(short)
        found = data.get("findings") or data["models"][0]["findings"]
        assert found[0]["code"] == "GS301"


def test_the_worst_finding_stays_in_brief_where_nothing_else_fits():
    finding = {"code": "GS101", "severity": "error", "advice": "x" * 2000, "more": ["y" * 390] * 5}
    data = json.loads(shortened(json.dumps({"findings": [finding]}), LEAST_TOKENS))
    assert data["findings"][0]["code"] == "GS101"
    assert len(data["findings"][0]["advice"]) == 101


def spike() -> SpikeReport:
    samples = tuple(
        SpikeSample(n, loss=9.0 - n / 100, share=1 / (n + 1), layers=("blocks.0.weight",) * 8)
        for n in range(500)
    )
    signals = tuple(SpikeSignals(n, loss=2.5, gradient_norm=0.123456789) for n in range(64))
    return SpikeReport(412, "samples", "one sample " * 20, samples=samples, signals=signals)


def experiment() -> ExperimentReport:
    arms = tuple(
        ArmResult(f"arm-{n}", "x" * 60, losses=(1 / (n + 1),) * 300, verdict=f"result {n}")
        for n in range(12)
    )
    words = {"cause": "learning-rate", "message": "too high: " * 30, "advice": "lower it"}
    return ExperimentReport("train.py", status="findings", arms=arms, **words)


def coordinates() -> CoordCheckReport:
    values = ((((1.2345678,) * 3,) * 4),) * 5
    slope = Slope(0.5, 0.01, 0.45, 0.55, (0.5, 0.49, 0.51))
    layers = [
        LayerScaling(f"blocks.{n}", "Linear", "stable", activations=values, changes=values)
        for n in range(80)
    ]
    layers[60] = LayerScaling("head", "Linear", "grows", severity="error", change=slope)
    return CoordCheckReport(
        RunInfo("cpu", "float32", None, "train", 0, 4, "mse"), layers=tuple(layers)
    )


@pytest.mark.parametrize(
    ("record", "table", "worst"),
    [(spike, "samples", 0), (experiment, "arms", "arm-0"), (coordinates, "layers", "head")],
)
def test_a_spike_an_experiment_and_a_coordinate_check_keep_their_result(record, table, worst):
    text = record_json.dumps(record())
    for tokens in (LEAST_TOKENS, 400, 1000, 3000, 20_000):
        short = shortened(text, tokens)
        assert len(short) <= 3 * tokens
        data = json.loads(short)
        assert data["status"] == record().status
        if tokens > LEAST_TOKENS:
            first = data[table][0]
            assert worst in (first.get("index"), first.get("name"))
        for name in ("cause", "message"):
            whole = getattr(record(), name, None)
            assert whole is None or data[name].rstrip("…") in whole
    assert len(json.loads(shortened(text, 3000))[table]) >= 12  # before their series
