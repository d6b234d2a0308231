"""Responses of channels, against a plain loop over the pictures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradscope.errors import OptionError
from gradscope.features.channels import ChannelSweep, as_channels, receptive_boxes
from gradscope.features.streaming import Layer, last_features, last_map, one_layer, run
from tests.features.feature_nets import Convs, Patches, Rows, images


def channels(net: nn.Module, inputs: Tensor, name: str) -> tuple[Tensor, bool]:
    """The layer's output as the command reads it."""
    layer, found = one_layer(net, name), []

    def read(_: Layer, values: Tensor) -> None:
        maps, is_map = as_channels(values, layer, net, inputs)
        found.append((maps.clone(), is_map))

    run(net.eval(), inputs, [layer], read)
    return found[-1]


def test_the_map_is_what_the_layer_gave_before_another_wrote_into_it():
    net, inputs = Convs(), images()
    maps, is_map = channels(net, inputs, "conv")
    assert is_map
    assert torch.equal(maps, net.conv(inputs))
    assert torch.equal(channels(net, inputs, "relu")[0], net.conv(inputs).relu())


def test_tokens_are_folded_to_their_grid_without_the_class_token():
    net, inputs = Patches(), images()
    maps, is_map = channels(net, inputs, "norm")
    tokens = net.norm(net.cut(inputs).flatten(2).transpose(1, 2))
    assert is_map
    assert maps.shape == (7, 8, 4, 4)
    assert torch.allclose(maps[2, :, 1, 3], tokens[2, 1 * 4 + 3])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("count", [1, 5, 16])  # 16: as many pictures as steps
def test_a_sequence_is_no_map(batch_first, count):
    torch.manual_seed(0)
    net, inputs = Rows(batch_first), images(count)
    maps, is_map = channels(net, inputs, "lstm")
    assert not is_map
    assert maps.shape == (count, 7, 16, 1)
    steps = net.lstm(inputs.mean(1) if batch_first else inputs.mean(1).transpose(0, 1))[0]
    steps = steps if batch_first else steps.transpose(0, 1)
    assert torch.allclose(maps[0, :, 3, 0], steps[0, 3], atol=1e-6)


def test_units_have_one_place_and_no_map():
    maps, is_map = channels(Convs(), images(), "fc")
    assert (maps.shape, is_map) == ((7, 5, 1, 1), False)


def test_the_last_map_and_the_last_features():
    inputs = images(1)
    assert last_map(Convs().eval(), inputs).name == "relu"
    assert last_map(Patches().eval(), inputs).name == "norm"
    assert last_features(Convs().eval(), inputs).title == "input of fc"
    with pytest.raises(OptionError, match="no layer of this model gives a spatial map"):
        last_map(Rows().eval(), inputs)
    with pytest.raises(OptionError, match="no linear layer runs"):
        last_features(nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), inputs)


def test_a_layer_that_is_not_one_row_a_picture_is_refused():
    class Merged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x.mean((0, 2, 3))[None])

    with pytest.raises(OptionError, match="not one row for each"):
        channels(Merged(), images(3), "fc")


@pytest.mark.parametrize("sizes", [[7], [3, 4], [1] * 7], ids=str)
def test_the_sweep_equals_a_loop_over_the_pictures(sizes):
    net, inputs = Convs().eval(), images()
    maps = net.relu(net.conv(inputs)).detach()
    maps[:, 2] = 0
    sweep, start = ChannelSweep(Layer("relu", net.relu), keep=3), 0
    for size in sizes:
        numbers = list(range(start, start + size))
        sweep.add(maps[start : start + size], True, numbers)
        start += size
    stats = {one.channel: one for one in sweep.stats()}
    strengths = [one.strength for one in sweep.stats()]
    assert strengths == sorted(strengths, reverse=True)
    for channel, one in stats.items():
        values = maps[:, channel].double()
        assert one.strength == pytest.approx(float(values.abs().mean()), rel=1e-6)
        assert (one.min, one.max) == (float(values.min()), float(values.max()))
        assert one.active == float((values != 0).double().mean())
        assert one.dead == (channel == 2)
    # The best pictures of a channel by a sort of all pictures' maxima.
    names = [f"p{i}" for i in range(7)]
    for channel in (0, 4):
        best = sorted(range(7), key=lambda i: -float(maps[i, channel].max()))[:3]
        found = sweep.excitations(channel, names)
        assert [one.image for one in found] == [names[i] for i in best]
        for one, i in zip(found, best, strict=True):
            assert float(maps[i, channel, one.row, one.column]) == one.value


def test_other_channels_than_before_are_refused():
    sweep = ChannelSweep(Layer("x", nn.Identity()), keep=1)
    sweep.add(torch.ones(1, 4, 2, 2), True, [0])
    with pytest.raises(OptionError, match="5 channels for this picture"):
        sweep.add(torch.ones(1, 5, 2, 2), True, [1])


def test_the_receptive_box_is_that_of_the_kernel():
    net = nn.Sequential(nn.Conv2d(1, 2, 5, bias=False))
    nn.init.ones_(net[0].weight)
    inputs = images(2, 20, 1)
    layer = one_layer(net, "0")
    # Cells (3, 7) and (0, 0) of a 16 × 16 map: pixels 3–7 × 7–11 and 0–4 × 0–4.
    boxes = receptive_boxes(net, inputs, layer, 1, [3 * 16 + 7, 0])
    assert boxes == [(7 / 20, 3 / 20, 12 / 20, 8 / 20), (0.0, 0.0, 5 / 20, 5 / 20)]
    assert inputs.grad is None and net[0].weight.grad is None


def test_without_a_gradient_there_is_no_box():
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x.detach())

    net = Cut()
    net.requires_grad_(False)
    assert receptive_boxes(net, images(1, 8, 1), one_layer(net, "conv"), 0, [0]) == [None]
    net.requires_grad_(True)
    assert receptive_boxes(net, images(1, 8, 1), one_layer(net, "conv"), 0, [0]) == [None]
