"""Numbers as a line of blocks: what it shows, and what it must not hide."""

from __future__ import annotations

import math

import pytest

from gradscope.typeset.sparklines import BLOCKS, NOT_FINITE, curve


def drawn(values: list[float | None], width: int = 12, lost: tuple[int, ...] = ()) -> str:
    steps = range(1, len(values) + 1)
    return curve(list(steps), values, lost, first=1, last=len(values), width=width)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], BLOCKS),
        ([7, 6, 5, 4, 3, 2, 1, 0], BLOCKS[::-1]),
        ([-3.5, 0, 3.5], "▁▅█"),
        # An exponential is a straight line where its ends are far enough apart.
        ([1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1], BLOCKS),
        ([5, 5, 5], "▄▄▄"),
        ([0, 0, 0], "▁▁▁"),
        ([0, 1e-9, 1], "▁▁█"),
        ([1, None, 3], "▁ █"),
        ([1, math.nan, 3], "▁!█"),
        ([1, math.inf, -math.inf], "▄!!"),
        ([None, None], "  "),
        ([], " "),
        ([1e300], "▄"),
        ([1.7e308, -1.7e308, 0], "█▁▅"),
    ],
)
def test_curves(values: list[float | None], shown: str) -> None:
    assert drawn(values) == shown


def test_an_outlier_does_not_flatten_the_rest() -> None:
    falling: list[float | None] = [100 - i for i in range(60)]
    falling[30] = 1e300
    text = drawn(falling, 60)
    assert text[30] == BLOCKS[-1]
    assert len(set(text)) == len(BLOCKS)


def test_a_spike_is_seen_where_a_column_is_many_steps() -> None:
    flat: list[float | None] = [1 + 0.01 * (i % 7) for i in range(1200)]
    assert BLOCKS[-1] not in drawn(flat).strip("▄")
    flat[700] = 50.0
    text = drawn(flat)
    assert text[7] == BLOCKS[-1]
    assert text.count(BLOCKS[-1]) == 1


def test_one_step_lost_among_many_is_marked() -> None:
    values: list[float | None] = [1.0] * 1200
    values[899] = None
    assert drawn(values, lost=(900,)).index(NOT_FINITE) == 8
    values[899] = math.nan
    assert drawn(values).count(NOT_FINITE) == 1


def test_between_two_looks_the_first_is_taken_to_have_held() -> None:
    assert curve([1, 5, 9], [1, 8, 4], (), first=1, last=9, width=9) == "▁▁▁▁████▄"


def test_before_the_first_look_and_after_the_last_there_is_nothing() -> None:
    assert curve([3, 5], [2.0, 2.0], (), first=1, last=8, width=8) == "  ▄▄▄   "


@pytest.mark.parametrize("width", [1, 2, 7, 64])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 1000])
def test_no_wider_than_asked_nor_than_there_are_steps(width: int, length: int) -> None:
    assert len(drawn([float(i) for i in range(length)], width)) == min(width, length)
