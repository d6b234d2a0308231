"""Filters: norms and likeness beside NumPy's and scikit-learn's, and which are marked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity
from torch import nn

from gradscope.errors import LayerError, OptionError
from gradscope.features import sheets
from gradscope.features.channels import filter_bank
from gradscope.features.sheets import filter_sheet


def bank_of(module: nn.Module):
    return filter_bank(nn.Sequential(module), "0")


MODULES = {
    "colours": lambda: nn.Conv2d(3, 9, 5),
    "many channels": lambda: nn.Conv2d(17, 6, 3),
    "groups": lambda: nn.Conv2d(8, 8, 3, groups=4),
    "one dimension": lambda: nn.Conv1d(4, 6, 7),
    "three dimensions": lambda: nn.Conv3d(2, 5, 3),
    "bfloat16": lambda: nn.Conv2d(3, 9, 5).bfloat16(),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_norms_and_cosines_are_those_of_numpy_and_scikit_learn(make):
    module = make()
    flat = module.weight.detach().double().flatten(1).numpy()
    cosines = cosine_similarity(flat)
    np.fill_diagonal(cosines, -np.inf)
    bank = bank_of(module)
    assert [one.filter for one in bank.filters] == list(range(len(flat)))
    for one, weights, row in zip(bank.filters, flat, cosines, strict=True):
        assert one.norm == pytest.approx(np.linalg.norm(weights), rel=1e-12)
        assert (one.nearest, one.cosine) == (row.argmax(), pytest.approx(row.max(), rel=1e-12))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_filter_is_what_one_output_channel_is_made_with(groups):
    module = nn.ConvTranspose2d(4, 6, 3, groups=groups, bias=False)
    weights = bank_of(module).weights
    assert weights.shape == (6, 4 // groups, 3, 3)
    for channel in range(4):
        dot = torch.zeros(1, 4, 1, 1)
        dot[0, channel] = 1
        made = module(dot)[0]  # the filters of this input channel, one for each output
        reached = range(6) if groups == 1 else range(channel // 2 * 3, channel // 2 * 3 + 3)
        for out in reached:
            assert torch.equal(made[out], weights[out, channel % (4 // groups)])


def test_dead_and_duplicate_filters_are_marked():
    module = nn.Conv2d(3, 6, 5)
    with torch.no_grad():
        module.weight[1] *= 1e-6
        module.weight[2] = 0
        module.weight[5] = 3 * module.weight[4] + 1e-3
    filters = bank_of(module).filters
    assert [one.filter for one in filters if one.dead] == [1, 2]
    assert [(one.filter, one.nearest) for one in filters if one.duplicate] == [(4, 5), (5, 4)]
    assert [one.filter for one in bank_of(module).strongest][-2:] == [1, 2]


def test_a_layer_of_zeros_is_dead_as_a_whole():
    module = nn.Conv2d(3, 4, 3)
    nn.init.zeros_(module.weight)
    bank = bank_of(module)
    assert all(one.dead and one.cosine is None for one in bank.filters)
    assert filter_sheet(bank, "model: zeros", 64)


def test_numbers_that_are_none_are_drawn():
    module = nn.Conv2d(2, 3, 3)
    with torch.no_grad():
        module.weight[0, 0, 0, 0] = torch.nan
    (page,) = filter_sheet(bank_of(module), "model: broken", 64)
    assert page.width >= 480


def test_a_single_filter_has_no_neighbour():
    (one,) = bank_of(nn.Conv2d(1, 1, 3)).filters
    assert (one.nearest, one.cosine, one.dead) == (None, None, False)


def test_what_has_no_filters_is_refused():
    net = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(OptionError, match="`0` is a Linear, which has no filters"):
        filter_bank(net, "0")
    with pytest.raises(OptionError, match="no convolution"):
        filter_bank(net, None)
    both = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1))
    with pytest.raises(OptionError, match="matches 2 layers"):
        filter_bank(both, "*")
    with pytest.raises(LayerError):
        filter_bank(both, "conv")


def test_the_sheet_shows_the_strongest(monkeypatch):
    drawn = []

    def grid(title, rows, **kwargs):
        drawn.extend(tile for row in rows for tile in row)
        return []

    monkeypatch.setattr(sheets, "grid", grid)
    bank = bank_of(nn.Conv2d(3, 9, 5))
    filter_sheet(bank, "model: x", 4)
    assert [tile.title for tile in drawn] == [f"filter {b.filter}" for b in bank.strongest[:4]]
    # Colours: the first pixel's red is the weight of channel 0, grey for 0.
    weights = bank.weights[bank.strongest[0].filter]
    red = np.asarray(drawn[0].picture)[0, 0, 0] / 255
    assert (red - 0.5) * float(weights[0, 0, 0]) >= 0
