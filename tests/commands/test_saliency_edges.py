"""``gradscope saliency`` where pictures, names, files and numbers are not the usual ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import gradscope
from gradscope import cli
from gradscope.api.attributing import SaliencyRequest
from gradscope.demo import DIGITS
from gradscope.errors import OptionError

EIGHT = str(DIGITS[0][0])
DEMO = ("-m", "demo")
NET = ("-m", "./net.py:Net")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
        Image.new("RGB", (24, 20), "teal").save(f"{name}/x.png")
    Path("a/notes.txt").write_text("no picture")
    Path("net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(3, 4, 3, padding=1, stride=2)\n"
        "        self.norm = nn.BatchNorm2d(4)\n"
        "        self.fc = nn.Linear(4, 5)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))\n"
    )
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["gradscope", "saliency", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_nan_in_the_picture_is_said_and_drawn(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("nan.npy", np.full((3, 16, 16), np.nan, np.float32))
    assert run(monkeypatch, "nan.npy", *NET) == 0
    assert "NaN or Inf" in capsys.readouterr().out
    assert run(monkeypatch, "nan.npy", *NET, "-f", "json") == 0

    def no_constant(token: str) -> None:
        raise ValueError(token)

    json.loads(capsys.readouterr().out, parse_constant=no_constant)


def test_a_folder_stands_for_its_pictures(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "a", *NET) == 0
    assert "wrote x-grad-cam-class-" in capsys.readouterr().out
    Path("empty").mkdir()
    assert run(monkeypatch, "empty", *NET) == 2
    assert "holds no picture" in capsys.readouterr().err


def test_every_picture_has_files_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (24, 20), "olive").save("x-2.png")
    Path("maps").mkdir()
    words = ("--method", "gradient", "--save-maps", "maps")
    assert run(monkeypatch, "a/x.png", "b/x.png", "x-2.png", *NET, *words, "-o", "a") == 0
    assert len(list(Path("a").glob("*-gradient-class-*.png"))) == 3
    saved = {"x-gradient.npy", "x-2-gradient.npy", "x-2-2-gradient.npy"}
    assert {path.name for path in Path("maps").iterdir()} == saved


def test_a_map_that_exists_stays_and_the_next_is_numbered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("maps").mkdir()
    Path("maps/x-why-not.npy").touch()
    words = ("--method", "gradient", "--why-not", "1", "--save-maps", "maps")
    assert run(monkeypatch, "a/x.png", *NET, *words) == 0
    assert "maps/x-why-not-2.npy" in capsys.readouterr().out
    assert Path("maps/x-why-not.npy").stat().st_size == 0
    assert run(monkeypatch, "a/x.png", *NET, *words, "--force") == 0
    assert Path("maps/x-why-not.npy").stat().st_size > 0


def test_a_later_page_that_exists_stops_before_the_first_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(9):
        Image.new("RGB", (24, 20), (9 * i, 80, 90)).save(f"b/{i}.png")
    Path("sheet-2.png").touch()
    assert run(monkeypatch, "b", *NET, "-o", "sheet.png") == 2
    assert "`sheet-2.png` exists" in capsys.readouterr().err
    assert not Path("sheet.png").exists()
    assert run(monkeypatch, "b", *NET, "-o", "sheet.png", "--force") == 0


@pytest.mark.parametrize("way", ["override", "file"])
def test_a_mode_that_is_asked_for_is_taken(
    way: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.yaml").write_text("model: ./net.py:Net\nmode: train\n")
    words = ("-m", "train.yaml") if way == "file" else (*NET, "mode=train")
    assert run(monkeypatch, "a/x.png", *words, "--method", "gradient", "-f", "json") == 0
    assert json.loads(capsys.readouterr().out)["run"]["mode"] == "train"
    assert run(monkeypatch, "a/x.png", *NET, "-f", "json") == 0
    assert json.loads(capsys.readouterr().out)["run"]["mode"] == "eval"


def test_one_bad_picture_among_several_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (1, 1)).save("one.png")
    assert run(monkeypatch, "a/x.png", "one.png", *NET) == 2
    err = capsys.readouterr().err
    assert "one.png" in err
    assert "not a spatial map" in err


REFUSED = {
    "versus itself": (("--target", "1", "--versus", "1"), "class 1 cannot be compared with itself"),
    "not a number": (("--method", "smooth-grad", "--option", "sigma=.nan"), "is not a number"),
    "infinite": (("--method", "occlusion", "--option", "baseline=.inf"), "is not a number"),
    "a method's case": (("--method", "Grad_CAM"), "did you mean `grad-cam`?"),
    "a folder to be": (("-o", "none/"), "mkdir -p 'none'"),
    "pictures to stdout": (("-o", "-"), "-f json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_wishes_are_refused(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, said = REFUSED[case]
    assert run(monkeypatch, EIGHT, *DEMO, *words) == 2
    assert said in capsys.readouterr().err


def test_blank_contrasts_say_what_they_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each picture's best class is explained: here it is the one to compare with.
    assert run(monkeypatch, EIGHT, *DEMO, "--versus", "8", "-f", "json") == 0
    (record,) = json.loads(capsys.readouterr().out)["images"][0]["maps"]
    assert "class 8 itself" in record["note"]


@pytest.mark.slow
def test_checks_of_a_slow_method_take_fewer_samples_and_say_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--method", "rise", "--option", "n_samples=600", "--check", "-f", "json")
    assert run(monkeypatch, EIGHT, *DEMO, *words) == 0
    data = json.loads(capsys.readouterr().out)
    (record,) = data["images"][0]["maps"]
    assert record["options"]["n_samples"] == 600
    assert any("rise" in said and "400" in said for said in data["run"]["notices"])
    assert {"similarity", "spread"} <= record["checks"].keys()


def test_a_model_in_float64_gets_its_input_in_float64() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).double()
    with torch.no_grad():
        net[1].weight.mul_(1e6)
    x = torch.rand(1, 3, 4, 4, dtype=torch.float64)
    found = gradscope.saliency(net, x, methods=["gradient"], target=0)
    assert found.report.images[0].score == pytest.approx(float(net(x).detach()[0, 0]), rel=1e-12)


def test_a_live_model_is_not_changed_in_training_mode() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    before = {key: value.clone() for key, value in net.state_dict().items()}
    found = gradscope.saliency(net, torch.rand(2, 3, 8, 8), methods=["gradient"], mode="train")
    assert found.report.run.mode == "train"
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    with pytest.raises(OptionError, match="statistics"):
        gradscope.saliency(net, torch.rand(2, 3, 8, 8), methods=["occlusion"], mode="train")


def test_a_picture_is_not_run_just_to_count_classes_that_nobody_named() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    runs: list[int] = []
    net.register_forward_hook(lambda *_: runs.append(1))
    gradscope.saliency(net, torch.rand(1, 3, 4, 4), methods=["gradient"])
    assert len(runs) == 1
    gradscope.saliency(net, torch.rand(1, 3, 4, 4), methods=["gradient"], target=1)
    assert len(runs) == 3


def test_a_file_with_an_equals_sign_is_a_picture(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (24, 20), "teal").save("lower=1.png")
    assert run(monkeypatch, "lower=1.png", "seed=3", *NET) == 0
    out = capsys.readouterr().out
    assert "wrote lower-1-grad-cam-class-" in out
    assert "seed 3" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["saliency", "torchvision:resnet18", "photo.png"], "-m torchvision:resnet18 photo.png"),
        (["saliency", "a/x.png", "./net.py:Net"], "-m ./net.py:Net a/x.png"),
        (["saliency", "model.yaml"], "-m model.yaml IMAGE"),
        (["saliency", "demo", "a/x.png"], "-m demo a/x.png"),
        (["features", "embed", "timm:vit_tiny_patch16_224", "a"], "-m timm:vit_tiny_patch16_224 a"),
        (["features", "activations", "hf:org/name", "a/x.png"], "-m hf:org/name a/x.png"),
        (["features", "neighbors", "net.py", "a"], "-m net.py a"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_model_among_the_pictures_has_an_option(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys, folder: Path
) -> None:
    Path("net.py").unlink()
    monkeypatch.setattr("sys.argv", ["gradscope", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert " is a model, not a picture\n" in err
    command = " ".join(words[: 1 + (words[0] == "features")])
    assert f"= help: name the model with `-m`: `gradscope {command} {said}`" in err


@pytest.mark.parametrize("word", ["no:such.png", "missing.png", "a:b.npy"])
def test_a_picture_that_is_missing_is_no_model(
    word: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    assert run(monkeypatch, word, *NET) == 2
    assert "is a model" not in capsys.readouterr().err


def test_a_method_may_be_written_as_its_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    outs = []
    for name in ("input_x_gradient", "input-x-gradient"):
        assert run(monkeypatch, EIGHT, *DEMO, "--method", name, "-f", "json") == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]
    assert SaliencyRequest(methods=("grad_cam",)) == SaliencyRequest(methods=("grad-cam",))
    assert run(monkeypatch, EIGHT, *DEMO, "--method", "grad_cma") == 2
    assert "did you mean `grad-cam`?" in capsys.readouterr().err
