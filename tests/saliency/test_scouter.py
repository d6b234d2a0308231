"""SCOUTER's maps: what they are for the bundled models, and what a model must have for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from saliency.saliency_nets import digits, trained
from torch import nn
from torch.nn.functional import interpolate

from gradscope.demo import WEIGHTS
from gradscope.demo import train as training
from gradscope.errors import OptionError
from gradscope.saliency import scouter
from gradscope.saliency._subject import Objective, Subject

POSITIVE, NEGATIVE = "demo:scouter", "demo:scouter-negative"
LABELS = torch.arange(10)


def network(spec: str) -> nn.Module:
    net = training.RECIPES[spec].network()
    net.load_state_dict(load_file(Path(WEIGHTS[spec])))
    return net.eval()


def maps(net, inputs, target=None):
    with Subject(net, inputs, Objective(target)) as subject:
        return scouter.attribute(subject)


@pytest.fixture(scope="module")
def held():
    pytest.importorskip("sklearn")
    split = training.load_split()
    return split.held_images, split.held_labels


@pytest.mark.parametrize("spec", [POSITIVE, NEGATIVE])
def test_the_map_is_the_attention_of_the_target_s_slot(spec):
    net, inputs = network(spec), digits(*range(10))
    target = (LABELS + 3) % 10
    with torch.no_grad():
        _, attention = net.explained(inputs)
    own = attention[LABELS, target][:, None]
    expected = interpolate(own, size=(28, 28), mode="bilinear", align_corners=False)[:, 0]
    found = maps(net, inputs, target)
    assert torch.equal(found, expected)
    assert found.shape == (10, 28, 28) and found.dtype == torch.float32
    assert found.min() >= 0 and found.max() <= 1 and not found.requires_grad


def test_without_a_target_it_is_the_highest_logit_s():
    net, inputs = network(POSITIVE), digits(8, 3)
    chosen = net(inputs).argmax(1)
    assert torch.equal(maps(net, inputs), maps(net, inputs, chosen))


def test_the_score_is_what_the_map_weighs():
    net, inputs = network(POSITIVE), digits(*range(10))
    features = []
    handle = net.relu3.register_forward_hook(lambda *call: features.append(call[2]))
    with torch.no_grad():
        scores, attention = net.explained(inputs)
    handle.remove()
    weighed = torch.einsum("nchw,nkhw->nc", attention, features[0]) / features[0].shape[1]
    torch.testing.assert_close(scores, weighed)


def test_why_the_class_lies_on_the_ink(held):
    images, labels = held
    found = maps(network(POSITIVE), images, labels)
    ink = images[:, 0] > 0.5
    assert found[ink].mean() > 3 * found[~ink].mean()


def test_why_the_class_is_wider_for_the_class_that_it_is(held):
    images, labels = held
    net = network(POSITIVE)
    true, other = (maps(net, images, t).mean() for t in (labels, (labels + 1) % 10))
    assert true > 3 * other


@pytest.mark.slow
def test_why_not_is_smaller_for_the_class_that_it_is(held):
    images, labels = held
    net = network(NEGATIVE)
    true = maps(net, images, labels).sum((1, 2))
    others = torch.stack([maps(net, images, (labels + k) % 10).sum((1, 2)) for k in range(1, 10)])
    assert others.mean() > 1.5 * true.mean()
    assert (true < others.mean(0)).float().mean() > 0.95


@pytest.mark.parametrize("spec", [POSITIVE, NEGATIVE])
def test_the_attention_is_small(spec, held):
    with torch.no_grad():
        _, attention = network(spec).explained(held[0])
    assert attention.mean() < 0.05
    assert (attention > 0.5).float().mean() < 0.05


@pytest.mark.parametrize("training_mode", [False, True])
def test_the_model_is_given_back_as_it_was(training_mode, unchanged):
    net, inputs = network(POSITIVE).train(training_mode), digits(1, 2)
    with unchanged(net):
        maps(net, inputs)


class Head(nn.Module):
    """A head that is none of gradscope's."""

    slot_sign = 1

    def forward(self, x):
        attention = torch.sigmoid(x)
        return attention.mean((2, 3)), attention


class Own(nn.Module):
    """A custom model around a head."""

    def __init__(self, head):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.head = head

    def forward(self, x):
        output = self.head(self.conv(x))
        return output[0] if isinstance(output, tuple) else output


def test_any_head_of_that_form_will_do():
    net, inputs = Own(Head()), digits(1, 2)
    with torch.no_grad():
        expected = torch.sigmoid(net.conv(inputs))[:, 3]
    assert torch.equal(maps(net, inputs, torch.tensor([3, 3])), expected)


class Unsaid(Head):
    """No sign: it does not say that it is a head."""

    slot_sign = None


class Mapless(Head):
    """It says that it is a head and gives scores alone."""

    def forward(self, x):
        return super().forward(x)[0]


class OtherClasses(Head):
    """Its attention is not one map for each class."""

    def forward(self, x):
        scores, attention = super().forward(x)
        return scores, attention[:, :2]


REFUSED = {
    "a network without one": (trained(), "no slot-attention head"),
    "a head that does not say so": (Own(Unsaid()), "no slot-attention head"),
    "no attention": (Own(Mapless()), "`Mapless` gave no attention [2, 4, h, w]"),
    "other classes": (Own(OtherClasses()), "`OtherClasses` gave no attention [2, 4, h, w]"),
}


@pytest.mark.parametrize(("net", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(net, message):
    with pytest.raises(OptionError) as caught:
        maps(net, digits(1, 2))
    assert message in str(caught.value)
    assert caught.value.problems[0].help


def test_why_one_rather_than_another_is_refused():
    objective = Objective(torch.tensor([1]), torch.tensor([7]))
    with (
        Subject(network(POSITIVE), digits(1), objective) as subject,
        pytest.raises(OptionError, match="rather than another"),
    ):
        scouter.attribute(subject)
