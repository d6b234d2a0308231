"""Records in a program and a notebook: print, save, become a frame; a tensor's graph."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import types
from html import unescape
from pathlib import Path

import pytest
import torch
from torch import nn

import gradscope
from gradscope import plugins
from gradscope.errors import ConfigError, GradscopeError, OptionError, Place, Problem
from gradscope.records import json as record_json
from gradscope.records.graph import AutogradGraph
from gradscope.records.report import Report
from gradscope.records.saliency import SaliencyReport
from gradscope.reporters.tables import report_tables
from gradscope.reporters.views import View

terminal = plugins.load("gradscope.reporters.report", "terminal")

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


class Cut(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach() + self.bias


@pytest.fixture
def report() -> Report:
    return gradscope.inspect(Cut(4, 2), X)


def test_a_report_prints_as_its_tables(report):
    assert str(report) == terminal.render(report, View()).rstrip("\n")
    assert repr(report) == "<gradscope.Report of Cut: findings>"
    assert f"{report}" == str(report)


@pytest.mark.parametrize("name", ["inspect", "why"])
def test_a_notebook_gets_the_parts_of_the_page(name, model):
    record = getattr(gradscope, name)(Cut(4, 2), X)
    html = record._repr_html_()
    assert html.startswith('<div class="gradscope">')
    assert "<script" not in html
    words = unescape(re.sub(r"<[^>]*>", " ", html)).split()
    told = {word.strip(":") for word in str(record).split() if word.isidentifier()}
    assert {"weight", "bias"} & told <= set(words)


def test_a_notebook_gets_each_table(report):
    cells = re.findall(r"<t[dh][^>]*>([^<]*)", report._repr_html_())
    found = {unescape(cell).strip() for cell in cells}
    for table in (report_tables.calls(report, View()), report_tables.parameters(report, View())):
        assert {cell.text.strip() for row in table.rows for cell in row} <= found | {""}


def test_a_graph_is_text_in_a_notebook(model):
    graph = gradscope.graph(model, X)
    html = graph._repr_html_()
    assert html.startswith("<pre")
    plain = "".join(part.partition(">")[2] for part in f">{html}".split("<"))
    assert unescape(plain).rstrip("\n") == str(graph)
    assert "font-weight: bold" in html


def test_layers_named_like_markup_stay_text():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<b>[red]", nn.Linear(4, 2))

        def forward(self, x):
            return next(self.children())(x)

    odd = gradscope.inspect(Odd(), X)
    assert "<b>[red]" in str(odd)
    assert "&lt;b&gt;[red]" in odd._repr_html_()


@pytest.mark.parametrize("name", ["inspect", "check", "why", "graph"])
def test_every_record_prints(name, model):
    record = getattr(gradscope, name)(model, X)
    assert str(record).startswith("Sequential · ")
    assert repr(record) == f"<gradscope.{type(record).__name__} of Sequential: ok>"
    assert pickle.loads(pickle.dumps(record)) == record == copy.deepcopy(record)


def test_saliency_is_an_entry(model):
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 2))
    found = gradscope.saliency(network, torch.ones(1, 3, 8, 8), methods=["gradient"])
    assert isinstance(found.report, SaliencyReport)
    assert "gradient" in str(found)
    assert repr(found) == "<gradscope.SaliencyReport of Sequential: ok>"
    assert found._repr_html_().startswith('<div class="gradscope">')


@pytest.mark.slow
def test_the_entry_is_not_hidden_by_the_room_of_its_name():
    code = (
        "import gradscope, gradscope.saliency\n"
        "from gradscope.saliency import method_names\n"
        "from gradscope import saliency\n"
        "assert callable(gradscope.saliency) and saliency is gradscope.saliency\n"
        "assert 'saliency' in dir(gradscope)"
    )
    home = str(Path(gradscope.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": home}, check=False)
    assert done.returncode == 0


def test_dir_lists_the_entries():
    assert {"check", "graph", "inspect", "saliency", "why"} < set(dir(gradscope))
    assert all(hasattr(gradscope, name) for name in dir(gradscope))


SAVED = {
    "report.json": lambda text: record_json.loads(text, Report),
    "report.csv": lambda text: text.startswith("name,aliases,type,call,"),
    "report.md": lambda text: text.startswith("## Cut"),
    "report.txt": lambda text: text.startswith("Cut · "),
}


@pytest.mark.parametrize(("name", "holds"), SAVED.items(), ids=SAVED)
def test_save_picks_the_format_by_the_suffix(name, holds, report, tmp_path):
    report.save(tmp_path / name)
    assert holds((tmp_path / name).read_text(encoding="utf-8"))
    with pytest.raises(OptionError, match="exists") as caught:
        report.save(tmp_path / name)
    assert "force=True" in caught.value.__notes__[0]
    report.save(str(tmp_path / name), force=True)


def test_a_suffix_that_no_format_has(report, tmp_path):
    with pytest.raises(OptionError, match=r"`\.docx` of .* names no format"):
        report.save(tmp_path / "report.docx")
    with pytest.raises(OptionError, match="no such folder"):
        report.save(tmp_path / "nowhere" / "report.json")


def test_a_saved_report_is_the_same(report, tmp_path):
    report.save(tmp_path / "report.json")
    again = record_json.loads((tmp_path / "report.json").read_text(), Report)
    assert str(again) == str(report)


class Frame:
    """A stand-in for pandas' own, which need not be installed here."""

    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns


