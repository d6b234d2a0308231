"""Draws the pictures of a saliency report: an overlay for a single map, contact sheets for
several."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw

from gradscope.images.colour_scales import PERCENTILE
from gradscope.images.files import PICTURES
from gradscope.images.grid import (
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
from gradscope.images.photos import (
    HeatMap,
    Photo,
    cropped,
    magnification,
    magnified,
    painted,
    reduced,
)
from gradscope.typeset.numbers import number

if TYPE_CHECKING:
    from gradscope.records.saliency import Attribution, SaliencyReport

#: A photograph wider than this times its height has its overlay below it, any other beside it.
_WIDE = 1.6


def overlay(photo: Photo, heat: HeatMap) -> Image.Image:
    """Draw the overlay at the photograph's resolution (small ones are magnified).

    Method, target class and score are above it, and the colour bar below. The foot has the remarks:
    how colours were scaled, whether the map is blank, which part of the photograph the model saw,
    and the remarks of photo and map.
    """
    times, scale = magnification(photo.picture.size), heat.scale
    original = magnified(photo.picture, times)
    below = original.width > _WIDE * original.height
    size = _letters(original, below)
    margin = size
    panels = (original.width, 2 * original.height + margin)
    panels = panels if below else (2 * original.width + margin, original.height)
    text = max(panels[0], 26 * size)
    title = wrapped(headline(photo, heat), size, text)
    small = max(13, round(size * 0.8))
    foot = [line for remark in remarks(photo, heat) for line in wrapped(remark, small, text)]
    top = margin + len(title) * line_height(size) + margin // 2
    corner = (
        (margin, top + original.height + margin) if below else (margin * 2 + original.width, top)
    )
    bar = 0 if scale.blank else margin // 2 + bar_height(small)
    bottom = top + panels[1] + bar
    foot_height = margin // 2 + len(foot) * line_height(small) if foot else 0
    canvas = Image.new("RGB", (text + 2 * margin, bottom + foot_height + margin), PAPER)
    write(canvas, (margin, margin), title, size, INK)
    canvas.paste(original, (margin, top))
    canvas.paste(painted(photo, heat, scale), corner)
    if bar:
        place = (corner[0], top + panels[1] + margin // 2)
        draw_bar(canvas, place, max(original.width, 12 * small), scale, small)
    write(canvas, (margin, bottom + margin // 2), foot, small, DIM)
    return canvas


def headline(photo: Photo, heat: HeatMap) -> str:
    """Return method, target class and score in one line."""
    score = "" if photo.score is None else f" · score {number(photo.score)}"
    return f"{heat.method} · {photo.target}{score}"


def remarks(photo: Photo, heat: HeatMap) -> list[str]:
    """Return sentences that explain the picture."""
    scale, geometry = heat.scale, photo.geometry
    sentences = [scale.blank] if scale.blank else []
    sentences += [*scale.remarks, *heat.remarks]
    if geometry is not None and not geometry.sees_all():
        sentences.append("the model saw the part inside the line; the rest is dimmed")
    if geometry is None and heat.values.shape[::-1] != photo.picture.size:
        sentences.append(
            "which part of the photograph the model saw is not known: the map is stretched"
        )
    times = magnification(photo.picture.size)
    if times > 1:
        sentences.append(f"drawn at {times} times its size")
    return [*sentences, *photo.remarks]


def _letters(original: Image.Image, below: bool) -> int:
    """Return a height of letters that stays legible if the picture is fitted to a screen."""
    total = max(original.width * (1 if below else 2), original.height * (2 if below else 1))
    return min(max(16, round(total / 70)), 160)


#: The side of the square that each picture is fitted to.
CELL = 240
#: Methods side by side; more go on to the next line of the same photograph.
ACROSS = 6
#: Lines of pictures on one page.
LINES = 8
_GAP, _SIZE, _SMALL = 18, 17, 14

Row = tuple[Photo, Sequence[HeatMap]]


def sheets(rows: Sequence[Row]) -> list[Image.Image]:
    """Draw the pages of a contact sheet, in order; none without rows.

    Each picture has its method above and a colour bar below, because each method has its own scale.
    A photograph with many methods stays on one page if it fits.
    """
    most = max((len(maps) for _, maps in rows), default=0)
    columns = _even(most)
    pages: list[list[list[Image.Image]]] = []
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
    """Return the number of pages that ``sheets`` makes for photographs with that many methods
    each."""
    lines = max(1, -(-methods // _even(methods)))
    if lines > LINES:
        return photographs * -(-lines // LINES)
    return -(-photographs // (LINES // lines))


def _even(methods: int) -> int:
    """Return the number of columns: at most ``ACROSS``, with lines of about the same length."""
    lines = max(1, -(-methods // ACROSS))
    return max(1, -(-methods // lines))


def _page(blocks: list[list[Image.Image]], footer: str) -> Image.Image:
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


def _lines(photo: Photo, maps: Sequence[HeatMap], columns: int) -> list[Image.Image]:
    """Return the lines of one photograph; the first has its name, the class and the original."""
    photo = reduced(photo, CELL)
    parts = [maps[i : i + columns] for i in range(0, len(maps), columns)] or [[]]
    return [_line(photo, part, columns, first=i == 0) for i, part in enumerate(parts)]


def _line(photo: Photo, maps: Sequence[HeatMap], columns: int, *, first: bool) -> Image.Image:
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


def _cell(photo: Photo, heat: HeatMap, times: int) -> Image.Image:
    """Draw the method's name, the overlay and its colour bar, or the reason why the map is
    blank."""
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


def _framed(title: str, picture: Image.Image) -> Image.Image:
    """Put a title above the picture, and leave room for a bar below."""
    head = line_height(_SIZE)
    canvas = Image.new(
        "RGB", (CELL, head + picture.height + _GAP // 3 + (bar_height(_SMALL) + _GAP // 3)), PAPER
    )
    size = _SIZE
    while size > 9 and text_width(title, size) > CELL:
        size -= 1
    shown = wrapped(title, size, CELL)[:1]
    write(canvas, (0, 0), shown, size, INK)
    canvas.paste(picture, ((CELL - picture.width) // 2, head))
    return canvas


def rows(
    report: SaliencyReport,
    photos: Sequence[Photo],
    maps: Sequence[Sequence[Any]],
    *,
    alpha: float | None,
    colormap: str,
    crop: bool,
) -> list[Row]:
    """Return each photograph of a report with its heat maps; ``maps`` are tensors [H, W]."""
    found: list[Row] = []
    for photo, image, values in zip(photos, report.images, maps, strict=True):
        pairs = zip(image.maps, values, strict=True)
        heats = [_heat(record, one.numpy(), alpha, colormap) for record, one in pairs]
        found.append((cropped(photo) if crop else photo, heats))
    return found


def pages(rows: Sequence[Row]) -> list[Image.Image]:
    """Return one picture for a single map, else the pages of a contact sheet."""
    if len(rows) == 1 and len(rows[0][1]) == 1:
        return [overlay(rows[0][0], rows[0][1][0])]
    return sheets(rows)


def encoded(picture: Image.Image, path: Path) -> bytes:
    """Encode the picture in the format of a file's suffix."""
    data = io.BytesIO()
    picture.save(data, PICTURES[path.suffix.lower()])
    return data.getvalue()


def _heat(record: Attribution, values: Any, alpha: float | None, colormap: str) -> HeatMap:
    remarks = (record.note,) if record.note else ()
    other = record.options.get("class")
    name = record.method if other is None else f"{record.method} {other}"
    return HeatMap(name, values, record.signed, remarks, alpha, colormap)
