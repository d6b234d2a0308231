"""One call seeds every generator that a model or a data function may draw from."""

import random

import numpy as np
import pytest
import torch

from gradscope.loading.devices import seed_everything


def draws() -> tuple[list[float], float, list[float]]:
    return torch.rand(3).tolist(), random.random(), np.random.rand(3).tolist()


@pytest.fixture(autouse=True)
def random_state_is_put_back():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


def test_the_same_seed_gives_the_same_draws():
    seed_everything(7)
    first = draws()
    draws()
    seed_everything(7)
    assert draws() == first


def test_another_seed_gives_others():
    seed_everything(7)
    first = draws()
    seed_everything(8)
    assert all(a != b for a, b in zip(first, draws(), strict=True))


def test_it_is_what_a_user_would_write():
    seed_everything(3)
    found = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(found, torch.rand(4))


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**63, 2**64, 2**80])
def test_any_size_of_seed_is_taken(seed):
    seed_everything(seed)
