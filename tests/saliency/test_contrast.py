"""Contrasts, against B and for A rather than B: the map and the measured change."""

from __future__ import annotations

import pytest
import torch
from saliency.saliency_nets import Pooled, digits, off, trained
from torch import nn

from gradscope.errors import OptionError
from gradscope.saliency import grad_cam
from gradscope.saliency._explaining import versus, why_not
from gradscope.saliency._subject import Objective, Subject


def test_why_not_is_grad_cam_of_the_negated_logit():
    net = trained()
    net.out.weight.data.neg_()
    net.out.bias.data.neg_()
    with Subject(net, digits(3, 7), Objective(torch.tensor([5, 5])), layer="relu2") as subject:
        expected = grad_cam.attribute(subject)
    with Subject(trained(), digits(3, 7), layer="relu2") as subject:
        found = why_not(subject, 5)
    assert expected.any()
    assert off(found.map, expected) < 1e-5


def test_versus_is_grad_cam_of_the_difference():
    objective = Objective(torch.tensor([3, 7]), torch.tensor([5, 5]))
    with Subject(trained(), digits(3, 7), objective) as subject:
        expected = grad_cam.attribute(subject)
    with Subject(trained(), digits(3, 7)) as subject:
        found = versus(subject, 5)
        gap = subject.logits[range(2), [3, 7]] - subject.logits[:, 5]
    assert off(found.map, expected) < 1e-5
    assert torch.allclose(found.before, gap)


def test_removing_the_region_moves_the_gap_where_the_map_is_right():
    """Class 0 is how red the picture is, class 1 how green: the red patch makes the gap."""
    net = nn.Sequential(nn.Conv2d(2, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    for part in (net[0], net[3]):
        part.weight.data.copy_(torch.eye(2).view_as(part.weight))
        nn.init.zeros_(part.bias)
    picture = torch.zeros(1, 2, 10, 10)
    picture[0, 0, 1:5, 2:7] = 1
    picture[0, 1, 6:9, 6:9] = 1
    with Subject(net, picture, layer="0") as subject:
        found = versus(subject, 1)
        against = why_not(subject, 1)
    assert found.quantity == "logit gap to class 1"
    assert torch.equal(found.map[0] > 0, picture[0, 0] > 0)
    assert float(found.area) == pytest.approx(0.20)
    assert float(found.before) == pytest.approx(0.20 - 0.09)
    assert float(found.after) == pytest.approx(0 - 0.09)
    assert found.after < found.elsewhere
    assert not against.map.any()  # nothing speaks against green
    assert against.before == against.after == against.elsewhere


def test_the_measurement_by_hand():
    torch.manual_seed(0)
    net, inputs = Pooled().eval(), torch.randn(2, 3, 16, 16)
    with Subject(net, inputs, Objective(torch.tensor([1, 1]))) as subject:
        found = versus(subject, 2)
    for image, heat, after in zip(inputs, found.map, found.after, strict=True):
        if heat.any():
            image = image * (heat < heat.flatten().sort(descending=True).values[50])
        logits = net(image[None])[0].detach()
        assert float(after) == pytest.approx(float(logits[1] - logits[2]), abs=1e-5)


def test_the_same_class_has_a_blank_map_and_nothing_to_remove():
    with Subject(trained(), digits(3)) as subject:
        found = versus(subject, 3)
    assert not found.map.any()
    assert found.area == found.before == found.after == 0


def test_a_class_that_does_not_exist():
    with Subject(trained(), digits(3)) as subject:
        for ask in (why_not, versus):
            with pytest.raises(OptionError, match="no class 12"):
                ask(subject, 12)
