"""Shared part of the methods: forward passes, kept tensors, and a restored model."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from saliency.saliency_nets import Functional, Pooled, digits, network, off, trained
from torch import Tensor, nn

from gradscope.errors import LayerError, OptionError
from gradscope.saliency import grad_cam, gradient, hires_cam
from gradscope.saliency._subject import Objective, Subject


class Counting(nn.Module):
    """Counts its forwards, and the convolutions' that its gradient goes through."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.forwards = net, 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        return self.net(x)


def direct(net: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
    x = inputs.clone().requires_grad_()
    net(x).gather(1, target[:, None]).sum().backward()
    return x.grad


def test_what_it_holds_is_what_torch_says():
    net, inputs = trained(), digits(3, 7)
    target = torch.tensor([1, 2])
    with Subject(net, inputs, Objective(target)) as subject:
        assert torch.equal(subject.logits, net(inputs))
        assert off(subject.input_gradient, direct(net, inputs, target)) < 1e-6
        activation = subject.activation
    kept = []
    handle = net.relu2.register_forward_hook(lambda m, a, out: kept.append(out))
    logits = net(inputs)
    handle.remove()
    (expected,) = torch.autograd.grad(logits.gather(1, target[:, None]).sum(), kept[0])
    assert torch.equal(activation, kept[0])
    assert off(subject.gradient, expected) < 1e-6


def test_without_a_target_the_highest_logit_is_explained():
    with Subject(trained(), digits(3, 7)) as subject:
        assert subject.target.tolist() == [3, 7]
        assert torch.equal(subject.scores, subject.logits.max(dim=1).values)


def test_versus_is_the_difference():
    objective = Objective(torch.tensor([3]), torch.tensor([5]))
    with Subject(trained(), digits(3), objective) as subject:
        assert subject.scores == subject.logits[0, 3] - subject.logits[0, 5]


def test_score_of_other_inputs():
    with Subject(trained(), digits(3, 7)) as subject, torch.no_grad():
        twice = subject.score(torch.cat([subject.inputs, subject.inputs]))
        swapped = subject.score(subject.inputs, torch.tensor([1, 0]))
    assert torch.allclose(twice, subject.scores.repeat(2))
    assert swapped[0] == subject.logits[0, 7]


@pytest.mark.parametrize("total", [False, True])
def test_one_forward_serves_the_cams(total):
    net = Counting(trained())
    with Subject(net, digits(3), layer="net.relu2", total=total) as subject:
        assert subject.logits.shape == (1, 10)
        grad_cam.attribute(subject)
        hires_cam.attribute(subject)
    assert net.forwards == 1


def test_one_forward_serves_both_kinds_when_it_is_kept_whole():
    net = Counting(trained())
    with Subject(net, digits(3), layer="net.relu2", total=True) as subject:
        both = grad_cam.attribute(subject), gradient.attribute(subject)
    assert net.forwards == 1
    with Subject(net, digits(3), layer="net.relu2") as subject:
        assert torch.equal(grad_cam.attribute(subject), both[0])
        assert torch.equal(gradient.attribute(subject), both[1])


def test_the_backward_stops_at_the_layer():
    net = Pooled().eval()
    reached = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            reached.append(gradient)
            return gradient

    conv = net.conv.forward
    net.conv.forward = lambda x: Watched.apply(conv(x))
    with Subject(net, torch.randn(1, 3, 16, 16), layer="last") as subject:
        grad_cam.attribute(subject)
        assert reached == []
        gradient.attribute(subject)
        assert len(reached) == 1


def test_parameters_get_no_gradient_and_everything_is_put_back():
    net = trained()
    net.conv1.weight.requires_grad_(False)
    before = {name: (p.requires_grad, p.clone()) for name, p in net.named_parameters()}
    random = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), Subject(net, digits(3)) as subject:
        assert not any(p.requires_grad for p in net.parameters())
        _ = subject.input_gradient, subject.activation
        raise ZeroDivisionError
    for name, p in net.named_parameters():
        asked, value = before[name]
        assert p.requires_grad == asked
        assert p.grad is None
        assert torch.equal(p, value)
    assert torch.equal(torch.get_rng_state(), random)
    assert not net.training


