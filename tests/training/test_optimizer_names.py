"""Each optimizer of a run has its own name; one made anew goes on under the old one."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD, Optimizer

from gradscope.training.optimizers import Optimizers


def named(found: Optimizers, optimizer: Optimizer) -> str:
    return found.known(optimizer).name


def test_the_next_phase_has_an_optimizer_of_its_own() -> None:
    """Both are called `opt`; their losses must not be compared."""
    found = Optimizers(lambda _: None)
    teacher, student = nn.Linear(2, 2), nn.Linear(2, 2)
    opt = SGD(teacher.parameters(), lr=0.1)
    assert named(found, opt) == "opt"
    opt = SGD(student.parameters(), lr=0.1)
    assert named(found, opt) == "opt#2"
    assert named(found, opt) == "opt#2"


def test_one_that_is_made_anew_goes_on() -> None:
    found = Optimizers(lambda _: None)
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    for _ in range(3):
        opt = SGD(net.parameters(), lr=0.1)
        assert named(found, opt) == "opt"
    opt = SGD(other.parameters(), lr=0.1)
    assert named(found, opt) == "opt#2"
    opt = SGD(net.parameters(), lr=0.1)
    assert named(found, opt) == "opt"


def test_a_network_that_is_gone_keeps_its_name() -> None:
    found = Optimizers(lambda _: None)
    for turn in range(2):
        opt = SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        assert named(found, opt) == ("opt#2" if turn else "opt")
