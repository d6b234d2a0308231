"""The picture that a channel wants: what it must reach, and what it must not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradscope.api.features import maximize
from gradscope.api.viewing import view
from gradscope.errors import OptionError
from gradscope.features.maximize import Range, input_range, maximized
from gradscope.features.streaming import one_layer
from gradscope.loading.vision_models import live_viewer

UNIT = Range(torch.zeros(1, 8, 8), torch.ones(1, 8, 8))


class Template(nn.Module):
    """A unit that looks for a cross, and one that looks for its negative."""

    def __init__(self) -> None:
        super().__init__()
        cross = -torch.ones(8, 8)
        cross[3:5] = cross[:, 3:5] = 1
        self.fc = nn.Linear(64, 2, bias=False)
        self.fc.weight.data = torch.stack([cross, -cross]).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


@pytest.mark.slow
def test_a_linear_unit_gets_its_template(monkeypatch):
    """The optimum is known: white where the weight is positive, black elsewhere."""
    monkeypatch.setattr(torch.Tensor, "roll", lambda self, *_: self)  # nothing is shifted
    net = Template()
    found = maximized(live_viewer(net), one_layer(net, "fc"), [0, 1], UNIT, steps=200, seed=0)
    best = net.fc.weight.detach().clamp(min=0).sum(1).tolist()
    for channel in (0, 1):
        assert 0.999 * best[channel] < found.reached[channel] <= best[channel] * (1 + 1e-6)
        white = net.fc.weight[channel].reshape(8, 8) > 0
        assert torch.equal(found.pictures[channel, 0] > 0.5, white)


def test_what_was_reached_is_what_the_model_says_of_the_picture():
    viewer = view("demo")
    result = maximize(viewer, "conv2", [3, 7], top=1, steps=8, size=None)
    layer = one_layer(viewer.model, "conv2")
    within, remark = input_range(viewer, None)
    found = maximized(viewer, layer, [3, 7], within, steps=8, seed=0)
    assert remark == ""
    x = found.pictures
    made = viewer.model.conv2(viewer.model.pool1(viewer.model.relu1(viewer.model.conv1(x))))
    wanted = made.mean((2, 3))[[0, 1], [3, 7]].tolist()
    assert found.reached == pytest.approx(wanted, rel=1e-5)
    records = result.report.maximized
    assert [(one.layer, one.channel) for one in records] == [("conv2", 3), ("conv2", 7)]
    assert [one.reached for one in records] == found.reached
    assert all(one.reached > one.start for one in records)


def test_the_seed_decides_and_the_model_stays():
    net = Template()
    before = net.fc.weight.clone()

    def picture(seed):
        return maximized(
            live_viewer(net), one_layer(net, "fc"), [0], UNIT, steps=3, seed=seed
        ).pictures

    state = torch.get_rng_state()
    assert torch.equal(picture(1), picture(1))
    assert not torch.equal(picture(1), picture(2))
    assert torch.equal(net.fc.weight, before) and net.fc.weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_channels_do_not_depend_on_each_other():
    net = Template()
    layer = one_layer(net, "fc")
    both = maximized(live_viewer(net), layer, [0, 1], UNIT, steps=20, seed=0)
    one = maximized(live_viewer(net), layer, [0], UNIT, steps=20, seed=0)
    np.testing.assert_allclose(both.pictures[0], one.pictures[0], atol=1e-5)


def test_pixels_stay_within_what_the_transform_gives(tmp_path):
    overrides = ["input.transform={resize: 16, mean: [0.5, 0.4, 0.3], std: [0.2, 0.2, 0.1]}"]
    viewer = view("torchvision:resnet18", overrides)
    within, _ = input_range(viewer, None)
    assert within.black.shape == (3, 16, 16)
    assert torch.allclose(within.black[:, 0, 0], torch.tensor([-2.5, -2.0, -3.0]))
    assert torch.allclose(within.white[:, 0, 0], torch.tensor([2.5, 3.0, 7.0]))
    half = within.input(torch.full((1, 3, 16, 16), 0.5))
    assert torch.allclose(half[0, :, 3, 3], torch.tensor([0.0, 0.5, 2.0]))


def test_a_transform_that_takes_any_size_takes_the_one_that_is_asked_for():
    viewer = view("torchvision:resnet18", ["input.transform={mean: 0.5}"])
    within, remark = input_range(viewer, 40)
    assert (within.black.shape, remark[:13]) == ((3, 40, 40), "size: 40 × 40")


def test_a_dead_channel_says_so():
    viewer = view("demo")
    with torch.no_grad():
        viewer.model.conv2.bias[4] = -1e6
    report = maximize(viewer, "relu2", [4], top=1, steps=2, size=None).report
    assert report.maximized[0].reached == 0
    assert any("channel 4: no gradient" in notice for notice in report.run.notices)


def test_what_cannot_be_climbed_is_refused():
    viewer = view("demo")
    with pytest.raises(OptionError, match="has no channel 20"):
        maximize(viewer, "conv2", [20], top=1, steps=1, size=None)

    class Cut(Template):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.detach())

    net = Cut()
    with pytest.raises(OptionError, match="no gradient of `fc` reaches the input"):
        maximized(live_viewer(net), one_layer(net, "fc"), [0], UNIT, steps=1, seed=0)
