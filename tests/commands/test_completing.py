"""Shell completion: values of options, models, classes, keys; nothing is imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from gradscope import cli
from gradscope.cli import completion
from gradscope.records import json as record_json
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.records.run import RunInfo


@pytest.fixture
def offered(monkeypatch, tmp_path: Path):
    """Complete words as bash does: it takes `:` and `=` for ends of words."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.stem = nn.Linear(2, 2)\n"
    )
    (tmp_path / "model.yaml").write_text("model: demo\n")
    run = RunInfo("demo", "cpu", "float32", "train", seed=0, steps=1, loss="sum")
    calls = tuple(ModuleCall(name, "Linear", call=0, order=i) for i, name in enumerate("ab"))
    (tmp_path / "report.json").write_text(record_json.dumps(Report("ok", run, calls=calls)))
    (tmp_path / "gradscope-runs").mkdir()
    for name in ("gradscope-runs/train-1.db", "one.db"):
        (tmp_path / name).touch()
    command = get_command(cli.app())

    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", "\n".join(("gradscope", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        shell = completion.WholeWords(command, {}, "gradscope", "_GRADSCOPE_COMPLETE")
        return shell.complete().split()

    return ask


VALUES = [
    (("inspect", "--color", ""), ["always", "auto", "never"]),
    (("inspect", "--table", "p"), ["parameters"]),
    (("inspect", "--fail-on", "w"), ["warning"]),
    (("inspect", "--preset", "s"), ["sagemaker"]),
    (("inspect", "--columns", "norm,grad_i"), "norm,grad_in"),
    (("inspect", "--columns", "+ma"), ["+max"]),
    (("inspect", "--table", "parameters", "--columns", "upd"), ["update", "update_rms"]),
    (("inspect", "--sort", "norm", ":"), ["asc", "desc"]),
    (("rules", "GS30"), ["GS301", "GS302", "GS303", "GS304", "GS305"]),
    (("check", "--select", "GS101,explo"), ["GS101,exploding-gradient"]),
    (("saliency", "--method", "guided"), ["guided-backprop", "guided-grad-cam"]),
    (("graph", "--by", ""), ["gradient", "saved"]),
    (("graph", "-f", "m"), ["mermaid"]),
    (("why", "-f", ""), ["html", "json", "markdown", "terminal"]),
    (("inspect", "torchvision", ":", "resnet1"), ["resnet101", "resnet152", "resnet18"]),
    (("inspect", "demo", ":"), ["lecture", "scouter", "scouter-negative"]),
    (("inspect", "./net.py", ":"), ["Net"]),
    (("inspect", "./net.py", ":", "Net", "-l", ""), ["stem"]),
    (("graph", "report.json", "-l", ""), ["a", "b"]),
    (("inspect", "./n"), ["./net.py:"]),
    (("show", ""), ["gradscope-runs/", "gradscope-runs/train-1.db", "one.db", "report.json"]),
    (("show", "gradscope-runs/"), ["gradscope-runs/train-1.db"]),
    (("show", "tr"), ["train-1"]),
    (("live", ""), ["gradscope-runs/", "gradscope-runs/train-1.db", "one.db"]),
    (("export", "o"), ["one.db"]),
    (("why", "tr"), ["train-1"]),
    (("diff", "gradscope-runs/t"), ["gradscope-runs/train-1.db"]),
    (("inspect", "demo", "loss", "=", "cross"), ["cross_entropy"]),
    (("inspect", "demo", "mode", "="), ["eval", "train"]),
    (("inspect", "demo", "optimizer", "=", "adamw"), ["adamw"]),
    (("inspect", "--set", "rules.fail"), ["rules.fail_on="]),
    (("inspect", "demo", "backward.retain_graph", "=", "t"), ["true"]),
]


@pytest.mark.parametrize(("words", "answer"), VALUES, ids=[" ".join(w) for w, _ in VALUES])
def test_values(words, answer, offered) -> None:
    found = offered(*words)
    if isinstance(answer, str):
        assert answer in found
    else:
        assert sorted(found) == answer


def test_a_first_word_is_a_source_or_a_file(offered) -> None:
    found = offered("inspect", "")
    assert {"demo", "torchvision:", "timm:", "hf:", "model.yaml", "net.py:"} <= set(found)
    assert "loss=" not in found
    assert "loss=" in offered("inspect", "demo", "")


def test_words_that_bash_took_apart() -> None:
    assert completion.joined(["a", "x", ":", "y", "k", "=", ""]) == ["a", "x:y", "k="]
    assert completion.joined(["k", "=", "v", "b"]) == ["k=v", "b"]


def test_a_broken_file_offers_nothing(offered, tmp_path: Path) -> None:
    Path("report.json").write_text("{")
    assert offered("graph", "report.json", "-l", "") == []
    Path("net.py").write_text("class (")
    assert offered("inspect", "./net.py", ":") == []


def test_the_script_adds_no_blank_after_the_beginning_of_a_word(monkeypatch) -> None:
    completion.install()
    from typer._completion_shared import get_completion_script

    script = get_completion_script(
        prog_name="gradscope", complete_var="_GRADSCOPE_COMPLETE", shell="bash"
    )
    assert "compopt -o nospace" in script
