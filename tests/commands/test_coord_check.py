"""``gradscope coord-check`` from end to end: formats, exit codes, the picture, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gradscope import cli

NET = """\
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=8):
        hidden = nn.Linear(width, width)
        super().__init__(nn.Linear(4, width), nn.ReLU(), hidden, nn.Linear(width, 3))

class Long(nn.Sequential):
    def __init__(self, width=8):
        first, rest = nn.Linear(4, width), [nn.Linear(width, width) for _ in range(6)]
        super().__init__(first, *rest, nn.Linear(width, 3))
"""
NET_AND_SCALE = (
    *("coord-check", "./net.py:Net", "input.shape=[2,4]", "target=[0,1]"),
    *("optimizer={_target_: adam, lr: 0.01}", "--scale", "width=16,256"),
    *("--seeds", "4", "--steps", "2"),
)


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


def test_adam_with_one_rate_grows_and_fails(gradscope):
    code, out, _ = gradscope(*NET_AND_SCALE, "-f", "json")
    assert code == 1
    report = json.loads(out)
    assert (report["schema"], report["status"]) == ("gradscope.coord_check/1", "findings")
    assert report["scale"] == [{"key": "model.width", "values": [16, 256]}]
    assert [one["name"] for one in report["layers"]] == ["0", "1", "2", "3"]
    assert [one["output"] for one in report["layers"]] == [False] * 3 + [True]
    assert report["layers"][2]["verdict"] == "grows"
    assert report["parameters"] == [80 + 272 + 51, 1280 + 256 * 257 + 257 * 3]
    assert len(report["layers"][0]["changes"]) == 3


@pytest.mark.slow
def test_it_is_shown_in_every_format(gradscope):
    code, out, _ = gradscope(
        *NET_AND_SCALE, "--width", "100", "--plot", "a.png", "--fail-on", "never"
    )
    assert code == 0
    assert "model.width 16, 256 · 2 steps of Adam · seeds 0–3" in out
    assert "2           Linear" in out
    assert "grows with the width, in 2 steps: the change of `2`" in out
    assert "help: with Adam, µP's learning rates are" in out
    assert "This holds for widths 16–256, 2 steps, 4 seeds." in out
    assert Path("a.png").stat().st_size > 1000
    _, narrow, _ = gradscope(*NET_AND_SCALE, "--width", "60")
    assert max(map(len, narrow.splitlines())) <= 60
    _, page, _ = gradscope(*NET_AND_SCALE, "-f", "html")
    assert "change after 2 steps" in page
    _, text, _ = gradscope(*NET_AND_SCALE, "-f", "markdown")
    assert "| `3 (output)` | Linear |" in text


@pytest.mark.slow
def test_a_rate_that_falls_with_the_width(gradscope):
    groups = r"{_target_: adam, lr: 0.001, param_groups: [{params: 're:[1-6]\.weight'}]}"
    words = (
        *("coord-check", "./net.py:Long", "input.shape=[2,4]", "target=[0,1]", "--seeds", "4"),
        *(f"optimizer={groups}", "--scale", "width=16,256", "--layers", "re:[1-6]", "-f", "json"),
    )
    verdicts = []
    for rates in ("0.001,0.001", "0.001,0.0000625"):
        _, out, _ = gradscope(*words, "--scale", f"optimizer.param_groups.0.lr={rates}")
        layers = json.loads(out)["layers"]
        verdicts.append([one["verdict"] == "grows" for one in layers if not one["output"]])
    assert verdicts == [[True] * 6, [False] * 6]


WRONG = {
    "no scale": ((), "nothing to scale"),
    "no such argument": (("--scale", "widht=8,16"), "takes no argument `widht`"),
    "no such layer": (("--scale", "width=8,16", "-l", "nothing"), "nothing"),
    "one seed": (("--scale", "width=8,16", "--seeds", "1"), "--seeds"),
    "no such severity": (("--scale", "width=8,16", "--fail-on", "bad"), "bad"),
    "nothing changes": (("--scale", "optimizer.lr=1,2", "optimizer=sgd"), "403 parameters"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(gradscope, words, message):
    model = ("./net.py:Net", "input.shape=[2,4]", "target=[0,1]", "model.width=16")
    if any("width" in word for word in words):
        model = model[:-1]
    code, out, err = gradscope("coord-check", *model, *words)
    assert (code, out) == (2, "")
    assert message in err
