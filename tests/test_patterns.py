"""Patterns that take too long are refused; a mistake in one has the place of that item."""

from __future__ import annotations

import signal
import time

import pytest

from gradscope import patterns
from gradscope.comparison.alignment import Renaming
from gradscope.errors import LayerError, OptionError, Place
from gradscope.patterns import Named, Pattern, at_most, matching

NAME = "a" * 60 + "!"
SLOW = ["re:(a+)+$", "re:(.*)*x", "!re:(a|a)*b", "re:(.*a){25}", "*a" * 40]


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "PATIENCE", 0.05)
    monkeypatch.setattr("gradscope.comparison.alignment.PATIENCE", 0.05)


@pytest.mark.parametrize("text", SLOW)
def test_a_pattern_that_takes_too_long(text: str) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(LayerError, match="takes longer than"):
        Pattern(text).matches(Named(NAME))
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_renaming_that_takes_too_long() -> None:
    stars = "*a" * 20
    with pytest.raises(OptionError, match="takes longer than"):
        Renaming(f"{stars}={stars}").of(NAME)


@pytest.mark.parametrize("text", ["re:" + "(" * 5000, "re:[", "re:a{9999999999999999999}"])
def test_no_regular_expression(text: str) -> None:
    with pytest.raises(LayerError, match="is not a regular expression") as caught:
        Pattern(text)
    assert len(str(caught.value)) < 300


def test_the_place_is_the_patterns_own() -> None:
    def place(key: str, *, of_key: bool = False) -> Place:
        return Place("m.yaml", 3, key=key)

    for wanted, key in ((["**", "x"], "layers.1"), (["**", "!**"], "layers")):
        with pytest.raises(LayerError) as caught:
            matching(wanted, [Named("a")], key="layers", place=place)
        assert caught.value.problems[0].place == Place("m.yaml", 3, key=key)


def test_another_alarm_rings_all_the_same() -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *args: rung.append(args))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with at_most(60):
            pass
        while not rung:
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGALRM, before)
