"""A fourth batch: forms that once got a wrong answer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.missing_cases import Program, case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])


class Two(nn.Module):
    """Two layers for a step that uses both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(4, 4), nn.Linear(4, 2)


@case("detached", name="a.weight")
def scaled_by_a_large_int(mended: bool) -> Program:
    net = Two()

    def step():
        scale = (net.a(X) ** 2).sum() * 1e6
        if not mended:
            scale = int(scale)  # cut
        return F.cross_entropy(net.out(X) * scale, Y)

    return net, step


@case("detached", name="a.weight")
def scaled_by_a_small_int(mended: bool) -> Program:
    net = Two()

    def step():
        scale = (net.a(X) ** 2).mean() + 3
        if not mended:
            scale = int(scale)  # cut
        return F.cross_entropy(net.out(X) * scale, Y)

    return net, step


@case("detached", name="a.weight")
def a_float_by_its_keyword(mended: bool) -> Program:
    net = Two()

    def step():
        scale = net.a(X).sum()
        if not mended:
            scale = float(scale)  # cut
        return F.cross_entropy(torch.mul(net.out(X), other=scale), Y)

    return net, step


@case("not-in-loss", name="a.weight")
def an_int_that_is_computed_with(mended: bool) -> Program:
    """Python's own arithmetic on an int leaves no trace: no claim that it never gets there."""
    net = Two()

    def step():
        scale = (net.a(X) ** 2).sum()  # cut
        scale = scale * 1e-2 if mended else int(scale) / 100
        return F.cross_entropy(net.out(X) * scale, Y)

    return net, step


@case("not-in-loss", name="a.weight")
def a_branch(mended: bool) -> Program:
    net = Two()

    def step():
        gate = net.a(X).sum()  # cut
        if mended:
            return F.cross_entropy(net.out(X) * torch.sigmoid(gate), Y)
        return F.cross_entropy(net.out(X) * (2 if gate > 0 else 1), Y)

    return net, step


@case("detached", name="a.weight")
def memory_set_to_a_detached_copy(mended: bool) -> Program:
    net = Two()

    def step():
        y = net.a(X)
        z = torch.zeros(3, 4)
        if mended:
            z = y
        else:
            z.set_(y.detach())  # cut
        return F.cross_entropy(net.out(z), Y)

    return net, step


@case("detached", "a", name="a.weight")
def frozen_and_asked_about(mended: bool) -> Program:
    net = Two()

    def step():
        if not mended:
            net.a.requires_grad_(False)
        asked = net.a.weight.requires_grad or net.a.bias.requires_grad
        y = net.a(X)  # cut
        net.a.requires_grad_(True)
        return F.cross_entropy(net.out(y if asked else y * 1), Y)

    return net, step
