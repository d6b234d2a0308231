"""Numbers that never lie by rounding, and text that never moves the cursor."""

from __future__ import annotations

import math

import pytest

from gradscope.typeset.numbers import count, duration, number, seconds, share, size
from gradscope.typeset.text import break_name, break_words, natural, plain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1.000"),
        (0.0123, "0.01230"),
        (12.34, "12.34"),
        (-1234.4, "-1234"),
        (9999.6, "1.000e+04"),
        (12340.0, "1.234e+04"),
        (1.2344e-5, "1.234e-05"),
        (5e-324, "4.941e-324"),
        (1.7e308, "1.700e+308"),
        (7, "7.000"),
        (None, "n/a"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.0123, "12.30 ms"),
        (119.9, "119.9 s"),
        (120, "2 min"),
        (252.4, "4 min 12 s"),
        (7199.4, "119 min 59 s"),
        (7199.6, "2 h"),
        (7322, "2 h 2 min"),
        (172_799, "47 h 59 min"),
        (172_800, "2 d"),
        (1e8, "1,157 d 9 h"),
        (math.inf, "inf s"),
    ],
)
def test_duration(value: float, text: str) -> None:
    assert duration(value) == text


@pytest.mark.parametrize("exponent", range(-323, 309, 7))
def test_what_is_not_zero_never_reads_as_zero(exponent: int) -> None:
    value = float(f"1.2345e{exponent}")
    assert float(number(value)) != 0
    assert abs(float(number(value)) - value) <= 1e-3 * value or value < 1e-307


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 10, "0"),
        (0, 0, "0"),
        (1, 10_000_000, "<0.1 %"),
        (1, 1000, "0.1 %"),
        (1, 3, "33.3 %"),
        (999, 1000, "99.9 %"),
        (9_999_999, 10_000_000, ">99.9 %"),
        (10, 10, "100 %"),
    ],
)
def test_share(part: int, whole: int, text: str) -> None:
    assert share(part, whole) == text


def test_other_quantities() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 1_048_576, 10**20)] == [
        *("0 B", "1023 B", "1.000 KiB", "1.500 KiB", "1.000 MiB", "86.74 EiB")
    ]
    assert [seconds(x) for x in (0, 1.5, 0.0123, 4.56e-5)] == [
        "0 s",
        "1.500 s",
        "12.30 ms",
        "45.60 µs",
    ]
    assert count(1234567) == "1,234,567"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("layer1.0.conv1", "layer1.0.conv1"),
        ("a\nb\r\t", "a\\nb\\r\\t"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("zero\u200bwidth\u2028", "zero\\u200bwidth\\u2028"),
        ("\ud800", "\\ud800"),
        ("[red]模型[/red]", "[red]模型[/red]"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_plain(name: str, text: str) -> None:
    assert plain(name) == text


def test_names_break_at_dots_only() -> None:
    name = "encoder.layers.encoder_layer_11.self_attention.out_proj"
    for width in range(1, 60):
        lines = break_name(name, width)
        assert "".join(line.strip() for line in lines) == name
        assert all(line.endswith(".") for line in lines[:-1])
    assert break_name("模型.层.注意力", 6) == ["模型.", "  层.", "  注意力"]
    assert break_name("", 3) == [""]
    assert break_name("a..b.", 1) == ["a..", "  b."]


def test_prose_breaks_at_spaces_and_keeps_every_word() -> None:
    text = "one tensor is passed as several inputs: grad_in is the sum over them"
    for width in (1, 10, 30, 66, None):
        lines = break_words(text, width, indent="  ")
        assert " ".join(line.strip() for line in lines) == text
        assert width is None or all(len(line) <= max(width, 10) for line in lines)


def test_natural_order_survives_odd_digits() -> None:
    assert sorted(["l10", "l9", "l²", "l" + "9" * 5000], key=natural)[:2] == ["l9", "l10"]