def test_frames(report, model, monkeypatch):
    pandas = types.ModuleType("pandas")
    pandas.DataFrame = Frame
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    calls = report.to_frame()
    assert calls.columns[:3] == ["name", "aliases", "type"]
    norm = calls.rows[-1][calls.columns.index("norm")]
    assert norm == report.calls[0].outputs[0].activation.norm
    parameters = report.to_frame("parameters")
    assert [row[0] for row in parameters.rows] == ["weight", "bias"]
    findings = report.to_frame("findings")
    assert findings.columns[:2] == ["severity", "code"]
    assert [row[1] for row in findings.rows] == [f.code for f in report.findings]
    nodes = gradscope.graph(model, X).to_frame()
    assert nodes.rows[0][nodes.columns.index("op")] == "NllLossBackward0"
    answers = gradscope.why(Cut(4, 2), X).to_frame()
    assert answers.rows[0][answers.columns.index("cause")] == "detached"
    with pytest.raises(OptionError, match="there is no table `call`"):
        report.to_frame("call")


def test_without_pandas(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="`to_frame` needs pandas") as caught:
        report.to_frame()
    assert caught.value.__notes__ == ["  = help: pip install pandas"]


def test_errors_carry_place_and_help():
    place = Place("model.yaml", 5, 1, "wieghts", "wieghts: DEFAULT", 7)
    one = ConfigError("unknown key `wieghts`", place=place, help="did you mean `weights`?")
    (note,) = one.__notes__
    assert note.splitlines()[0] == "  --> model.yaml:5:1 (wieghts)"
    assert note.splitlines()[-1] == "   = help: did you mean `weights`?"
    assert str(one) == "unknown key `wieghts`"
    assert f"{one.render()}" == f"error: {one}\n{note}"
    two = ConfigError(Problem("first", help="a"), Problem("second\nline", help="b"))
    assert two.__notes__ == [problem.render() for problem in two.problems]
    assert not hasattr(GradscopeError("alone"), "__notes__")
    lines = ConfigError("two\nlines", help="c")
    assert lines.__notes__ == ["  = help: c"]


class TestTensor:
    def test_the_graph_of_a_loss_at_hand(self, model):
        loss = model(X).square().mean() + model[0].weight.norm()
        graph = gradscope.graph(loss, model)
        assert isinstance(graph, AutogradGraph)
        named = {n.name for n in graph.nodes if n.kind == "parameter"}
        assert named == set(dict(model.named_parameters()))
        assert graph.nodes[0].op == "AddBackward0"
        assert graph.loss == pytest.approx(loss.item())
        assert all(node.grad_norm is None for node in graph.nodes)
        assert "seed" not in str(graph)
        again = record_json.loads(record_json.dumps(graph), AutogradGraph)
        assert again == graph

    def test_nothing_runs_and_the_graph_is_whole(self, model):
        loss = model(X).square().mean()
        expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        gradscope.graph(loss, model)
        assert all(p.grad is None for p in model.parameters())
        loss.backward()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            assert torch.equal(parameter.grad, gradient)

    def test_without_a_model_the_parameters_have_no_names(self, model):
        graph = gradscope.graph(model(X))
        assert {n.name for n in graph.nodes} == {None}
        assert graph.start == "the tensor"
        assert "from the tensor" in str(graph)

    def test_a_picture_of_it(self, model, tmp_path):
        gradscope.graph(model(X).sum(), model).save(tmp_path / "graph.mmd")
        assert "SumBackward0" in (tmp_path / "graph.mmd").read_text()

    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            ((X,), {}, "the tensor has no graph"),
            ((X.clone().requires_grad_(), X), {}, "and no Tensor"),
            ((X.clone().requires_grad_(),), {"mode": "eval"}, "`mode` is for a run"),
            ((X.clone().requires_grad_(),), {"lines": True}, "`lines` is for a run"),
        ],
    )
    def test_refused(self, arguments, options, message):
        with pytest.raises(OptionError, match=message):
            gradscope.graph(*arguments, **options)
