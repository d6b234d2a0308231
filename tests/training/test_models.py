"""The models of a run, while the script may let go of them at any time."""

from __future__ import annotations

import gc

from torch import nn

from gradscope.training.models import Models


def test_a_model_that_is_being_looked_at_stays() -> None:
    models = Models()
    net: nn.Module | None = nn.Linear(2, 2)
    models.only([net])  # type: ignore[list-item]
    assert models.search()
    net = None
    for model in models:
        gc.collect()
        assert model.module is not None
    assert list(models) == []


def test_those_that_are_kept_stay_in_the_block() -> None:
    models = Models()
    nets = [nn.Linear(2, 2), nn.Linear(2, 2)]
    models.only(nets)
    assert models.search()
    with models.kept() as found:
        nets.clear()
        gc.collect()
        assert [type(model.module) for model in found] == [nn.Linear, nn.Linear]
    assert list(models) == []


def test_a_model_outlives_its_wrapper() -> None:
    models, net = Models(), nn.Linear(2, 2)
    wrapper: nn.Module | None = nn.DataParallel(net)
    models.search()
    (found,) = [model for model in models if model.module is net]
    assert found.outer() is wrapper
    wrapper = None
    gc.collect()
    for _ in range(2):
        assert [model for model in models if model.module is net] == [found]
        assert not models.search()


def test_gc_freeze_hides_no_model_that_was_made_under_observation(monkeypatch) -> None:
    """Scripts freeze the heap to spare themselves searches for garbage, as nanochat's does."""
    models, net = Models(), nn.Sequential(nn.Linear(2, 2))
    monkeypatch.setattr(gc, "get_objects", list)
    assert not models.search()
    models.registered = lambda: net.modules()
    assert models.search()
    assert [model.module for model in models] == [net]


def test_a_module_in_several_wrappers_is_one_model() -> None:
    models, net = Models(), nn.Linear(2, 2)
    wrappers = [nn.DataParallel(net), nn.DataParallel(net)]
    models.search()
    (found,) = [model for model in models if model.module is net]
    assert found.outer() in wrappers
    assert not models.search()
