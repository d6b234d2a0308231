"""``gradscope.load``, ``plot`` and ``diff`` of what was saved or recorded."""

from __future__ import annotations

import copy
import pickle
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands.run_files import ENDED, SAMPLED, STEPS, with_findings, written
from torch import nn

import gradscope
from gradscope import plugins
from gradscope.api.reading import read_history
from gradscope.errors import ConfigError, OptionError
from gradscope.records.report import Report
from gradscope.records.training import RunHistory
from gradscope.reporters.views import View
from gradscope.runfile.reader import RunFile

html = plugins.load("gradscope.reporters.training", "html")
terminal = plugins.load("gradscope.reporters.training", "terminal")

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("name", ["inspect", "check", "why", "graph"])
def test_what_was_saved_comes_back(name: str) -> None:
    record = getattr(gradscope, name)(net(), X)
    record.save("record.json")
    assert gradscope.load("record.json") == record
    assert repr(gradscope.load(Path("record.json"))) == repr(record)


def test_a_comparison_comes_back() -> None:
    record = gradscope.diff(net(), net(1), X)
    record.save("diff.json")
    assert gradscope.load("diff.json") == record


def test_a_check_of_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from gradscope.commands import check

    check.run(["demo"], format="json", output=Path("check.json"))
    check.run(["demo"])
    loaded = gradscope.load("check.json")
    assert f"{loaded}\n" == capsys.readouterr().out
    assert repr(loaded) == "<gradscope.CheckReport of 1 model: ok>"
    assert "demo" in loaded._repr_html_()


class TestRun:
    @pytest.fixture
    def run(self) -> RunHistory:
        with_findings(Path("one.db"))
        loaded = gradscope.load("one")
        assert isinstance(loaded, RunHistory)
        return loaded

    def test_it_has_what_was_recorded(self, run: RunHistory) -> None:
        with RunFile.open(Path("one.db")) as opened:
            assert run == read_history(opened, calls=True)
        assert (len(run.steps), run.sampled) == (STEPS, SAMPLED)
        assert run.findings[0].code == run.findings[0].finding.code
        assert {one.name for one in run.parameters} == {f"layer{i}.conv.weight" for i in range(3)}
        assert repr(run) == "<gradscope.RunHistory of train.py: 40 steps, 2 findings>"
        assert pickle.loads(pickle.dumps(run)) == run == copy.deepcopy(run)

    def test_it_prints_and_saves_as_show_does(self, run: RunHistory) -> None:
        assert f"{run}\n" == terminal.render(run, View())
        run.save("run.html")
        assert Path("run.html").read_text(encoding="utf-8") == html.render(run, View())
        notebook = run._repr_html_()
        assert notebook.startswith('<div class="gradscope">')
        assert "step metrics" in notebook

    def test_its_tables_are_frames(self, run: RunHistory, monkeypatch: pytest.MonkeyPatch) -> None:
        pandas = types.ModuleType("pandas")  # a stand-in: it need not be installed here
        pandas.DataFrame = lambda rows, columns: dict(  # type: ignore[attr-defined]
            zip(columns, zip(*rows, strict=True), strict=True)
        )
        monkeypatch.setitem(sys.modules, "pandas", pandas)
        assert list(run.to_frame()["step"]) == list(range(1, STEPS + 1))
        assert set(run.to_frame("parameters")["step"]) == set(SAMPLED)
        assert list(run.to_frame("findings")["code"]) == [one.code for one in run.findings]
        with pytest.raises(OptionError, match="no table `layers`"):
            run.to_frame("layers")

    def test_a_step_is_a_report(self, run: RunHistory) -> None:
        with RunFile.open(Path("one.db")) as opened:
            first, second = (sample.report for sample in opened.sample(20))
        assert run.report(20) == first == run.report(20, "netG")
        assert run.report(20, "netD") == second
        assert run.report() == run.report(SAMPLED[-1])
        with pytest.raises(OptionError, match="step 15 was not sampled") as caught:
            run.report(15)
        assert caught.value.problems[0].help == "the sampled steps are 1, 2, 3, 10, 20, 30"
        with pytest.raises(OptionError, match="step 20 has no model `net`"):
            run.report(20, "net")
        with pytest.raises(OptionError, match="no step was sampled"):
            replace(run, sampled=()).report()

    def test_ranks_are_one_run(self) -> None:
        for rank in (0, 1):
            written(Path(f"run/rank-{rank}.db"), replace(ENDED, rank=rank, world_size=2))
        assert len(gradscope.load("run").ranks) == 2


