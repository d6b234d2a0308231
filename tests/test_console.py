"""The comparison of pages with what commands print: what it passes, and what it must reject."""

from __future__ import annotations

import pytest
from console import same

SHOWN = [
    "loss = 2.303 · forward 9.01 ms",
    "layer  norm   zeros",
    "────────────────",
    "out    1.234e-05  1,250",
    "fc     1267  (0.06 %)",
    "capsule: 31.38 KiB",
    "also kept: step 78, 79, 82 (`--step N`)",
]


def changed(line: int, old: str, new: str) -> list[str]:
    assert old in SHOWN[line]
    return [text.replace(old, new) if number == line else text for number, text in enumerate(SHOWN)]


ALIKE = {
    "another time, other spaces": [
        "loss = 2.303 · forward 21 µs", "layer norm zeros", "──", *SHOWN[3:],
    ],
    "one in the last digit": changed(0, "2.303", "2.304"),
    "one in the last digit of a power": changed(3, "1.234e-05", "1.235e-05"),
    "one in four digits": changed(4, "1267", "1266"),
    "one in the last digit, in brackets": changed(4, "(0.06", "(0.07"),
    "fewer digits": changed(0, "2.303", "2.30"),
    "another size of the file": changed(5, "31.38", "31.41"),
    "other steps that are kept": changed(6, "79, 82", "81"),
}  # fmt: skip

OTHER = {
    "another number": changed(0, "2.303", "2.305"),
    "another word": changed(3, "out", "in"),
    "another count": changed(3, "1,250", "1,251"),
    "another sign": changed(0, "2.303", "-2.303"),
    "two in four digits": changed(4, "1267", "1269"),
    "a line too many": [*SHOWN, "fc 1.0"],
    "a line too few": SHOWN[:3],
    "another unit of the file's size": changed(5, "KiB", "B"),
    "no size": changed(5, "31.38 KiB", "none"),
    "no other step that is kept": changed(6, "step 78, 79, 82", "no step"),
    "another order of magnitude": changed(3, "e-05", "e-06"),
}


@pytest.mark.parametrize("lines", ALIKE.values(), ids=ALIKE)
def test_times_spaces_and_rounding_make_no_difference(lines):
    assert same(lines, SHOWN)


@pytest.mark.parametrize("lines", OTHER.values(), ids=OTHER)
def test_other_output_is_noticed(lines):
    assert not same(lines, SHOWN)


def test_a_bound_is_relative():
    assert same(changed(0, "2.303", "2.322"), SHOWN, bound=0.01)
    assert not same(changed(0, "2.303", "2.332"), SHOWN, bound=0.01)
    assert not same(changed(3, "1,250", "1,251"), SHOWN, bound=0.01)
