"""The README's pictures show what the commands print today; ``pictures.py`` draws them again."""

from __future__ import annotations

import pictures
import pytest
from console import same
from pages import blocks

README = (pictures.ROOT / "README.md").read_text(encoding="utf-8")
#: Between the float32 numbers of two processors, relative; the page rounds to four digits.
BOUND = 1e-3


@pytest.mark.slow
def test_the_table_shows_what_the_command_prints():
    printed = pictures.printed_table()
    today = pictures.text_of_table(pictures.drawn_table(printed, "light"))
    assert "float64" in printed
    for scheme in pictures.SCHEMES:
        svg = (pictures.FOLDER / f"table-{scheme}.svg").read_text(encoding="utf-8")
        assert same(pictures.text_of_table(svg), today), "python -m tests.pictures draws it again"


@pytest.mark.slow
def test_the_page_of_the_run_is_that_of_today():
    script = next(text for text in blocks("python", README) if text.startswith("# fit.py"))
    today = pictures.text_of_page(pictures.page_of_run(script))
    assert any("at fit.py:12" in line for line in today)
    for scheme in pictures.SCHEMES:
        carried = pictures.text_of_picture(pictures.FOLDER / f"run-{scheme}.png")
        assert same(carried, today, bound=BOUND), "python -m tests.pictures draws it again"


def test_the_text_of_a_table_is_read_back_and_a_change_is_noticed():
    printed = "\x1b[1mlayer\x1b[0m  norm\n\x1b[33mout\x1b[0m    1.234 <&>\n"
    for scheme in pictures.SCHEMES:
        shown = pictures.text_of_table(pictures.drawn_table(printed, scheme))
        assert same(shown, ["layer norm", "out 1.234 <&>"])
        assert not same(shown, ["layer norm", "out 1.236 <&>"])


def test_the_text_of_a_page_leaves_out_dates_versions_charts_and_tables():
    page = (
        "<style>p {}</style><p>began 2026-01-02 03:04:05, torch 2.14.1+cu130, took 5.0 %</p>"
        "<svg><text>17</text></svg><li>log of 0 (4 of 64 values)</li><table><td>1</td></table>"
    )
    assert pictures.text_of_page(page) == [
        "began DATE, torch VERSION, took SHARE %",
        "log of 0 (4 of 64 values)",
    ]