def test_a_training_mode_keeps_its_statistics_and_its_seed():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten())
    net.append(nn.Linear(4 * 26 * 26, 3))
    mean = net[1].running_mean.clone()
    maps = []
    for _ in range(2):
        with Subject(net, digits(3, 7), seed=4) as subject:
            maps.append(gradient.attribute(subject))
    assert net.training
    assert torch.equal(net[1].running_mean, mean)
    assert torch.equal(*maps)


class TwiceRun(nn.Module):
    """One module runs twice; ``tail`` says what the score reads."""

    def __init__(self, tail: str) -> None:
        super().__init__()
        self.tail, self.step = tail, nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.step(x)
        second = self.step(first)
        read = {"second": second, "first": first, "sum": first + 2 * second}[self.tail]
        return read.mean(dim=(2, 3))


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize(("tail", "call"), [("second", 2), ("first", 1), ("sum", 2)])
def test_of_two_calls_the_last_that_counts(tail, call, total):
    net, inputs = TwiceRun(tail).eval(), torch.randn(1, 2, 8, 8)
    with Subject(net, inputs, layer="step", total=total) as subject:
        found = subject.activation
    expected = net.step(inputs) if call == 1 else net.step(net.step(inputs))
    assert torch.allclose(found, expected)


@pytest.mark.parametrize("total", [False, True])
def test_a_later_write_does_not_reach_the_activation(total):
    net, inputs = network("vgg11")
    with Subject(net, inputs, layer="features.13", total=total) as subject:
        assert subject.activation.min() < 0  # the ReLU behind it is in place
        assert subject.gradient.shape == subject.activation.shape


@pytest.mark.parametrize("total", [False, True])
def test_an_in_place_layer_whose_result_is_not_taken(total):
    torch.manual_seed(0)  # of two drawn channels some pixel must pass the ReLU

    class Ignoring(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.relu = nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            self.relu(x)
            return x.mean(dim=(2, 3))

    with Subject(Ignoring(), digits(3), layer="relu", total=total) as subject:
        assert float(subject.gradient.amax()) == pytest.approx(1 / 26**2)
        assert subject.activation.min() == 0


@pytest.mark.parametrize("total", [False, True])
def test_a_backbone_without_a_graph(total):
    """CAM kinds need a graph above their layer only."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(1, 2, 3), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.conv(x)
            return self.fc(x.mean(dim=(2, 3)))

    with Subject(Frozen(), digits(3), layer="conv", total=total) as subject:
        assert subject.gradient.any()


@dataclass
class Answer:
    loss: Tensor | None
    logits: Tensor
    maps: Tensor


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = trained()

    def forward(self, x: Tensor) -> Answer:
        return Answer(None, self.net(x), x)


def test_logits_inside_a_dataclass():
    with Subject(Wrapped(), digits(3)) as subject:
        assert subject.logits.argmax() == 3
        assert subject.layer == "net.relu2"


def test_a_model_that_normalises_its_input_in_place():
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = trained()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.sub_(0.5))

    inputs = digits(3)
    with Subject(InPlace(), inputs) as subject:
        assert gradient.attribute(subject).any()
        assert grad_cam.attribute(subject).shape == (1, 28, 28)
    assert torch.equal(inputs, digits(3))


def refused(message: str, net: nn.Module, inputs: Tensor, read, **options) -> None:
    with (
        pytest.raises(OptionError, match=message) as error,
        Subject(net, inputs, **options) as subject,
    ):
        read(subject)
    assert error.value.problems[0].help


def test_what_is_refused():
    read = grad_cam.attribute
    refused("no class 10: the model has 10", trained(), digits(3), read,
            objective=Objective(torch.tensor([10])))  # fmt: skip
    refused("no scores", nn.Flatten(2), digits(3), lambda s: s.logits)
    refused("is not a spatial map", trained(), digits(3), read, layer="fc1")
    refused("matches 2 layers", trained(), digits(3), read, layer="pool*")
    refused("gave no tensor", _Unused(), torch.randn(1, 3, 8, 8), read, layer="spare")
    refused("does not depend on", _Unused(), torch.randn(1, 3, 8, 8), read, layer="aside")
    refused("no gradient reaches", _Cut(), digits(3), gradient.attribute)
    with pytest.raises(LayerError, match="relu9"):
        Subject(trained(), digits(3), layer="relu9")


class _Unused(Functional):
    def __init__(self) -> None:
        super().__init__()
        self.spare, self.aside = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.aside(x)
        return super().forward(x)


class _Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.detach().flatten(1))
