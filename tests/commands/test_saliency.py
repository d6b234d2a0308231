"""``gradscope saliency`` from end to end: pictures in, pictures out, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image

import gradscope
from gradscope import cli, plugins
from gradscope.demo import DIGITS
from gradscope.errors import OptionError

EIGHT = str(DIGITS[0][0])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ramp = np.linspace(0, 255, 90 * 120 * 3).reshape(90, 120, 3).astype(np.uint8)
    Image.fromarray(ramp).save("photo.jpg")
    Path("net.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(3, 4, 3)\n"
        "        self.fc = nn.Linear(4, 5)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.conv(x).relu().mean((2, 3)))\n"
        "class Flat(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(784, 3)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x.flatten(1))\n"
        "class Broken(Net):\n"
        "    def forward(self, x):\n"
        "        raise ValueError('no eyes')\n"
    )
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["gradscope", "saliency", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_what_it_does_not_run_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("changed.yaml").write_text(
        "model: demo\naccumulate: 2\ninterventions:\n- {layers: conv1, do: scale, value: 0}\n"
    )
    assert run(monkeypatch, EIGHT, "-m", "changed.yaml", "-f", "json") == 0
    notices = json.loads(capsys.readouterr().out)["run"]["notices"]
    left = [notice.partition(":")[0] for notice in notices if "ignored" in notice]
    assert left == ["interventions", "accumulate"]


def test_without_arguments_a_digit_is_explained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 0
    out = capsys.readouterr().out
    assert "wrote digit-8-grad-cam-class-8-relu2.png" in out
    assert "relu2" in out
    with Image.open("digit-8-grad-cam-class-8-relu2.png") as picture:
        assert min(picture.size) > 200
    assert run(monkeypatch) == 0
    assert "wrote digit-8-grad-cam-class-8-relu2-2.png" in capsys.readouterr().out


def test_json_holds_what_the_contract_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("maps").mkdir()
    words = ("-m", "demo", "--method", "gradient", "--method", "occlusion", "--target", "3")
    assert run(monkeypatch, EIGHT, *words, "--save-maps", "maps", "-f", "json") == 0

    def no_constant(token: str) -> Any:
        raise ValueError(token)

    data = json.loads(capsys.readouterr().out, parse_constant=no_constant)
    assert data["schema"] == "gradscope.saliency/1"
    (image,) = data["images"]
    assert image["target"] == 3
    assert [m["method"] for m in image["maps"]] == ["gradient", "occlusion"]
    for record in image["maps"]:
        assert {"layer", "options", "file", "min", "max", "checks"} <= record.keys()
        values = np.load(record["file"], allow_pickle=False)
        assert values.shape == (28, 28)
        assert values.dtype == np.float32
        assert values.min() == pytest.approx(record["min"])
        assert values.max() == pytest.approx(record["max"])
    assert not list(Path().glob("*.png"))


def test_several_methods_share_one_sheet(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = [str(path) for path, _ in DIGITS[:2]]
    words = ("-m", "demo", "--method", "gradient", "--method", "grad-cam", "-o", "sheet.png")
    assert run(monkeypatch, *pictures, *words) == 0
    with Image.open("sheet.png") as sheet:
        assert sheet.width > 700
    assert "wrote sheet.png" in capsys.readouterr().out


@pytest.mark.slow
def test_all_leaves_out_what_the_model_cannot_have(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("-m", "demo", "--method", "all", "--option", "n_samples=5", "-f", "json")
    assert run(monkeypatch, EIGHT, *words) == 0
    data = json.loads(capsys.readouterr().out)
    made = {m["method"] for m in data["images"][0]["maps"]}
    left = set(plugins.names("gradscope.saliency")) - made
    assert "cam" in left
    assert all(any(name in said for said in data["run"]["notices"]) for name in left)


def test_why_not_and_versus_measure_what_they_claim(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(monkeypatch, EIGHT, "-m", "demo", "--versus", "3", "--why-not", "3", "-f", "json") == 0
    )
    maps = json.loads(capsys.readouterr().out)["images"][0]["maps"]
    by_name = {record["method"]: record for record in maps}
    assert by_name.keys() == {"why-not", "versus"}
    gap, against = by_name["versus"]["checks"], by_name["why-not"]["checks"]
    assert gap["after"] < gap["before"]
    assert against["after"] > against["before"]


@pytest.mark.slow
def test_trust_checks_are_in_the_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--method", "integrated-gradients", "--method", "smooth-grad", "--check")
    assert run(monkeypatch, EIGHT, "-m", "demo", *words, "-f", "json") == 0
    integrated, smooth = json.loads(capsys.readouterr().out)["images"][0]["maps"]
    assert {"residual", "deletion", "insertion_random", "similarity"} <= integrated["checks"].keys()
    assert "spread" in smooth["checks"]
    assert integrated["checks"]["residual_share"] < 0.01


def test_random_weights_are_warned_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "photo.jpg", "-m", "./net.py:Net") == 0
    assert "weights: random" in capsys.readouterr().out


def test_arrays_are_taken_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    np.save("x.npy", torch.randn(3, 20, 30).numpy())
    Path("maps").mkdir()
    words = ("-m", "./net.py:Net", "--method", "gradient", "--save-maps", "maps", "-f", "json")
    assert run(monkeypatch, "x.npy", *words) == 0
    record = json.loads(capsys.readouterr().out)["images"][0]["maps"][0]
    assert np.load(record["file"]).shape == (20, 30)


def test_without_a_network_no_other_model_explains_a_photograph(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offline(*arguments: object, **keywords: object) -> None:
        raise URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(folder / "cache"))
    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    before = set(folder.iterdir())
    assert run(monkeypatch, "photo.jpg", "-o", "cat.png") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: the weights ResNet18_Weights.IMAGENET1K_V1 cannot be fetched" in err
    assert f"put it into {folder / 'cache' / 'hub' / 'checkpoints'}" in err
    assert "name a model of yours: `-m net.yaml`" in err
    assert set(folder.iterdir()) - before <= {folder / "cache"}
    assert run(monkeypatch, "photo.jpg", "-m", "demo", "-o", "digit.png") == 0
    assert run(monkeypatch, "-o", "bundled.png") == 0
    assert "demo · cpu" in capsys.readouterr().out


def test_a_missing_picture_is_said_before_weights_are_fetched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetched(*arguments: object, **keywords: object) -> None:
        raise AssertionError("weights were fetched")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", fetched)
    monkeypatch.setattr("torch.hub.download_url_to_file", fetched)
    assert run(monkeypatch, "nowhere.png") == 2
    assert "there is no picture nowhere.png" in capsys.readouterr().err


def test_methods_are_listed_with_their_papers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--methods") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in plugins.names("gradscope.saliency"))
    assert "n_steps=50" in out
    assert run(monkeypatch, "--methods", "--width", "200") == 0
    assert "arXiv 1703.01365" in capsys.readouterr().out


DEMO = ("-m", "demo")
REFUSED = {
    "no file": (["none.jpg"], DEMO, "none.jpg", ""),
    "a text": (["net.py"], DEMO, "is not a picture", ""),
    "zero bytes": (["empty.png"], DEMO, "empty", ""),
    "a bomb": (["bomb.png"], DEMO, "too large to be opened safely", ""),
    "a broken array": (["bad.npy"], DEMO, "cannot be read as an array", "numpy.save"),
    "an array of objects": (["evil.npy"], DEMO, "cannot be read as an array", "numpy.save"),
    "a flat array": (["flat.npy"], DEMO, "has the shape [4]", ""),
    "a method": ([EIGHT], (*DEMO, "--method", "gradcam"), "`gradcam`", "`grad-cam`"),
    "an option": (
        [EIGHT],
        (*DEMO, "--method", "occlusion", "--option", "windw=3"),
        "no chosen method has an option `windw`",
        "did you mean `window`?",
    ),
    "an option's type": (
        [EIGHT],
        (*DEMO, "--method", "occlusion", "--option", "window=big"),
        "is not an integer",
        "",
    ),
    "an option without a value": ([EIGHT], (*DEMO, "--option", "window"), "gives no value", ""),
    "a class": ([EIGHT], (*DEMO, "--target", "12"), "there is no class 12", "0 to 9"),
    "a class by name": ([EIGHT], (*DEMO, "--target", "dog"), "`dog`", "0 to 9"),
    "versus": ([EIGHT], (*DEMO, "--versus", "77"), "there is no class 77", ""),
    "a layer": ([EIGHT], (*DEMO, "--layer", "conv3"), "conv3", "did you mean"),
    "no map": ([EIGHT], (*DEMO, "--layer", "fc1"), "not a spatial map", ""),
    "no maps": ([EIGHT], ("-m", "./net.py:Flat"), "makes a spatial map", "gradient"),
    "a suffix": ([EIGHT], (*DEMO, "-o", "x.gif"), "the suffix `.gif`", ".png"),
    "a folder": ([EIGHT], (*DEMO, "-o", "no/x.png"), "no such folder", "mkdir"),
    "maps": ([EIGHT], (*DEMO, "--save-maps", "none"), "no such folder", "mkdir"),
    "a format": ([EIGHT], (*DEMO, "-f", "csv"), "unknown format `csv`", "json"),
    "a model": ([EIGHT], ("-m", "torchvision:resnet81"), "resnet81", "did you mean"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_bad_wishes_are_refused(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.png").write_bytes(b"")
    if case == "a bomb":
        Image.new("1", (14_000, 14_000)).save("bomb.png")
    Path("bad.npy").write_bytes(b"\x93NUMPY")
    np.save("evil.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("flat.npy", np.zeros(4))
    pictures, options, said, help = REFUSED[case]
    assert run(monkeypatch, *pictures, *options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert help in err
    assert not list(Path().glob("*-grad-cam*.png"))


def test_a_model_that_raises_is_explained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "photo.jpg", "-m", "./net.py:Broken") == 3
    said = capsys.readouterr().err
    assert "no eyes" in said
    assert "while explaining photo.jpg" in said
    assert run(monkeypatch, "photo.jpg", "-m", "./net.py:Broken", "-f", "json") == 3
    data = json.loads(capsys.readouterr().out)
    assert data["status"] == "failed"
    assert data["error"]["message"] == "no eyes"


def test_a_transform_can_stand_without_pictures_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("photo.jpg", "-m", "net.py:Net", "--save-maps", "maps")
    Path("maps").mkdir()
    assert run(monkeypatch, *arguments, "input.transform.resize=30") == 0
    (saved,) = Path("maps").rglob("*.npy")
    assert np.load(saved).shape == (30, 40)


def test_what_runs_without_pictures_refuses_a_transform_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["gradscope", "inspect", "net.py:Net", "input.transform.resize=30"]
    )
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "add `image: PATH`" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("given", ["classes=[ant, bee, cow, dog, eel]", "classes=names.txt"])
def test_classes_of_ones_own_have_names(given: str, folder: Path, monkeypatch, capsys) -> None:
    Path("names.txt").write_text("ant\nbee\n\ncow\ndog\neel\n")
    words = ("photo.jpg", "-m", "./net.py:Net", given, "--target", "cow", "-f", "json")
    assert run(monkeypatch, *words) == 0
    image = json.loads(capsys.readouterr().out)["images"][0]
    assert (image["target"], image["target_name"]) == (2, "cow")
    assert {one["name"] for one in image["top"]} == {"ant", "bee", "cow", "dog", "eel"}


@pytest.mark.parametrize(
    ("given", "message", "help"),
    [
        ("classes=[ant, bee]", "`classes` has 2 names, the model has 5 classes", "each class"),
        ("classes=nams.txt", "there is no list of classes", "did you mean `names.txt`?"),
        ("classes=3", "`classes` expects a list of names", "found the number 3"),
        ("classes=[1, 2]", "`classes` has 2 names", "each class"),
    ],
)
def test_classes_that_cannot_be(given, message, help, folder, monkeypatch, capsys) -> None:
    Path("names.txt").write_text("ant\n")
    assert run(monkeypatch, "photo.jpg", "-m", "./net.py:Net", given) == 2
    err = capsys.readouterr().err
    assert message in err and help in err
    assert "(classes" in err


def test_a_picture_says_which_model_it_is_of() -> None:
    import gradscope

    found = gradscope.saliency("demo", EIGHT)
    assert "model: demo" in found.photos[0].remarks
    random = gradscope.saliency("torchvision:mobilenet_v3_small", torch.rand(1, 3, 64, 64))
    assert "model: torchvision:mobilenet_v3_small, random weights" in random.photos[0].remarks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alpha", "2"], "`--alpha 2` is out of range"),
        (["--alpha", "0"], "`--alpha 0` is out of range"),
        (["--colormap", "vridis"], "unknown colour map `vridis`"),
    ],
)
def test_looks_that_cannot_be(arguments, message, folder, monkeypatch, capsys) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_cropped_picture_is_smaller(folder: Path, monkeypatch, capsys) -> None:
    looks = ("--crop", "--alpha", "0.5", "--colormap", "viridis")
    words = ("photo.jpg", "-m", "torchvision:mobilenet_v3_small")
    assert run(monkeypatch, *words, "-o", "whole.png") == 0
    assert run(monkeypatch, *words, "-o", "part.png", *looks) == 0
    with Image.open("whole.png") as whole, Image.open("part.png") as part:
        assert part.size != whole.size


def test_a_picture_that_is_there_is_kept_and_the_next_is_numbered(
    folder: Path, monkeypatch, capsys
) -> None:
    words = ("photo.jpg", "-m", "./net.py:Net", "classes=[ant, bee, cow, dog, eel]")
    first = Path("photo-grad-cam-cow-conv.png")
    for _ in range(2):
        assert run(monkeypatch, *words, "--target", "cow") == 0
    out = capsys.readouterr().out
    assert f"wrote {first}" in out and "wrote photo-grad-cam-cow-conv-2.png" in out
    before = first.stat().st_mtime_ns
    assert run(monkeypatch, *words, "--target", "cow", "--force", "--alpha", "0.3") == 0
    assert first.stat().st_mtime_ns > before
    assert not Path("photo-grad-cam-cow-conv-3.png").exists()


SEGMENTATION = """
import torch
from torch import nn
class Seg(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
    def forward(self, x):
        return {"out": self.head(self.conv(x).relu())}
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4 + 2, 3)
    def forward(self, image, numbers):
        return self.fc(torch.cat([self.conv(image).relu().mean((2, 3)), numbers], 1))
