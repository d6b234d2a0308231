"""Features beside a plain loop, one picture at a time; what cannot have any is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import gradscope
from gradscope.errors import ConfigError, LayerError, OptionError
from gradscope.features import streaming
from gradscope.loading.vision_models import live_viewer
from tests.features.feature_nets import Convs, Patches, Rows, images


def by_loop(net: nn.Module, inputs: Tensor, name: str, pool) -> np.ndarray:
    """Return ``pool`` of the layer's output for each picture alone."""
    found = []
    handle = net.get_submodule(name).register_forward_hook(
        lambda _, __, output: found.append(
            pool((output[0] if isinstance(output, tuple) else output).detach().clone())
        )
    )
    with torch.no_grad():
        for one in inputs:
            net.eval()(one[None])
    handle.remove()
    return np.stack([row.reshape(-1).numpy() for row in found])


CASES = {
    "a map, before the next layer writes into it": (Convs, "conv", lambda y: y.mean((2, 3))),
    "a map's maximum": (Convs, "relu", lambda y: y.amax((2, 3)), "max"),
    "every place": (Convs, "relu", lambda y: y.flatten(1), "none"),
    "units": (Convs, "fc", lambda y: y),
    "tokens": (Patches, "norm", lambda y: y.mean(1)),
    "a sequence": (Rows, "lstm", lambda y: y.mean(1)),
    "steps first": (lambda: Rows(batch_first=False), "lstm", lambda y: y.mean(0)),
}


@pytest.mark.parametrize(("make", "layer", "loop", *["pool"]), [
    (*case, "mean")[:4] for case in CASES.values()
], ids=CASES)  # fmt: skip
def test_features_are_those_of_a_plain_loop(make, layer, loop, pool):
    torch.manual_seed(0)
    net, inputs = make(), images(9)
    found = gradscope.features(net, inputs, layer, pool=pool)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, by_loop(net, inputs, layer, loop), rtol=1e-5, atol=1e-6)


def test_without_a_layer_they_are_what_the_last_linear_layer_reads():
    net, inputs = Convs(), images()
    wanted = net.conv(inputs).relu().mean((2, 3)).detach().numpy()
    np.testing.assert_allclose(gradscope.features(net, inputs), wanted, rtol=1e-5, atol=1e-7)


def test_of_a_layer_that_runs_twice_the_last_call_counts():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(2 * self.act(x.mean((2, 3))))

    inputs = images()
    wanted = (2 * inputs.mean((2, 3)).tanh()).tanh().numpy()
    np.testing.assert_allclose(gradscope.features(Twice(), inputs, "act"), wanted, rtol=1e-6)


def test_a_live_model_is_given_back_as_it_was(unchanged):
    net = Convs().train()
    with unchanged(net):
        gradscope.features(net, images(), "conv")


def test_batches_make_no_difference(monkeypatch):
    net, inputs = Convs(), images(10)
    whole = gradscope.features(net, inputs, "relu")
    monkeypatch.setattr(streaming, "BATCH", 3)
    np.testing.assert_allclose(gradscope.features(net, inputs, "relu"), whole, rtol=1e-6)


def test_files_go_through_the_transform_in_sorted_order(tmp_path):
    (tmp_path / "b").mkdir()
    noise = np.random.default_rng(0)
    arrays = [noise.integers(0, 255, (28, 28), dtype=np.uint8) for _ in range(3)]
    for name, pixels in zip(("b/2.png", "a.png", "b/1.png"), arrays, strict=True):
        Image.fromarray(pixels).save(tmp_path / name)
    inputs = torch.tensor(np.stack([arrays[1], arrays[2], arrays[0]]))[:, None] / 255
    wanted = gradscope.features("demo", inputs, "conv2")
    assert np.array_equal(gradscope.features("demo", tmp_path, "conv2"), wanted)
    files = [tmp_path / "a.png", tmp_path / "b"]
    assert np.array_equal(gradscope.features("demo", files, "conv2"), wanted)


def test_pictures_of_several_shapes_wait_for_a_batch_of_their_own(monkeypatch):
    monkeypatch.setattr(streaming, "BATCH", 3)
    shapes = [(4, 4), (5, 5), (4, 4), (6, 6), (4, 4), (7, 7), (8, 8), (9, 9), (5, 5)]
    made = [
        streaming.Source(str(i), values=torch.full((1, *shape), float(i)))
        for i, shape in enumerate(shapes)
    ]
    seen = {}
    for numbers, inputs in streaming.batches(made, live_viewer(nn.Identity()), []):
        assert len(numbers) <= 3
        seen |= dict(zip(numbers, inputs, strict=True))
    assert sorted(seen) == list(range(9))
    for i, shape in enumerate(shapes):
        assert torch.equal(seen[i], torch.full((1, *shape), float(i)))


def test_what_has_no_features_is_refused(tmp_path):
    net = Convs()
    with pytest.raises(LayerError, match="matches no layer"):
        gradscope.features(net, images(), "convs")
    with pytest.raises(OptionError, match="matches 4 layers"):
        gradscope.features(net, images(), "**")
    with pytest.raises(OptionError, match="unknown pooling `average`"):
        gradscope.features(net, images(), "conv", pool="average")
    with pytest.raises(OptionError, match="a live model has no transform"):
        gradscope.features(net, "photo.jpg", "conv")
    with pytest.raises(OptionError, match=r"pictures are \[N, C, H, W\]|a tensor \[3\]"):
        gradscope.features(net, torch.ones(3), "conv")
    (tmp_path / "torn.png").write_bytes(b"\x89PNG torn")
    with pytest.raises(ConfigError, match=r"torn\.png"):
        gradscope.features("demo", tmp_path, "conv1")


def test_features_of_different_sizes_are_refused(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(3, 2, 3)\n"
        "    def forward(self, x):\n"
        "        return self.conv(x)\n"
    )
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    Image.new("RGB", (9, 8)).save(tmp_path / "b.png")
    model = f"{tmp_path / 'net.py'}:Net"
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    allow = ["*"]
    assert gradscope.features(model, files, "conv", allow=allow).shape == (2, 2)
    with pytest.raises(OptionError, match=r"84 features for .*b\.png, and 72 for others"):
        gradscope.features(model, files, "conv", pool="none", allow=allow)
