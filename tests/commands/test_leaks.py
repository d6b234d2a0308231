"""``gradscope leaks`` from end to end: formats, exit codes, maps, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gradscope import cli

NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, masked=False):
        super().__init__()
        self.embedding, self.masked = nn.Embedding(20, 8), masked

    def forward(self, ids):
        x = self.embedding(ids)
        scores = x @ x.mT
        if self.masked:
            hidden = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
            scores = scores.masked_fill(hidden, float("-inf"))
        return scores.softmax(-1) @ x

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)

    def forward(self, ids):
        return self.embedding(ids).reshape(3, 5)
"""
NET_AND_INPUT = ("./net.py:Net", "input={tokens: [[3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4]]}")


@pytest.fixture
def gradscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """A command as the process runs it: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET, encoding="utf-8")

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gradscope", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return (int(caught.value.code or 0), *capsys.readouterr())

    return command


def test_a_leak_in_every_format(gradscope):
    code, out, _ = gradscope("leaks", *NET_AND_INPUT, "--causal", "--width", "100")
    assert code == 1
    assert "error GS901 sees-the-future the model itself: `softmax` at net.py:15" in out
    assert "net.py:15: return scores.softmax(-1) @ x" in out
    code, out, _ = gradscope("leaks", *NET_AND_INPUT, "--causal", "-f", "markdown")
    assert code == 1
    assert "- **error GS901 sees\\-the\\-future" in out or "- **error GS901" in out
    code, out, _ = gradscope("leaks", *NET_AND_INPUT, "--causal", "-f", "json")
    assert code == 1
    report = json.loads(out)
    assert (report["schema"], report["status"]) == ("gradscope.leaks/1", "findings")
    axes = {one["axis"]: one for one in report["axes"]}
    assert axes["time"]["source"] == {
        "file": "net.py",
        "line": 15,
        "text": "return scores.softmax(-1) @ x",
    }
    assert axes["time"]["layer"] == ""
    assert axes["time"]["operation"] == "softmax"
    keys = {"axis", "verdict", "effect", "reach", "layer", "call", "operation", "source"}
    assert {*keys, "message", "advice"} <= set(axes["batch"])
    assert axes["batch"]["verdict"] == "clean"


def test_exit_codes(gradscope):
    assert gradscope("leaks", *NET_AND_INPUT, "--causal", "--fail-on", "never")[0] == 0
    assert gradscope("leaks", *NET_AND_INPUT)[0] == 0
    assert gradscope("leaks", *NET_AND_INPUT, "model.masked=true", "--causal")[0] == 0


def test_only_one_axis(gradscope):
    code, out, _ = gradscope("leaks", *NET_AND_INPUT, "--causal", "--only", "batch", "-f", "json")
    assert code == 0
    assert [one["axis"] for one in json.loads(out)["axes"]] == ["batch"]


def test_a_map_of_a_causal_model_is_a_triangle(gradscope):
    words = ("leaks", *NET_AND_INPUT, "model.masked=true", "--causal")
    _, out, _ = gradscope(*words, "--map", "-")
    rows = [line.split("│")[1] for line in out.splitlines() if line.count("│") == 2]
    assert [len(row.rstrip()) for row in rows[:5]] == [1, 2, 3, 4, 5]
    _, out, _ = gradscope(*words, "--map", "map.png")
    assert "│" not in out
    assert Path("map.png").read_bytes().startswith(b"\x89PNG")
    gradscope(*words, "--map", "map.html")
    assert "<html" in Path("map.html").read_text(encoding="utf-8").lower()
    code, _, err = gradscope(*words, "--map", "map.png")
    assert code == 2
    assert "map.png" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--axis", "tiem=1"), "did you mean `time`?"),
        (("--axis", "time"), "`--axis time` has no `=`"),
        (("--axis", "time=x"), "names no dimension"),
        (("--axis", "time=7", "--causal"), "no input has a dimension 7"),
        (("--only", "future"), "there is no axis `future`"),
        (("--map", "map.txt"), "map.txt"),
        (("--fail-on", "sometimes"), "sometimes"),
        (("device=meta",), "`meta` has shapes alone"),
    ],
)
def test_what_is_refused(gradscope, words, message):
    code, out, err = gradscope("leaks", *NET_AND_INPUT, *words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_model_that_raises(gradscope):
    model, given = "./net.py:Broken", NET_AND_INPUT[1]
    code, out, err = gradscope("leaks", model, given, "-f", "json")
    assert code == 3
    assert json.loads(out)["status"] == "failed"
    assert "shape" in err
