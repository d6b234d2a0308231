"""Contact sheets: a row for each photograph, the original first, then each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradscope.images.lettering import (
    DIM,
    INK,
    PAPER,
    bar_height,
    draw_bar,
    line_height,
    text_width,
    wrapped,
    write,
)
from gradscope.images.painting import painted
from gradscope.images.photos import HeatMap, Photo, magnified, reduced
from gradscope.images.scales import PERCENTILE
from gradscope.typeset.numbers import number

if TYPE_CHECKING:
    from PIL.Image import Image

#: The side of the square that each picture is fitted to.
CELL = 240
#: Methods side by side; more go on to the next line of the same photograph.
ACROSS = 6
#: Lines of pictures on one page.
LINES = 8
_GAP, _SIZE, _SMALL = 18, 17, 14

Row = tuple[Photo, Sequence[HeatMap]]


def sheets(rows: Sequence[Row]) -> list[Image]:
    """The pages of a contact sheet, in order; none without rows.

    Each picture has its method above and its own colour bar below, for methods have their own
    scales. A photograph with many methods is not split between pages if it fits on one.
    """
    most = max((len(maps) for _, maps in rows), default=0)
    columns = _even(most)
    pages: list[list[list[Image]]] = []
    for photo, maps in rows:
        lines = _lines(photo, maps, columns)
        for start in range(0, len(lines), LINES):
            part = lines[start : start + LINES]
            if not pages or sum(map(len, pages[-1])) + len(part) > LINES:
                pages.append([])
            pages[-1].append(part)
    total = len(pages)
    footer = (
        f"colours end at the {PERCENTILE:g}th percentile of each map; < and > mark values beyond"
    )
    return [
        _page(page, footer + f" · page {i} of {total}" * (total > 1))
        for i, page in enumerate(pages, 1)
    ]


def page_count(photographs: int, methods: int) -> int:
    """How many pages ``sheets`` makes of photographs that have as many methods each."""
    lines = max(1, -(-methods // _even(methods)))
    if lines > LINES:
        return photographs * -(-lines // LINES)
    return -(-photographs // (LINES // lines))


def _even(methods: int) -> int:
    """Columns of methods: at most ``ACROSS``, and lines of about the same length."""
    lines = max(1, -(-methods // ACROSS))
    return max(1, -(-methods // lines))


def _page(blocks: list[list[Image]], footer: str) -> Image:
    from PIL import Image, ImageDraw

    pictures = [line for block in blocks for line in block]
    width = max(line.width for line in pictures)
    foot = wrapped(footer, _SMALL, width - 2 * _GAP)
    height = sum(line.height for line in pictures) + _GAP * (len(blocks) + 1)
    canvas = Image.new("RGB", (width, height + len(foot) * line_height(_SMALL)), PAPER)
    draw = ImageDraw.Draw(canvas)
    y = _GAP
    for number_of, block in enumerate(blocks):
        if number_of:
            draw.line((_GAP, y - _GAP // 2, canvas.width - _GAP, y - _GAP // 2), fill=(205,) * 3)
        for line in block:
            canvas.paste(line, (0, y))
            y += line.height
        y += _GAP
    write(canvas, (_GAP, y - _GAP // 2), foot, _SMALL, DIM)
    return canvas


def _lines(photo: Photo, maps: Sequence[HeatMap], columns: int) -> list[Image]:
    """The lines of one photograph; the first has its name, the class and the original."""
    photo = reduced(photo, CELL)
    parts = [maps[i : i + columns] for i in range(0, len(maps), columns)] or [[]]
    return [_line(photo, part, columns, first=i == 0) for i, part in enumerate(parts)]


def _line(photo: Photo, maps: Sequence[HeatMap], columns: int, *, first: bool) -> Image:
    from PIL import Image

    width = (columns + 1) * (CELL + _GAP) + _GAP
    score = "" if photo.score is None else f" · score {number(photo.score)}"
    remarks = "".join(f" · {remark}" for remark in photo.remarks)
    title = wrapped(f"{photo.name} · {photo.target}{score}{remarks}", _SIZE, width - 2 * _GAP)
    times = max(1, CELL // max(photo.picture.size))
    original = magnified(photo.picture, times)
    cells = [_cell(photo, heat, times) for heat in maps]
    cells = [_framed("original", original), *cells] if first else cells
    top = len(title) * line_height(_SIZE) + _GAP // 2 if first else 0
    height = top + max((cell.height for cell in cells), default=0)
    canvas = Image.new("RGB", (width, height), PAPER)
    if first:
        write(canvas, (_GAP, 0), title, _SIZE, INK)
    for i, cell in enumerate(cells):
        canvas.paste(cell, (_GAP + (i + (not first)) * (CELL + _GAP), top))
    return canvas


def _cell(photo: Photo, heat: HeatMap, times: int) -> Image:
    """The method's name, the overlay and its colour bar, or why there is nothing to see."""
    scale = heat.scale
    framed = _framed(heat.method, painted(photo, heat, scale, times=times))
    y = framed.height - bar_height(_SMALL) - _GAP // 3
    if scale.blank:
        lines = wrapped("; ".join((scale.blank, *heat.remarks)), _SMALL, CELL)
        shown = lines if len(lines) <= 2 else [lines[0], lines[1].rstrip() + "…"]
        write(framed, (0, y), shown, _SMALL, INK)
    else:
        draw_bar(framed, (0, y), CELL, scale, _SMALL)
    return framed


def _framed(title: str, picture: Image) -> Image:
    """A title above the picture, and room for a bar below."""
    from PIL import Image

    head = line_height(_SIZE)
    canvas = Image.new("RGB", (CELL, head + picture.height + _GAP // 3 + _below()), PAPER)
    size = _SIZE
    while size > 9 and text_width(title, size) > CELL:
        size -= 1
    shown = wrapped(title, size, CELL)[:1]
    write(canvas, (0, 0), shown, size, INK)
    canvas.paste(picture, ((CELL - picture.width) // 2, head))
    return canvas


def _below() -> int:
    return bar_height(_SMALL) + _GAP // 3
