"""The script's objects are searched for names without a call of their methods."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from gradscope.training.discovery import variable_name


class Holder:
    def __init__(self, value: object) -> None:
        self.held_here = value


class Lazy:
    """A proxy that would load its object, and fail, at any question."""

    @property
    def __class__(self):
        raise AssertionError("loaded")

    def __getattribute__(self, name: str) -> object:
        raise AssertionError("loaded")


class Guarded(dict):
    def items(self):
        raise AssertionError("called")


@pytest.mark.parametrize(
    "owner",
    [Holder, lambda one: SimpleNamespace(held_here=one), lambda one: Guarded(held_here=one)],
    ids=["object", "namespace", "mapping"],
)
def test_an_attribute_gives_the_name(owner, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [object()]  # in a list, so that no variable of this function is its name
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "lazy", Lazy(), raising=False)
    monkeypatch.setattr(main, "holder", owner(values[0]), raising=False)
    name = variable_name(*values)
    assert name == "held_here"
