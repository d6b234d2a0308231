"""Numbers of a run that a tracker gets, each once, equal to the file's."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from collector import collecting
from commands.run_files import ENDED, STEPS, add_step, started, with_findings, written

from gradscope import cli
from gradscope.records.training import TrainingFinding
from gradscope.runfile import tracking
from gradscope.runfile.exports import otlp
from gradscope.runfile.reader import RunFile, Series
from gradscope.runfile.tracking import KeySelection, Layer, Unsent
from runfile.made import FINDING


def values(rows) -> dict[tuple[str, int], float]:
    return {(key, row.step): value for row in rows for key, value in row.values.items()}


def test_the_values_are_those_of_the_file(tmp_path):
    path = written(tmp_path / "run.db")
    with RunFile.open(path) as run:
        rows = Unsent(KeySelection(None)).read(run, complete=True).rows
        assert [row.step for row in rows] == list(range(1, STEPS + 1))
        found = values(rows)
        steps = {one.step: one for one in run.steps()}
        assert {key: found[key] for key in found if key[0] == "gradscope/loss"} == {
            ("gradscope/loss", step): one.loss for step, one in steps.items()
        }
        names = {one.id: one.name for one in run.models}
        count = 0
        for (model, name), series in run.parameter_series().items():
            for i, step in enumerate(series.steps):
                key = f"gradscope/update_ratio/{names[model]}/{name}"
                assert found[key, step] == series.values["update_ratio"][i]
                count += 1
        assert count == 36
        assert rows[9].time == run.run.started + steps[10].time
        assert [row.step for row in rows if row.sampled] == list(run.sampled)


def test_of_a_run_that_goes_on_each_value_comes_once(tmp_path):
    """However the reads fall between the writes; a read that was not sent comes again."""
    writer = started(tmp_path / "run.db")
    unsent = Unsent(KeySelection(None))
    found: dict[tuple[str, int], float] = {}
    for number in range(1, STEPS + 1):
        add_step(writer, number)
        if number % 7 == 0 or number == STEPS:
            writer.flush()
            with RunFile.open(writer.path) as run:
                first = unsent.read(run)
                news = unsent.read(run)
            assert values(first.rows) == values(news.rows)
            assert not set(found) & set(values(news.rows))
            found |= values(news.rows)
            unsent.sent(news)
    writer.finish(ENDED)
    with RunFile.open(writer.path) as run:
        assert unsent.read(run, complete=True).rows == ()
        assert found == values(Unsent(KeySelection(None)).read(run, complete=True).rows)


def test_a_finding_is_an_alert_once(tmp_path):
    with RunFile.open(with_findings(tmp_path / "run.db")) as run:
        unsent = Unsent(KeySelection(200))
        news = unsent.read(run, complete=True)
        unsent.sent(news)
        assert unsent.read(run, complete=True).alerts == ()
    first = news.alerts[0]
    assert first.title == "GS101 vanishing-gradient: layer1.conv"
    assert first.text == "layer1.conv: message\ncause: depth\nat net.py:3\nadvice"
    assert (first.severity, first.step) == ("error", 1)


def test_a_finding_on_no_layer_has_no_empty_name():
    alert = tracking._alert(TrainingFinding(replace(FINDING, name=""), ((2, 2),)), {}, 0.0)
    assert alert.title == f"{FINDING.code} {FINDING.rule}"
    assert alert.text.startswith(FINDING.message)


def test_at_most_so_many_keys_the_step_metrics_first(tmp_path):
    with RunFile.open(with_findings(tmp_path / "run.db")) as run:
        for most in (3, 8, 20):
            keys = {key for key, _ in values(Unsent(KeySelection(most)).read(run).rows)}
            assert len(keys) <= most
            assert "gradscope/loss" in keys
        # The layer with the finding comes before the others.
        keys = {key for key, _ in values(Unsent(KeySelection(8)).read(run).rows)}
        assert {key for key in keys if key.count("/") > 1} <= {
            f"gradscope/{column}/{model}/layer1.conv{end}"
            for column in tracking._COLUMNS
            for model in ("netG", "netD")
            for end in ("", ".weight")
        }


def ranked(most: int, ratios: dict[str, float | None], layers=("**",), found=()) -> list[str]:
    """The layers of which there are keys, in their order."""
    keys = KeySelection(most, layers)
    series = {
        Layer(0, name, name): Series((1,), {"update_ratio": (r,)}) for name, r in ratios.items()
    }
    keys.rank(series, found, complete=True)
    return [key.removeprefix("gradscope/update_ratio/") for key in keys._keys]


def test_the_worst_layers_are_those_that_differ_most():
    ratios = {"a": 1e-3, "b": 1.1e-3, "c": 1e-9, "d": 0.0, "e": 0.5, "f": None}
    assert ranked(3, ratios) == ["d", "c", "e"]
    assert ranked(9, ratios) == ["d", "c", "e", "a", "b"]
    finding = replace(FINDING, name="a", severity="warning")
    worse = replace(FINDING, name="b", severity="error")
    found = [TrainingFinding(finding, ((1, 1),)), TrainingFinding(worse, ((1, 1),))]
    assert ranked(3, ratios, found=found) == ["b", "a", "d"]
    assert ranked(2, {"fc.w": 1.0, "g.w": 1.0, "h.w": 1.0}, layers=("g",)) == ["g.w", "fc.w"]
    assert ranked(1, {"a": math.ulp(0.0), "b": 1.0, "c": 1.0}) == ["a"]


def test_a_place_is_kept_for_a_layer_that_is_found_later():
    keys = KeySelection(4)
    series = {Layer(0, n, n): Series((1,), {"update_ratio": (1.0,)}) for n in "abcdef"}
    keys.rank(series, (), complete=False)
    assert len(keys._keys) == 3
    keys.rank(series, [TrainingFinding(replace(FINDING, name="f"), ((2, 2),))], complete=False)
    assert "gradscope/update_ratio/f" in keys


def test_a_collector_gets_gauges_and_log_records(tmp_path, monkeypatch, capsys):
    path = with_findings(tmp_path / "run.db")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b")
    with collecting() as collector:
        words = ("export", str(path), "--to", "otlp", f"127.0.0.1:{collector.port}")
        monkeypatch.setattr("sys.argv", ["gradscope", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 0
        assert f"sent {STEPS} steps to otlp" in capsys.readouterr().err
        points, logs = collector.points(), collector.logs()
    with RunFile.open(path) as run:
        sent = Unsent(KeySelection(200)).read(run, complete=True).rows
    times = {round(row.time * 1e6) * 1000: row.step for row in sent}
    found = {(key, times[at]): value for key, some in points.items() for at, value in some}
    assert {key: found.pop(key) for key in [*found] if key[0] == "gradscope/step"} == {
        ("gradscope/step", row.step): row.step for row in sent
    }
    assert found == values(sent)
    assert [one["severityText"] for one in logs] == ["ERROR", "ERROR"]
    assert logs[0]["body"]["stringValue"].startswith("layer1.conv: message\ncause: depth")


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ("otlp://collector", "http://collector:4318"),
        ("otlps://collector:443", "https://collector:443"),
        ("collector:1234/otlp/", "http://collector:1234/otlp"),
        ("[::1]:1234", "http://[::1]:1234"),
    ],
)
def test_an_address_of_a_collector(place, address):
    assert otlp.address(place) == address


@pytest.mark.parametrize(
    "place",
    ["", "ftp://a", "a:b", "a:0", "a b", "a?b=1", "otlp://:4318", "otlp://me:secret@host"],
)
def test_what_is_no_address_is_refused(place, tmp_path, monkeypatch, capsys):
    path = written(tmp_path / "run.db")
    monkeypatch.setattr("sys.argv", ["gradscope", "export", str(path), "--to", "otlp", place])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "secret" not in capsys.readouterr().err


def test_a_server_that_is_not_there_is_an_error_with_a_reason(tmp_path, monkeypatch, capsys):
    path = Path(written(tmp_path / "run.db"))
    with collecting() as collector:
        place = f"127.0.0.1:{collector.port}"
    monkeypatch.setattr("sys.argv", ["gradscope", "export", str(path), "--to", "otlp", place])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "otlp did not take the run: URLError" in capsys.readouterr().err