def test_what_is_no_file_of_gradscopes() -> None:
    with pytest.raises(ConfigError, match="no run and no report is named `nothing`"):
        gradscope.load("nothing")
    with pytest.raises(ConfigError, match=r"there is no file `nothing\.json`"):
        gradscope.load("nothing.json")
    Path("other.json").write_text('{"schema": "other/1"}')
    with pytest.raises(ConfigError, match="not a gradscope report"):
        gradscope.load("other.json")


class TestPlot:
    def test_a_notebook_shows_it_and_a_file_holds_the_same(self) -> None:
        report = gradscope.inspect(net(), X)
        plot = report.plot()
        assert repr(plot) == (
            "<gradscope plot of Sequential: gradient flow, activation scale, gradient ratio, "
            "saved for backward>"
        )
        plot.save("flow.svg")
        assert plot._repr_svg_() == Path("flow.svg").read_text(encoding="utf-8")
        with pytest.raises(OptionError, match="exists"):
            report.plot("flow.svg")
        assert repr(report.plot("flow.svg", force=True)) == repr(plot)

    def test_of_a_run_it_is_over_steps(self) -> None:
        charts = gradscope.load(with_findings(Path("one.db"))).plot().charts
        assert [chart.title for chart in charts][:2] == ["loss", "gradient norm"]
        assert "update ratio" in {chart.title for chart in charts}

    def test_what_cannot_be_drawn(self) -> None:
        report = gradscope.inspect(net(), X)
        with pytest.raises(OptionError, match=r"`flow\.html` is not a picture file"):
            report.plot("flow.html")
        with pytest.raises(OptionError, match="nothing to draw"):
            replace(report, calls=(), parameters=()).plot()


class TestDiff:
    def test_two_reports_are_compared_as_their_files(self) -> None:
        reports = [gradscope.inspect(net(seed), X) for seed in (0, 1)]
        for name, report in zip("ab", reports, strict=True):
            report.save(f"{name}.json")
        saved = gradscope.diff("a.json", "b.json")
        made = gradscope.diff(*reports)
        assert (made.calls, made.parameters, made.measured) == (
            saved.calls, saved.parameters, "statistics",
        )  # fmt: skip
        assert (made.a.file, made.b.file) == ("A", "B")
        mixed = gradscope.diff(reports[0], "b.json")
        assert (mixed.calls, mixed.a.file, mixed.b.file) == (saved.calls, "A", "b.json")
        same = gradscope.diff(reports[0], reports[0])
        assert all(one.activation.error == 0 for one in same.calls)

    def test_two_runs_are_compared_as_their_files(self) -> None:
        for name in "ab":
            written(Path(f"{name}.db"))
        made = gradscope.diff(gradscope.load("a.db"), gradscope.load("b.db"))
        assert made == gradscope.diff("a.db", "b.db") == gradscope.diff("a.db", gradscope.load("b"))

    @pytest.mark.parametrize(
        ("of", "message"),
        [
            (lambda r: (r, net()), "a live model cannot be compared with a record"),
            (lambda r: (r, "demo"), "a report cannot be compared with `demo`"),
            (
                lambda r: (r, gradscope.why(net(), X)),
                "cannot be compared with a WhyReport",
            ),
        ],
    )
    def test_what_is_not_compared_with_a_report(self, of, message: str) -> None:
        with pytest.raises(OptionError, match=message):
            gradscope.diff(*of(gradscope.inspect(net(), X)))

    def test_a_report_is_not_run(self) -> None:
        report = gradscope.inspect(net(), X)
        with pytest.raises(OptionError, match="a record cannot run again, which `seed` needs"):
            gradscope.diff(report, report, seed=1)


def test_names_are_those_of_the_tables() -> None:
    report = gradscope.inspect(net(), X)
    assert isinstance(report, Report)
    assert report["0.weight"].grad.norm == report.parameters[0].gradient.norm
    assert report["2"].outputs[0].grad.norm == report.calls[-1].outputs[0].gradient.norm
