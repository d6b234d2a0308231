"""``gradscope graph`` from end to end: formats, paths, saved graphs, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diagrams import samples

from gradscope import cli, plugins
from gradscope.records import json as record_json
from gradscope.records.graph import AutogradGraph

NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.block = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        cut = self.stem(x).detach()
        return self.head(torch.relu(self.block(cut)))

class Quiet(Net):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)

class Boom(Net):
    def forward(self, x):
        return self.head(self.stem(x)[:, :3])

class Stopped(Net):
    def forward(self, x):
        raise KeyboardInterrupt

class InPlace(Net):
    def forward(self, x):
        y = self.stem(x).exp()
        y.add_(1)
        return self.head(y)

class NamedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.loss(x).relu())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("net.yaml").write_text("model: ./net.py:Net\ninput: {shape: [3, 4]}\n")
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["gradscope", "graph", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_without_arguments_it_shows_the_demo(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 0
    out = capsys.readouterr().out
    assert "main path" in out
    assert "conv1.weight [10, 1, 5, 5]" in out


@pytest.mark.slow
@pytest.mark.parametrize("format", plugins.names("gradscope.diagrams"))
def test_every_format_is_written_whole_and_never_over_another(
    format: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if format in ("svg", "png", "pdf"):
        pytest.importorskip("pygraphviz", reason="pictures need Graphviz")
    suffix = plugins.load("gradscope.diagrams", format).suffix
    output = f"out{suffix}"
    assert run(monkeypatch, "net.yaml", "-o", output) == 0
    written = Path(output).read_bytes()
    assert len(written) > 100
    assert capsys.readouterr().out == ""
    assert run(monkeypatch, "net.yaml", "-o", output) == 2
    assert "--force" in capsys.readouterr().err
    assert Path(output).read_bytes() == written


def test_a_saved_graph_is_drawn_again_without_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "net.yaml", "-o", "g.json") == 0
    Path("net.py").unlink()
    assert run(monkeypatch, "g.json", "-f", "json") == 0
    assert capsys.readouterr().out == Path("g.json").read_text()
    assert run(monkeypatch, "g.json", "--to", "stem.weight") == 0
    assert "detached" in capsys.readouterr().out


def test_json_holds_what_the_contract_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "net.yaml", "-f", "json") == 0
    out = capsys.readouterr().out

    def no_constant(token: str) -> Any:
        raise ValueError(token)

    data = json.loads(out, parse_constant=no_constant)
    assert data["schema"] == "gradscope.graph/2"
    assert data["root"] == data["nodes"][0]["id"]
    keys = {"id", "op", "kind", "name", "module", "call", "shape", "saved_bytes", "grad_norm", "to"}
    assert all(keys <= node.keys() for node in data["nodes"])
    assert record_json.loads(out, AutogradGraph).nodes[0].op == data["nodes"][0]["op"]


def test_a_cut_is_named_with_its_cause_and_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "net.yaml", "--from", "loss", "--to", "stem.weight") == 0
    out = capsys.readouterr().out
    assert "detached" in out
    assert "net.py:12" in out


def test_a_cut_is_named_below_another_root(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "net.yaml", "--root", "block", "--to", "stem.weight") == 0
    out = capsys.readouterr().out
    assert "detach" in out
    assert "net.py:12" in out


def test_paths_say_where_each_operation_was_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "net.yaml", "--to", "block.weight") == 0
    lines = capsys.readouterr().out.splitlines()
    relu = next(line for line in lines if line.startswith("ReluBackward0"))
    assert "net.py:13" in relu
    assert run(monkeypatch, "net.yaml", "--to", "block.weight", "--no-lines") == 0
    assert "net.py" not in capsys.readouterr().out


def test_other_formats_hold_just_the_paths_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "net.yaml", "--from", "head", "--to", "block.*", "-f", "json") == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert {n["name"] for n in nodes if n["kind"] == "parameter"} == {"block.weight", "block.bias"}
    assert nodes[0]["module"] == "head"
    known = {node["id"] for node in nodes}
    assert all(edge[0] in known for node in nodes for edge in node["to"] if edge)


def test_a_loss_without_a_graph_is_explained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = ("./net.py:Quiet", "input.shape=[3,4]")
    assert run(monkeypatch, *quiet) == 3
    out, err = capsys.readouterr()
    assert "no-grad-root" in out
    assert "net.py:17" in out
    assert "error:" in err
    assert run(monkeypatch, *quiet, "-f", "json") == 3
    data = json.loads(capsys.readouterr().out)
    assert (data["status"], data["error"]["kind"]) == ("failed", "no-grad-root")
    assert [answer["cause"] for answer in data["answers"]] == ["no-grad"]


REFUSED = {
    "a name": (["--to", "stem.wieght"], "nothing in the graph is called", "did you mean"),
    "a source": (["--from", "hed", "--to", "head.weight"], "`hed`", "did you mean `head`?"),
    "a root": (["--root", "hed"], "there is no layer `hed`", "did you mean `head`?"),
    "a format": (["-f", "sgv"], "unknown format `sgv`", "did you mean `svg`?"),
    "a suffix": (["-o", "g.jpg"], "the suffix `.jpg`", "use one of"),
    "no suffix": (["-o", "g"], "no suffix in `g`", "use one of"),
    "a folder": (["-o", "no/g.svg"], "no such folder", "mkdir"),
    "a measure": (["--by", "saves"], "unknown measure `saves`", "did you mean `saved`?"),
    "a direction": (["--direction", "lr"], "unknown direction `lr`", "did you mean `LR`?"),
    "a direction in a tree": (["--direction", "LR"], "is for pictures, not for terminal", "svg"),
    "views of a record": (["--hide-views", "-f", "json"], "json hides no views", "drop"),
    "a depth": (["--depth", "-1"], "`--depth -1`", "0 or more"),
    "no time": (["--layout-timeout", "0"], "`--layout-timeout 0`", "more than 0"),
    "not a time": (["--layout-timeout", "nan"], "`--layout-timeout nan`", "more than 0"),
    "a pattern": (["--expand", "heed.**"], "`heed.**` matches no", "head"),
    "layers": (["-l", "stam"], "`stam` matches no", "stem"),
    "backwards": (["--from", "block", "--to", "head", "-f", "dot"], "no path", "other way round"),
    "what is cut": (["--to", "stem.weight", "-f", "dot"], "`stem.weight` is not in", "cut"),
    "why it is cut": (["--to", "stem", "-f", "graphml"], ".detach()", "net.py:12"),
    "full and a depth": (["--full", "--depth", "0"], "`--full` shows everything", "one of them"),
    "a pattern for json": (["--expand", "heed", "-f", "json"], "`heed` matches no", "head"),
    "a color": (["--color", "red"], "unknown color mode", "auto"),
    "two models": (["net.py"], "one MODEL, please", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_bad_wishes_are_refused(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options, said, help = REFUSED[case]
    assert run(monkeypatch, "net.yaml", *options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert help in err


SAVED = {
    "missing": (None, "there is no file `g.json`"),
    "empty": ("", "the graph is empty"),
    "not json": ("{", "not JSON"),
    "a report": ('{"schema": "gradscope.report/2"}', "not a graph but a report"),
    "of another time": ('{"schema": "gradscope.graph/9"}', "its `schema` is"),
    "a list": ("[]", "it has no `schema`"),
    "a node": (
        '{"schema": "gradscope.graph/2", "run": {"model": "", "device": "", "dtype": "",'
        ' "mode": "", "seed": 0, "steps": 1, "loss": ""}, "nodes": [{"id": "0"}]}',
        "g.json (nodes[0].id)",
    ),
}


@pytest.mark.parametrize("case", SAVED)
def test_a_file_that_is_no_graph_is_refused(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = SAVED[case]
    if text is not None:
        Path("g.json").write_text(text)
    assert run(monkeypatch, "g.json") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


RUNNING = {
    "--root": ["--root", "head"],
    "--device": ["--device", "cpu"],
    "--dtype": ["--dtype", "float64"],
    "--seed": ["--seed", "0"],
    "--lines": ["--lines"],
    "--no-lines": ["--no-lines"],
    "--set": ["--set", "seed=1"],
    "--allow": ["--allow", "pkg"],
    "seed=1": ["seed=1"],
}


@pytest.mark.parametrize("case", RUNNING)
def test_a_saved_graph_is_not_run_again(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("g.json").write_text(record_json.dumps(samples.mlp()))
    assert run(monkeypatch, "g.json", *RUNNING[case]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "a saved graph cannot run again" in err
    assert f"`{case}`" in err


def test_a_saved_graph_obeys_what_chooses_from_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("g.json").write_text(record_json.dumps(samples.resnet()))
    texts = []
    for options in (
        [],
        ["--exclude", "layer1.**"],
        ["-l", "fc"],
        ["--depth", "0"],
        ["--expand", "layer1.1"],
        ["--from", "fc", "--to", "stem"],
        ["--by", "saved"],
    ):
        assert run(monkeypatch, "g.json", "--width", "100", *options) == 0
        texts.append(capsys.readouterr().out)
    assert len(set(texts)) >= len(texts) - 1  # a small graph is open: --expand may change nothing


NOT_IN_IT = {
    "-l": (["-l", "layer2"], "`layer2` matches no module of the graph"),
    "--exclude": (["--exclude", "layer2"], "`layer2` matches no module of the graph"),
    "all of it": (["--exclude", "**"], "leave no module of the graph"),
    "--expand": (["--expand", "layer2", "-f", "json"], "`layer2` matches no module of the graph"),
    "--from": (["--from", "layer2"], "nothing in the graph is called `layer2`"),
    "--to": (["--to", "layer2", "-f", "json"], "nothing in the graph is called `layer2`"),
}


@pytest.mark.parametrize("case", NOT_IN_IT)
def test_what_a_saved_graph_does_not_have_is_refused(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options, said = NOT_IN_IT[case]
    Path("g.json").write_text(record_json.dumps(samples.resnet()))
    assert run(monkeypatch, "g.json", *options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


@pytest.mark.parametrize("word", ["stem", "st*", "type:Linear"])
def test_a_layer_that_is_cut_off_is_answered(
    word: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "net.yaml", "--to", word) == 0
    out = capsys.readouterr().out
    assert "stem.weight, stem.bias (detached)" in out
    assert ("head" in out) is (word == "type:Linear")


def test_a_part_in_json_is_true_when_it_is_read_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "net.yaml", "--to", "head.weight", "-o", "part.json") == 0
    assert run(monkeypatch, "part.json") == 0
    out = capsys.readouterr().out
    assert "only paths from loss to head.weight" in out
    assert "saved for backward" in out
    assert "not in the graph" not in out


def test_json_answers_for_what_is_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "net.yaml", "--to", "stem.weight", "-o", "part.json") == 0
    graph = record_json.load(Path("part.json"), AutogradGraph)
    assert (graph.root, graph.part) == (None, "paths from loss to stem.weight")
    assert [answer.cause for answer in graph.answers] == ["detached"]
    assert run(monkeypatch, "part.json") == 0
    out = capsys.readouterr().out
    assert "stem.weight, stem.bias (detached)" in out
    assert "has no graph" not in out


def test_the_loss_wins_over_a_module_of_that_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("./net.py:NamedLoss", "input.shape=[3,4]", "loss=sum")
    assert run(monkeypatch, *model, "--from", "loss", "--to", "loss.weight") == 0
    assert "SumBackward0" in capsys.readouterr().out
    for word in ("loss#0", "re:loss"):
        assert run(monkeypatch, *model, "--from", word, "--to", "loss.weight") == 0
        out = capsys.readouterr().out
        assert "loss → loss.weight" in out
        assert "SumBackward0" not in out


BOOM = ("./net.py:Boom", "input.shape=[3,4]")


def test_a_run_that_failed_claims_no_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *BOOM) == 3
    out = capsys.readouterr().out
    assert "shape-mismatch" in out
    assert "not in the graph" not in out


@pytest.mark.parametrize(
    ("words", "roles"),
    [
        (("./net.py:InPlace",), {"why:", "saved", "mutated", "help:"}),
        (("./net.py:Net", "backward.repeats=2"), {"why:", "help:"}),
    ],
    ids=["in-place", "backward twice"],
)
def test_a_failing_backward_is_explained_as_inspect_does(
    words: tuple[str, ...],
    roles: set[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def explanation(command: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["gradscope", command, *words, "input.shape=[3,4]"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 3
        out = capsys.readouterr().out
        block = out[out.index("error:") :].split("\n\n")[0].splitlines()
        first = next(i for i, line in enumerate(block) if line.startswith("  why:"))
        return block[first:]

    graph = explanation("graph")
    assert graph == explanation("inspect")
    assert {line.split()[0] for line in graph} >= roles


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "dot", "mmd", "graphml"])
def test_a_picture_of_a_failed_run_replaces_no_good_one(
    suffix: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(f"g.{suffix}")
    file.write_text("a good picture")
    for model, code in (("Boom", 3), ("Quiet", 3), ("Stopped", 130)):
        words = (f"./net.py:{model}", "input.shape=[3,4]", "-o", str(file), "--force")
        assert run(monkeypatch, *words) == code
        err = capsys.readouterr().err
        assert f"nothing was written to `{file}`" in err
        assert "shown" not in err
        assert file.read_text() == "a good picture"


def test_a_saved_graph_of_a_failed_run_is_no_picture(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *BOOM, "-o", "g.json") == 3
    assert run(monkeypatch, "g.json", "-f", "dot") == 2
    assert "its graph is incomplete" in capsys.readouterr().err
    assert run(monkeypatch, "g.json") == 0
    assert "shape-mismatch" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", ["inf", "1e30"])
def test_a_timeout_may_be_as_long_as_it_takes(
    seconds: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygraphviz", reason="pictures need Graphviz")
    assert run(monkeypatch, "net.yaml", "--layout-timeout", seconds, "-f", "svg") == 0
    assert "<svg" in capsys.readouterr().out


def test_show_says_what_draws_a_graph(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "net.yaml", "-o", "g.json") == 0
    monkeypatch.setattr("sys.argv", ["gradscope", "show", "g.json"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "gradscope graph g.json" in capsys.readouterr().err
