"""Bad input from end to end: exit code, message, place, remedy, and nothing on standard output."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gradscope import cli

MODEL = "model: demo\n"


class Payload:
    """Unpickled without care, this leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.mark}'",)


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small picture file of many pixels."""
    file = tmp_path_factory.mktemp("bomb") / "bomb.png"
    Image.new("1", (12_000, 12_000)).save(file)
    return file


@pytest.fixture
def folder(tmp_path: Path, bomb: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    payload = Payload(tmp_path / "ran")
    torch.save({"conv1.weight": payload}, "evil.pt")
    Path("evil.pth").write_bytes(pickle.dumps(payload))
    np.save("evil.npy", np.array([payload], dtype=object), allow_pickle=True)
    save_file({"conv1.weight": torch.zeros(10, 3, 5, 5)}, "shapes.safetensors")
    Path("cut.safetensors").write_bytes(Path("shapes.safetensors").read_bytes()[:500])
    Path("text.png").write_text("not a picture")
    Path("bomb.png").hardlink_to(bomb)
    Path("alias.py").write_text("from os import system as Net\n")
    Path("taken.json").write_text("{}")
    return tmp_path


def ends(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["gradscope", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


YAML = {
    "empty": ("", "the config is empty", "--> c.yaml"),
    "a list": ("- model: demo\n", "a config is a mapping of keys, found a list of 1", "c.yaml:1:1"),
    "unknown key": ("wieghts: x\n" + MODEL, "unknown key `wieghts`", "did you mean `weights`?"),
    "wrong type": (MODEL + "steps: many\n", "`steps` expects an integer", "c.yaml:2:8 (steps)"),
    "duplicate": (MODEL + "seed: 1\nseed: 2\n", "duplicate key `seed`", "c.yaml:3:1"),
    "unknown model": ("model: torchvision:resnet19\n", "no model `resnet19`", "`resnet18`?"),
    "os.system": (
        "model: {_target_: os.system, command: touch ran}\n",
        "`os.system` may not be imported",
        "c.yaml:1:19 (model._target_)",
    ),
    "an alias of it": (
        "model: {_target_: alias.Net, command: touch ran}\n",
        "`alias.Net`, which is `posix.system`, may not be imported",
        "c.yaml:1:19 (model._target_)",
    ),
    "a Python tag": (
        'model: !!python/object/apply:os.system ["touch ran"]\n',
        "unknown tag",
        ":1:8",
    ),
    "no blank": (
        MODEL + "optimizer: {_target_:torch.optim.SGD}\n",
        "`_target_:torch.optim.SGD` is read as one key without a value",
        "YAML needs a blank after the colon: `{_target_: torch.optim.SGD, …}`",
    ),
    "unknown loss": (
        MODEL + "loss: cross\n",
        "`loss` expects the name",
        "the names are cross_entropy",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", YAML)
def test_a_config_that_is_wrong(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message, remedy = YAML[case]
    Path("c.yaml").write_text(text)
    assert ends(["inspect", "c.yaml"], monkeypatch) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("error: ")
    assert message in err
    assert remedy in err
    assert "Traceback" not in err
    assert not (folder / "ran").exists()
    problems = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(problems) == len(set(problems)), "one mistake is one error"


WORDS = {
    "missing file": (["nothing.yaml"], "there is no file `nothing.yaml`"),
    "pickle": (
        ["demo", "checkpoint=evil.pt"],
        "evil.pt is not loaded: it would run `posix.system`",
    ),
    "bare pickle": (["demo", "checkpoint=evil.pth"], "evil.pth is not loaded: it contains more"),
    "pickled input": (["demo", "input.file=evil.pt"], "evil.pt holds more than tensors"),
    "bare pickled input": (["demo", "input.file=evil.pth"], "evil.pth holds more than tensors"),
    "pickled array": (["demo", "target=evil.npy"], "evil.npy holds Python objects"),
    "cut off": (["demo", "checkpoint=cut.safetensors"], "cut.safetensors cannot be read"),
    "shapes": (
        ["demo", "checkpoint=shapes.safetensors"],
        "[10, 3, 5, 5] in the file, [10, 1, 5, 5]",
    ),
    "no picture": (["demo", "input.image=text.png"], "text.png is not a picture"),
    "bomb": (["demo", "input.image=bomb.png"], "more than 89,478,485 pixels"),
    "pattern": (["demo", "-l", "cnov1"], "pattern `cnov1` matches no layer"),
    "excluded": (["demo", "--exclude", "cnov1"], "pattern `cnov1` matches no layer"),
    "output": (["demo", "-o", "taken.json"], "`taken.json` exists"),
    "no folder": (["demo", "-o", "nowhere/a.json"], "no such folder: `nowhere`"),
    "memory": (["demo", "input.shape=[100000, 1, 100000, 100000]"], "there is no memory for"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", WORDS)
def test_a_command_line_that_is_wrong(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = WORDS[case]
    assert ends(["inspect", *words], monkeypatch) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    assert not (folder / "ran").exists()
    assert (folder / "taken.json").read_text() == "{}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(["inspect", "--device", "cuda"], monkeypatch) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "device `cuda` is not there" in err
    assert "leave `device` out" in err


def test_the_payloads_would_run_if_read_without_care(folder: Path) -> None:
    torch.load("evil.pt", weights_only=False)
    assert (folder / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "phase", "message"),
    [
        (["target=[12]"], "loss", "Target 12 is out of bounds"),
        (["input.shape=[1, 3, 28, 28]"], "forward", "expected input[1, 3, 28, 28]"),
    ],
)
def test_a_model_that_raises_still_writes_a_whole_report(
    words: list[str],
    phase: str,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ends(["inspect", "demo", *words, "-f", "json"], monkeypatch) == 3
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert (report["schema"], report["status"]) == ("gradscope.report/2", "failed")
    assert report["error"]["phase"] == phase
    assert message in report["error"]["message"]
    assert message in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_markup_and_what_does_not_print_stay_text_in_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["[red]", "[/]", "na\u00efve", "a\nb", "\x1b[31m", "a|b", "=1", "\u5c42"]
    Path("odd.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        for name in {names!r}:\n"
        "            self.add_module(name, nn.Linear(4, 4))\n"
    )
    assert (
        ends(["inspect", "./odd.py:Net", "input.shape=[2, 4]", "--color", "always"], monkeypatch)
        == 0
    )
    out = capsys.readouterr().out
    for shown in ("[red]", "[/]", "na\u00efve", r"a\nb", r"\x1b[31m", "a|b", "=1", "\u5c42"):
        assert f"{shown}.weight" in out
