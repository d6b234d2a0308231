"""The cache: what it saves from being computed, and what it must not be used for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file
from torch import nn

import gradscope
from gradscope.errors import ConfigError, OptionError
from gradscope.features import streaming
from gradscope.features import vectors as caches


@pytest.fixture
def folder(tmp_path):
    """Four digits' worth of noise, and where a cache may lie."""
    noise = np.random.default_rng(0)
    for i in range(4):
        pixels = noise.integers(0, 255, (28, 28), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    return tmp_path


@pytest.fixture
def read(monkeypatch):
    """The names of the pictures that were read for the model."""
    names = []
    original = streaming.Source.input

    def noted(self, viewer):
        names.append(self.name[-5:])
        return original(self, viewer)

    monkeypatch.setattr(streaming.Source, "input", noted)
    return names


def features(folder, layer="conv2", **options):
    return gradscope.features("demo", folder, layer, cache=folder / "c.safetensors", **options)


def test_what_is_in_the_cache_is_not_computed_again(folder, read):
    first = features(folder)
    assert len(read) == 4
    assert np.array_equal(features(folder), first)
    assert len(read) == 4
    assert np.array_equal(gradscope.features("demo", folder, "conv2"), first)


def test_only_new_and_changed_pictures_are_computed(folder, read):
    features(folder)
    Image.new("L", (28, 28), 9).save(folder / "2.png")
    Image.new("L", (28, 28), 7).save(folder / "new.png")
    (folder / "3.png").rename(folder / "renamed.png")
    read.clear()
    found = features(folder)
    assert read == ["2.png", "w.png"]
    assert np.array_equal(found, gradscope.features("demo", folder, "conv2"))


OTHER = {
    "layer": {"layer": "conv1"},
    "the default layer": {"layer": None},
    "pooling": {"pool": "max"},
    "transform": {"overrides": ["input.transform={resize: 30, crop: 28}"]},
    "dtype": {"dtype": "float64"},
    "weights": {"overrides": ["weights=null"]},
    "mode": {"mode": "train"},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_another_setting_has_features_of_its_own_in_the_same_file(change, folder, read):
    first = features(folder)
    read.clear()
    other = features(folder, **change)
    assert len(read) == 4
    layer = change.get("layer", "conv2")
    rest = {key: value for key, value in change.items() if key != "layer"}
    assert np.array_equal(other, gradscope.features("demo", folder, layer, **rest))
    read.clear()
    assert np.array_equal(features(folder), first)
    assert np.array_equal(features(folder, **change), other)
    assert read == []


def test_weights_of_a_live_model_and_its_code_are_in_the_key():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(x.mean((2, 3)))

    from gradscope.loading.vision_models import live_viewer

    net = Net()
    key = caches._key(live_viewer(net), "fc", "mean")
    assert caches._key(live_viewer(net), "fc", "mean") == key
    with torch.no_grad():
        net.fc.weight[0, 0] += 1e-6
    assert caches._key(live_viewer(net), "fc", "mean") != key

    class Other(Net):
        def forward(self, x):
            return self.fc(x.amax((2, 3)))

    other = Other()
    other.load_state_dict(net.state_dict())
    assert caches._key(live_viewer(other), "fc", "mean") != caches._key(
        live_viewer(net), "fc", "mean"
    )


def test_an_interrupted_run_goes_on_where_it_stopped(folder, read, monkeypatch):
    monkeypatch.setattr(streaming, "BATCH", 1)
    original = streaming.Source.input

    def stopped(self, viewer):
        if self.name.endswith("2.png"):
            raise KeyboardInterrupt
        return original(self, viewer)

    with monkeypatch.context() as patch:
        patch.setattr(streaming.Source, "input", stopped)
        with pytest.raises(KeyboardInterrupt):
            features(folder)
    read.clear()
    found = features(folder)
    assert read == ["2.png", "3.png"]
    assert np.array_equal(found, gradscope.features("demo", folder, "conv2"))


def test_what_is_computed_is_written_now_and_then(folder, monkeypatch):
    monkeypatch.setattr(streaming, "BATCH", 1)
    monkeypatch.setattr(caches, "_EVERY", -1.0)
    saves = []
    original = caches.FeatureCache.save
    monkeypatch.setattr(caches.FeatureCache, "save", lambda c: (saves.append(1), original(c))[1])
    found = features(folder)
    assert len(saves) == 5
    assert np.array_equal(found, features(folder))


def test_pictures_with_the_same_content_share_a_row(folder, read):
    (folder / "copy.png").write_bytes((folder / "1.png").read_bytes())
    found = features(folder)
    assert np.array_equal(features(folder), found)
    tensors, _ = caches._read(folder / "c.safetensors")
    assert {len(rows) for rows in tensors.values()} == {4}


def test_a_file_that_is_no_cache_is_refused_and_left_alone(folder):
    path = folder / "c.safetensors"
    for damage in (b"", b"nonsense", b"\xff" * 64):
        path.write_bytes(damage)
        with pytest.raises(ConfigError, match="is not a feature cache"):
            features(folder)
        assert path.read_bytes() == damage
    save_file({"weight": np.ones(3, dtype=np.float32)}, path)
    with pytest.raises(ConfigError, match="another kind of safetensors file"):
        features(folder)
    meta = {"format": "gradscope.feature-cache/1", "key": "conv1"}
    save_file({"key.pictures": np.ones((3, 16), dtype=np.uint8)}, path, metadata=meta)
    with pytest.raises(ConfigError, match="is not a feature cache"):
        features(folder)


def test_a_place_that_cannot_be_written_is_refused_before_the_model_runs(folder, read):
    with pytest.raises(OptionError, match="no such folder"):
        gradscope.features("demo", folder, "conv1", cache=folder / "no" / "c.safetensors")
    assert read == []