"""


def test_a_pixel_of_a_segmentation(folder: Path, monkeypatch, capsys) -> None:
    Path("seg.py").write_text(SEGMENTATION)
    words = ("photo.jpg", "-m", "seg.py:Seg", "input.transform.crop=[40, 60]")
    assert run(monkeypatch, *words, "--pixels", "45,60", "-o", "one.png") == 0
    out = capsys.readouterr().out
    assert "logit at 45,60  of the pixels" in out
    with Image.open("one.png") as picture:
        assert min(picture.size) > 80
    assert run(monkeypatch, *words, "-f", "json") == 0
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert image["pixels"] == "predicted"
    assert sum(one["pixels"] for one in image["top"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("pixel", "message"),
    [("45,120", "has no pixel"), ("2,60", "does not see"), ("x", "names no pixels")],
)
def test_pixels_that_are_not_there(pixel, message, folder: Path, monkeypatch, capsys) -> None:
    Path("seg.py").write_text(SEGMENTATION)
    words = ("photo.jpg", "-m", "seg.py:Seg", "input.transform.crop=[40, 60]")
    assert run(monkeypatch, *words, "--pixels", pixel) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "given",
    [
        "[{image: photo.jpg}, {values: [[1, 2]]}]",
        "{image: {image: photo.jpg}, numbers: {shape: [1, 2]}}",
    ],
)
def test_an_input_is_explained_and_the_others_are_held(
    given, folder: Path, monkeypatch, capsys
) -> None:
    Path("two.py").write_text(SEGMENTATION)
    words = ("photo.jpg", "photo.jpg", "-m", "two.py:Two", f"input={given}", "-f", "json")
    assert run(monkeypatch, *words) == 0
    notices = json.loads(capsys.readouterr().out)["run"]["notices"]
    assert any("is explained" in notice and "kept fixed" in notice for notice in notices)
    assert run(monkeypatch, *words, "--input", "nothing") == 2
    assert "the model has no input `nothing`" in capsys.readouterr().err


def test_pictures_are_saved_from_a_program(folder: Path) -> None:
    made = gradscope.saliency("demo", EIGHT, methods=["gradient", "occlusion"])
    made.save("sheet.png", crop=True)
    made.save("report.json")
    with Image.open("sheet.png") as picture:
        assert min(picture.size) > 200
    assert json.loads(Path("report.json").read_text())["schema"] == "gradscope.saliency/1"
    for name, message in (("sheet.png", "exists"), ("sheet.txt", "is not a picture suffix")):
        with pytest.raises(OptionError, match=message):
            made.save(name)
    with pytest.raises(OptionError, match="unknown colour map"):
        made.save("other.png", colormap="jet")
