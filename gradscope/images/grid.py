"""Draws pages of small pictures in rows, with text above and below each, and filters as
pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from gradscope.images.colour_scales import Scale, colored
from gradscope.images.lettering import (
    DIM,
    INK,
    PAPER,
    bar_height,
    draw_bar,
    line_height,
    wrapped,
    write,
)
from gradscope.images.photos import magnified

#: Around a picture that is marked: an orange that every kind of colour blindness sees.
MARK = (213, 94, 0)
#: Rows on one page.
ROWS = 8
_GAP, _SIZE, _SMALL = 18, 17, 14
_RIM = 3


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A picture with the text above and the lines below it; a ``marked`` one has a frame."""

    picture: Image.Image
    title: str = ""
    lines: tuple[str, ...] = ()
    marked: bool = False


def in_rows(tiles: Sequence[Tile], columns: int) -> list[Sequence[Tile]]:
    """Arrange tiles in rows of so many."""
    return [tiles[i : i + columns] for i in range(0, len(tiles), columns)]


def grid(
    title: Sequence[str],
    rows: Sequence[Sequence[Tile]],
    *,
    side: int,
    scale: Scale | None = None,
    foot: Sequence[str] = (),
) -> list[Image.Image]:
    """Draw the pages, in order; each has the title, and at its foot the colour bar and the remarks.

    Args:
        title: sentences above the first row: the subject and the model.
        rows: rows of tiles.
        side: the side of the square for each picture.
        scale: the colour scale of all pictures.
        foot: sentences below the last row.
    """
    columns = max(map(len, rows), default=1)
    parts = [rows[i : i + ROWS] for i in range(0, len(rows), ROWS)] or [[]]
    width = max(columns * (side + _GAP) + _GAP, 480)
    count = f" · page {{}} of {len(parts)}" if len(parts) > 1 else ""
    return [
        _page([*title[:-1], title[-1] + count.format(i)], part, width, side, scale, foot)
        for i, part in enumerate(parts, 1)
    ]


def _page(
    title: Sequence[str],
    rows: Sequence[Sequence[Tile]],
    width: int,
    side: int,
    scale: Scale | None,
    foot: Sequence[str],
) -> Image.Image:
    room = width - 2 * _GAP
    head = [line for sentence in title for line in wrapped(sentence, _SIZE, room)]
    small = [line for sentence in foot for line in wrapped(sentence, _SMALL, room)]
    lines = [_line(row, side) for row in rows]
    bar = 0 if scale is None or scale.blank else bar_height(_SMALL) + _GAP // 2
    top = _GAP + len(head) * line_height(_SIZE) + _GAP // 2
    height = top + sum(line.height + _GAP for line in lines) + bar
    canvas = Image.new("RGB", (width, height + len(small) * line_height(_SMALL) + _GAP // 2), PAPER)
    write(canvas, (_GAP, _GAP), head, _SIZE, INK)
    y = top
    for line in lines:
        canvas.paste(line, (_GAP, y))
        y += line.height + _GAP
    if bar and scale is not None:
        draw_bar(canvas, (_GAP, y), min(room, 320), scale, _SMALL)
        y += bar
    write(canvas, (_GAP, y), small, _SMALL, DIM)
    return canvas


def _line(row: Sequence[Tile], side: int) -> Image.Image:
    """Draw the tiles of one row side by side, with their pictures at one height."""
    above = [wrapped(tile.title, _SMALL, side) if tile.title else [] for tile in row]
    below = [[x for line in tile.lines for x in wrapped(line, _SMALL, side)] for tile in row]
    pictures = [_fitted(tile, side) for tile in row]
    top = max(map(len, above)) * line_height(_SMALL)
    tallest = max(picture.height for picture in pictures)
    height = top + tallest + max(map(len, below)) * line_height(_SMALL) + _RIM
    canvas = Image.new("RGB", (len(row) * (side + _GAP), height), PAPER)
    for i, picture in enumerate(pictures):
        x = i * (side + _GAP)
        write(canvas, (x, 0), above[i], _SMALL, INK)
        canvas.paste(picture, (x, top))
        write(canvas, (x, top + tallest + _RIM), below[i], _SMALL, DIM)
    return canvas


def _fitted(tile: Tile, side: int) -> Image.Image:
    """Fit the picture into the square; the pixels of small ones become larger squares."""
    picture, longest = tile.picture, max(tile.picture.size)
    if longest > side:
        size = tuple(max(1, round(each * side / longest)) for each in picture.size)
        picture = picture.convert("RGB").resize((size[0], size[1]), Image.Resampling.LANCZOS)
    else:
        picture = magnified(picture, side // longest)
    if tile.marked:
        box = (0, 0, picture.width - 1, picture.height - 1)
        ImageDraw.Draw(picture).rectangle(box, outline=MARK, width=_RIM)
    return picture


def colored_kernel(weights: NDArray[np.float32], top: float) -> Image.Image:
    """Draw a filter [3, h, w] as a colour picture: grey is 0, black −``top`` and white ``top``."""
    shares = np.nan_to_num(0.5 + weights / (2 * top or 1.0), nan=0.5).clip(0, 1)
    return Image.fromarray(np.rint(shares * 255).astype(np.uint8).transpose(1, 2, 0).copy())


def mapped_kernel(weights: NDArray[np.float32], scale: Scale) -> Image.Image:
    """Draw a filter [channels, h, w] as maps in the scale's colours, row by row in a square."""
    channels, height, width = weights.shape
    across = math.ceil(math.sqrt(channels * height / width))
    down = math.ceil(channels / across)
    colors = colored(scale.shares(weights), scale.signed)
    size = (down * (height + 1) - 1, across * (width + 1) - 1, 3)
    canvas = np.full(size, PAPER, dtype=np.uint8)
    for i in range(channels):
        y, x = i // across * (height + 1), i % across * (width + 1)
        canvas[y : y + height, x : x + width] = colors[i]
    return Image.fromarray(canvas)
