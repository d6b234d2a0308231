"""``gradscope features`` from end to end: pictures and figures, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gradscope import cli
from gradscope.demo import DIGITS

EIGHT = str(DIGITS[0][0])
CONVS = ("-m", "./nets.py:Convs")
NETS = Path(__file__).parents[1] / "features" / "feature_nets.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a photograph, and pictures in two classes with a broken file among them."""
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS.read_text())
    noise = np.random.default_rng(0)
    for label in ("cats", "dogs"):
        Path("pets", label).mkdir(parents=True)
        for i in range(3):
            pixels = noise.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(f"pets/{label}/{i}.png")
    Path("pets/dogs/torn.png").write_bytes(b"\x89PNG torn")
    ramp = np.linspace(0, 255, 90 * 120 * 3).reshape(90, 120, 3).astype(np.uint8)
    Image.fromarray(ramp).save("photo.jpg")
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Exit code, standard output and standard error of a command line."""

    def call(*arguments: str):
        monkeypatch.setattr("sys.argv", ["gradscope", "features", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, *capsys.readouterr()

    return call


def refused(run, *arguments: str) -> str:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    return err


def test_filters_of_the_demo(run):
    code, out, _ = run("filters")
    assert code == 0
    assert "conv1 · filters 10 · dead 0 · near duplicates 0" in out
    assert "wrote filters-conv1.png" in out
    with Image.open("filters-conv1.png") as picture:
        assert min(picture.size) > 200
    assert "wrote filters-conv1-2.png" in run("filters")[1]


def test_filters_as_json(run):
    code, out, _ = run("filters", "conv2", "-f", "json")
    data = json.loads(out)
    assert (code, data["schema"], data["action"]) == (0, "gradscope.features/1", "filters")
    assert data["layers"] == ["conv2"]
    norms = [one["norm"] for one in data["filters"]]
    assert len(norms) == 20 and norms == sorted(norms, reverse=True)
    assert not list(Path().glob("*.png"))
    assert run("filters", "conv2", "-o", "report.json")[:2] == (0, "")
    assert json.loads(Path("report.json").read_text())["filters"] == data["filters"]


def test_activations_of_a_digit_are_drawn_strongest_first(run):
    code, out, _ = run("activations", "-o", "sheet.png", "--top", "3")
    assert code == 0
    assert "relu2 · 1 picture · dead 4" in out
    assert "channels of relu2, the strongest first" in out
    assert "wrote sheet.png" in out


def test_activations_of_several_layers(run):
    code, out, _ = run("activations", EIGHT, "-m", "demo", "-l", "relu*", "--exclude", "relu3")
    assert code == 0
    assert "channels of relu1" in out and "channels of relu2" in out
    assert "wrote activations-digit-8-relu1-relu2.png" in out


def test_a_folder_shows_what_excites_a_channel_and_what_was_skipped(run):
    model = ("-m", "./nets.py:Convs")
    code, out, _ = run("activations", "pets", *model, "-l", "relu", "--top", "2")
    assert code == 0
    assert "relu · 6 pictures" in out
    assert "skipped 1 picture" in out and "torn.png" in out
    assert "the picture that excites each channel most" in out
    assert "weights: random" in out
    data = json.loads(run("activations", "pets", *model, "-l", "relu", "-f", "json")[1])
    assert [one["image"] for one in data["skipped"]] == ["pets/dogs/torn.png"]
    ranks = [one["rank"] for one in data["excitations"]]
    assert ranks == [1, 2, 3, 4, 5, 6] * 6


@pytest.mark.parametrize("where", ["photo.jpg", "pets"])
def test_a_sequence_has_no_map_and_says_so(run, where):
    transform = "input.transform={resize: [16, 16]}"
    code, out, err = run("activations", where, "-m", "./nets.py:Rows", "-l", "lstm", transform)
    assert code == 0, err
    assert "no map: lstm has units, but no positions in the picture" in out


def test_mixed_sizes_run_one_shape_after_the_other(run):
    Image.new("RGB", (30, 20), "red").save("pets/cats/wide.png")
    code, out, _ = run("activations", "pets", "-m", "./nets.py:Convs", "-l", "relu", "-f", "json")
    assert code == 0
    assert json.loads(out)["images"] == 7


def test_bad_input_is_refused(run):
    Path("empty").mkdir()
    Path("torn").mkdir()
    Path("torn/a.png").write_bytes(b"\x89PNG torn")
    assert "unknown command `filtres`" in refused(run, "filtres")
    assert "did you mean `filters`?" in refused(run, "filtres")
    assert "holds no picture" in refused(run, "activations", "empty", "-m", "demo")
    assert "none of 1 pictures can be used" in refused(run, "activations", "torn", "-m", "demo")
    assert "there is no picture" in refused(run, "activations", "nowhere.png", "-m", "demo")
    assert "matches no layer" in refused(run, "filters", "conv9")
    assert "`fc1` is a Linear" in refused(run, "filters", "fc1")
    assert "one LAYER, please" in refused(run, "filters", "conv1", "conv2")
    assert "`--top 0` is too few" in refused(run, "filters", "--top", "0")
    assert "unknown format `xml`" in refused(run, "filters", "-f", "xml")
    Path("there.png").touch()
    assert "exists" in refused(run, "filters", "-o", "there.png")


def test_models_that_cannot_look_at_pictures_are_refused(run):
    for action in (["filters"], ["activations"], ["maximize"], ["embed", "pets"]):
        assert "on the meta device" in refused(run, *action, "-m", "demo", "--device", "meta")
    Path("two.py").write_text(
        "from torch import nn\n"
        "class Two(nn.Module):\n"
        "    def forward(self, image, ages):\n"
        "        return image.mean((2, 3)) * ages\n"
    )
    Path("two.yaml").write_text(
        "model: ./two.py:Two\ninput: {image: {shape: [1, 3, 8, 8]}, ages: {shape: [1, 1]}}\n"
    )
    err = refused(run, "embed", "pets", "-m", "two.yaml", "-l", "**")
    assert "the model takes several inputs" in err


def test_a_link_that_leads_nowhere_is_skipped_and_named(run):
    Path("pets/cats/link.png").symlink_to("nowhere.png")
    code, out, _ = run("embed", "pets", *CONVS, "--method", "pca")
    assert code == 0
    assert "skipped 2 pictures" in out and "link.png" in out


def test_a_layer_that_never_runs_is_refused(run):
    Path("idle.py").write_text(
        "from torch import nn\n"
        "class Idle(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv, self.spare = nn.Conv2d(3, 2, 3), nn.Conv2d(3, 2, 3)\n"
        "    def forward(self, x):\n"
        "        return self.conv(x)\n"
    )
    err = refused(run, "activations", "photo.jpg", "-m", "./idle.py:Idle", "-l", "spare")
    assert "layer `spare` gave no tensor" in err


def test_a_model_that_raises_leaves_a_report(run):
    code, out, err = run("activations", "photo.jpg", "-m", "./nets.py:Rows", "-f", "json")
    assert code == 3
    assert json.loads(out)["status"] == "failed"
    assert "while `gradscope features activations` ran the model on photo.jpg" in err


def test_the_picture_whose_size_the_model_does_not_take_is_named(run):
    Path("flat.py").write_text(
        "from torch import nn\n"
        "class Flat(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(768, 3)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x.flatten(1))\n"
    )
    Image.new("RGB", (30, 20), "red").save("pets/dogs/wide.png")
    code, out, err = run("embed", "pets", "-m", "./flat.py:Flat")
    assert (code, out) == (3, "")
    assert "ran the model on pets/dogs/wide.png" in err


def test_without_a_word_the_help_lists_the_actions(run):
    code, out, _ = run()
    assert code == 0
    assert "filters" in out and "activations" in out and "Examples" in out


def test_neighbours_of_a_picture_in_the_folder_itself(run):
    Path("pets/cats/copy.png").write_bytes(Path("pets/cats/1.png").read_bytes())
    words = ("neighbors", "pets/cats/1.png", "pets", *CONVS, "-k", "3")
    code, out, err = run(*words)
    assert code == 0, err
    assert "same features" in out and "skipped 1 picture" in out
    assert "wrote neighbors-1-input-of-fc.png" in out
    data = json.loads(run(*words, "-f", "json")[1])
    assert [one["rank"] for one in data["neighbors"]] == [1, 2, 3]
    assert data["neighbors"][0]["image"] == "pets/cats/copy.png"
    assert data["neighbors"][0]["distance"] == 0
    assert data["neighbors"][0]["label"] == "cats"
    assert "pets/cats/1.png" not in [one["image"] for one in data["neighbors"]]


def test_neighbours_of_several_pictures_and_fewer_than_asked_for(run):
    words = ("photo.jpg", "pets/dogs/0.png", "pets/cats", *CONVS, "--metric", "l2")
    code, out, _ = run("neighbors", *words)
    assert code == 0
    assert "there are fewer neighbours than 8: only 3 pictures to search" in out
    assert out.count("pets/cats/0.png") == 2
    words = ("pets/cats/0.png", "pets", *CONVS, "-k", "5")
    labels = [
        one["label"] for one in json.loads(run("neighbors", *words, "-f", "json")[1])["neighbors"]
    ]
    assert sorted(labels) == ["cats"] * 2 + ["dogs"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["npz", "csv", "safetensors"])
def test_saved_features_are_those_of_the_entry(run, suffix):
    import gradscope

    code, _, err = run("embed", "pets", *CONVS, "--save-features", f"f.{suffix}", "-f", "json")
    assert code == 0, err
    files = sorted(str(one) for one in Path("pets").rglob("?.png"))
    wanted = gradscope.features("./nets.py:Convs", files)
    if suffix == "npz":
        with np.load("f.npz", allow_pickle=False) as saved:
            values, names, labels = saved["features"], saved["images"], saved["labels"]
            assert str(saved["layer"]) == "input of fc"
    elif suffix == "csv":
        rows = [line.split(",") for line in Path("f.csv").read_text().splitlines()]
        assert rows[0] == ["image", "class", *map(str, range(6))]
        names, labels = [row[0] for row in rows[1:]], [row[1] for row in rows[1:]]
        values = np.array([row[2:] for row in rows[1:]], dtype=np.float32)
    else:
        from safetensors import safe_open

        with safe_open("f.safetensors", framework="numpy") as file:
            values, meta = file.get_tensor("features"), file.metadata()
        names, labels = json.loads(meta["images"]), json.loads(meta["labels"])
    assert list(names) == files
    assert list(labels) == ["cats"] * 3 + ["dogs"] * 3
    np.testing.assert_array_equal(values, wanted)


@pytest.mark.slow
def test_a_plane_of_two_classes(run):
    code, out, err = run("embed", "pets", *CONVS, "--cache", "c.safetensors")
    assert code == 0, err
    assert "classes 2 · k-NN accuracy" in out and "trustworthiness" in out
    assert "0 of 7 pictures were in it" in out
    assert "wrote tsne-input-of-fc.png" in out
    code, out, _ = run("embed", "pets", *CONVS, "--cache", "c.safetensors", "--method", "pca")
    assert "6 of 7 pictures were in it" in out


@pytest.mark.parametrize(
    ("where", "said"), [("pets/cats", "no classes"), ("one", "one class")], ids=["none", "one"]
)
def test_a_plane_without_classes_to_tell_apart(run, where, said):
    shutil.copytree("pets/cats", "one/cats")
    for path in (Path("pets/cats/3.png"), Path("one/cats/3.png")):
        path.write_bytes(Path("pets/dogs/0.png").read_bytes())
    code, out, err = run("embed", where, *CONVS, "-l", "relu", "--pool", "max")
    assert code == 0, err
    assert said in out and "k-NN accuracy 0" not in out


def test_the_pictures_that_channels_want(run):
    words = ("input.transform={resize: [16, 16]}", *CONVS, "--steps", "3")
    code, out, err = run("maximize", "conv:1,4", *words)
    assert code == 0, err
    assert "wrote maximize-conv-1-4.png" in out
    data = json.loads(run("maximize", *words, "--top", "2", "-f", "json")[1])
    assert [(one["layer"], one["channel"]) for one in data["maximized"]] == [("fc", 0), ("fc", 1)]
    assert any("the first 2 of 5 channels" in notice for notice in data["run"]["notices"])


def test_features_that_cannot_be_compared_are_skipped_and_named(run):
    Path("bad.py").write_text(
        "from torch import nn\n"
        "class Bad(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.same = nn.Identity()\n"
        "    def forward(self, x):\n"
        "        x = x.mean((2, 3))\n"
        "        return self.same(x.log())\n"
    )
    Image.new("RGB", (16, 16)).save("pets/cats/black.png")
    Image.new("RGB", (16, 16), "white").save("pets/cats/white.png")
    model = ("-m", "./bad.py:Bad", "-l", "same")
    data = json.loads(run("neighbors", "pets/cats/0.png", "pets", *model, "-f", "json")[1])
    reasons = {Path(one["image"]).name: one["reason"] for one in data["skipped"]}
    assert "NaN or Inf" in reasons["black.png"] and "no direction" in reasons["white.png"]
    data = json.loads(run("embed", "pets", *model, "--method", "pca", "-f", "json")[1])
    assert data["images"] == 7
    err = refused(run, "neighbors", "pets/cats/black.png", "pets", *model)
    assert "pets/cats/black.png cannot be used: its features have NaN or Inf" in err


def test_bad_input_of_the_space_is_refused(run):
    Path("few").mkdir()
    Image.new("RGB", (16, 16)).save("few/a.png")
    assert "`photo.jpg` alone has no neighbours" in refused(run, "neighbors", "photo.jpg")
    assert "`-k 0` is too few" in refused(run, "neighbors", "photo.jpg", "pets", "-k", "0")
    assert "unknown metric" in refused(run, "neighbors", "photo.jpg", "pets", *CONVS, "--metric=x")
    assert "1 pictures are too few" in refused(run, "embed", "few", *CONVS)
    assert "unknown method `tnse`" in refused(run, "embed", "pets", *CONVS, "--method", "tnse")
    assert "unknown pooling `avg`" in refused(run, "embed", "pets", *CONVS, "--pool", "avg")
    assert "is not a safetensors file" in refused(run, "embed", "pets", *CONVS, "--cache", "c.npz")
    assert "names no format of features" in refused(run, "embed", "--save-features", "f.txt")
    Path("f.npz").touch()
    assert "exists" in refused(run, "embed", "--save-features", "f.npz")
    assert "`x` in `conv:x` is not a channel" in refused(run, "maximize", "conv:x", *CONVS)
    assert "has no channel 99" in refused(run, "maximize", "conv:99", *CONVS)
    assert "`--size 2` is too few" in refused(run, "maximize", "--size", "2")
    Path("empty").mkdir()
    assert "holds no picture" in refused(run, "neighbors", "photo.jpg", "empty", *CONVS)


@pytest.mark.slow
def test_without_arguments_the_digits_are_shown(run):
    code, out, _ = run("neighbors")
    assert code == 0 and "1,797 pictures" in out and "wrote neighbors-digit-40" in out
    code, out, _ = run("embed", "--method", "pca")
    assert code == 0 and "classes 10 · k-NN accuracy 0.99" in out
    code, out, _ = run("maximize", "--steps", "2")
    assert code == 0 and "wrote maximize-out.png" in out
