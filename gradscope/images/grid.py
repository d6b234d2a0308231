"""Draws pages of small pictures in rows, with text above and below each, filters as pictures, and
pictures as points in a plane; with text and colour bars in the font that Pillow contains.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.ImageFont import FreeTypeFont
from PIL.ImageFont import ImageFont as BitmapFont

from gradscope.images.colour_scales import STEPS, Scale, colored, table
from gradscope.images.photos import magnified

INK, DIM, PAPER = (17, 17, 17), (95, 95, 95), (255, 255, 255)
#: Characters beyond ASCII that the font can draw.
_DRAWN = "©«°±´·»‘’“”…‹›™"
_FINER = 4
_FOLDED = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "—": "-",
        "×": "x",
        "→": ">",
        "\u00a0": " ",
        "ß": "ss",
        "æ": "ae",
        "œ": "oe",
        "ø": "o",
        "ł": "l",
        "đ": "d",
        "ı": "i",
        "Æ": "Ae",
        "Œ": "Oe",
        "Ø": "O",
        "Ł": "L",
        "Đ": "D",
    }
)


@lru_cache(maxsize=16)
def font(size: int) -> FreeTypeFont | BitmapFont:
    """Return the font at a height in pixels; without FreeType, Pillow's only bitmap font."""
    try:
        return ImageFont.load_default(size)
    except ImportError:
        return ImageFont.load_default()


def drawable(text: str) -> str:
    """Return text that the font can draw: without accents, and with escapes for other
    characters."""
    folded = unicodedata.normalize("NFKD", text.translate(_FOLDED).replace("…", "\0"))
    kept = (c for c in folded.replace("\0", "…") if not unicodedata.combining(c))
    return "".join(_sign(c) for c in kept)


def _sign(character: str) -> str:
    if (character.isascii() and character.isprintable()) or character in _DRAWN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def text_width(text: str, size: int) -> int:
    """Return the width in pixels of one line."""
    return math.ceil(font(size * _FINER).getlength(drawable(text)) / _FINER)


def line_height(size: int) -> int:
    """Return the distance from one line to the next."""
    return round(size * 1.35)


def wrapped(text: str, size: int, width: int) -> list[str]:
    """Break text into lines of ``width`` pixels, at spaces; long words anywhere."""
    lines = [""]
    for word in drawable(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if text_width(longer, size) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        for character in word:
            if lines[-1] and text_width(lines[-1] + character, size) > width:
                lines.append("")
            lines[-1] += character
    return lines


def write(
    canvas: Image.Image,
    at: tuple[int, int],
    lines: list[str],
    size: int,
    color: tuple[int, int, int],
) -> int:
    """Draw lines one below the other; return the y below the last one."""
    x, y = at
    for line in lines:
        # Drawn at four times its size: the spaces between letters are full pixels.
        room = (text_width(line, size) + size, line_height(size))
        mask = Image.new("L", (room[0] * _FINER, room[1] * _FINER))
        ImageDraw.Draw(mask).text((0, 0), drawable(line), font=font(size * _FINER), fill=255)
        canvas.paste(color, (x, y, x + room[0], y + room[1]), mask.reduce(_FINER))
        y += room[1]
    return y


def bar_height(size: int) -> int:
    """Return the height that ``draw_bar`` needs."""
    return size + size // 3 + line_height(size)


def draw_bar(canvas: Image.Image, at: tuple[int, int], width: int, scale: Scale, size: int) -> None:
    """Draw a colour bar with the numbers of its ends below it; signed bars have 0 in the middle."""
    x, y = at
    colors = table(scale.signed, scale.colormap)[
        np.linspace(0, STEPS - 1, width).round().astype(int)
    ]
    canvas.paste(Image.fromarray(np.repeat(colors[None], size, axis=0)), at)
    draw = ImageDraw.Draw(canvas)
    draw.rectangle((x, y, x + width - 1, y + size - 1), outline=DIM)
    low, high = scale.labels
    below, tick = y + size + size // 3, max(2, size // 5)
    places = [(0, low), (width - text_width(high, size), high)]
    if scale.signed:
        places.append(((width - text_width("0", size)) // 2, "0"))
    for offset in (0, width - 1, *([width // 2] if scale.signed else [])):
        draw.line((x + offset, y + size, x + offset, y + size + tick - 1), fill=DIM)
    taken: list[tuple[int, int]] = []
    for offset, label in places:
        end = offset + text_width(label, size)
        # If a bar is too short for all its numbers, its ends stay rather than the middle.
        if all(end < a or offset > b for a, b in taken) or len(taken) < 2:
            write(canvas, (x + offset, below), [label], size, INK)
        taken.append((offset, end))


#: Colour of the frame of a marked picture: an orange that is visible with every kind of colour
#: blindness.
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


#: The plane is cut into this many cells a side, each of which shows at most one picture.
CELLS = 19
_INCHES, _DPI = (12.0, 9.6), 120
#: The side of a small picture, the larger the fewer there are.
_SMALLEST, _LARGEST, _TOGETHER = 32, 96, 350
#: Number of classes in one column of the legend; with more classes, no names are in the plane.
_LINES = 40
_GREY = (0.35, 0.35, 0.35)


def scattered(
    places: NDArray[np.float64],
    labels: Sequence[str | None],
    thumbnails: Mapping[int, Image.Image],
    title: Sequence[str],
    foot: str,
) -> Image.Image:
    """Draw points [N, 2] in their classes' colours, some of them as small pictures."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    # Overrides any matplotlibrc.
    with mpl.rc_context():
        mpl.rcdefaults()
        figure = Figure(figsize=_INCHES, dpi=_DPI, facecolor="white")
        canvas: Any = FigureCanvasAgg(figure)
        axes = figure.add_axes((0.02, 0.05, 0.96 - _legend_width(labels), 0.85))
        colors = _colors(labels)
        for label, color in colors.items():
            rows = np.array([i for i, one in enumerate(labels) if one == label])
            x, y = places[rows].T
            axes.scatter(x, y, s=14, color=color, linewidths=0, label=_words(label))
        side = round(_TOGETHER / max(1, len(thumbnails)) ** 0.5)
        side = min(max(side, _SMALLEST), _LARGEST)
        for i, picture in thumbnails.items():
            image = OffsetImage(np.asarray(_small(picture, side)), zoom=72 / _DPI)
            frame = {"edgecolor": colors[labels[i]], "linewidth": 1.6}
            axes.add_artist(AnnotationBbox(image, places[i].tolist(), bboxprops=frame, pad=0.1))
        if _legend_width(labels):
            axes.legend(
                *axes.get_legend_handles_labels(),
                loc="upper left",
                bbox_to_anchor=(1.005, 1.0),
                frameon=False,
                markerscale=2.2,
                handletextpad=0.1,
                ncols=-(-len(colors) // _LINES),
            )
        for label in colors:
            if label is not None and len(colors) <= _LINES:
                middle = np.median(places[[one == label for one in labels]], axis=0)
                _named(axes, middle.tolist(), label)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_color("0.8")
        axes.margins(0.05)
        for line, words in enumerate(title):
            size = 14 if line == 0 else 11
            figure.text(0.02, 0.965 - 0.028 * line, _plain(words), fontsize=size, va="center")
        if len(colors) > 2 * _LINES:
            foot += f" · {len(colors)} classes in the order of their names by hue"
        figure.text(0.02, 0.022, _plain(foot), fontsize=10, color=_GREY, va="center")
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())
    return Image.fromarray(pixels).convert("RGB")


def spread_out(places: NDArray[np.float64]) -> list[int]:
    """Choose points [N, 2] that do not hide each other: in each cell the one nearest to its
    middle."""
    low, span = places.min(axis=0), np.maximum(np.ptp(places, axis=0), 1e-12)
    scaled = (places - low) / span * (CELLS - 1e-6)
    cells = np.floor(scaled)
    away = np.linalg.norm(scaled - cells - 0.5, axis=1)
    best: dict[tuple[float, float], int] = {}
    for i in np.argsort(away, kind="stable").tolist():
        best.setdefault((cells[i, 0], cells[i, 1]), i)
    return sorted(best.values())


def _legend_width(labels: Sequence[str | None]) -> float:
    """Return the share of the figure's width for the legend."""
    names = set(map(_words, labels))
    if not 1 < len(names) <= 2 * _LINES:
        return 0.0
    return min(0.4, (0.04 + 0.008 * max(map(len, names))) * -(-len(names) // _LINES))


def _colors(labels: Sequence[str | None]) -> dict[str | None, Any]:
    """Return a colour for each class, in the order of their names; grey for pictures without a
    class."""
    import matplotlib as mpl

    names = sorted({label for label in labels if label is not None}, key=_numbers_first)
    table = mpl.colormaps["tab10" if len(names) <= 10 else "tab20"]
    many = mpl.colormaps["hsv"]
    found: dict[str | None, Any] = {
        name: table(i) if len(names) <= 20 else many(i / len(names)) for i, name in enumerate(names)
    }
    return {**found, **({None: _GREY} if None in labels else {})}


def _numbers_first(name: str) -> tuple[bool, int, str]:
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)


def _named(axes: Any, place: list[float], label: str) -> None:
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "alpha": 0.85, "linewidth": 0}
    axes.annotate(_words(label), place, ha="center", va="center", fontsize=14, bbox=box, zorder=9)


def _words(label: str | None) -> str:
    """Return a class's name, shortened if it is long."""
    if label is None:
        return "no class"
    short = label if len(label) <= 24 else f"{label[:23]}…"
    # A name with a leading underscore would be left out of the legend.
    return _plain(short).replace("_", " ", label.startswith("_"))


def _plain(text: str) -> str:
    """Return text without formulas for matplotlib, in characters that its font has."""
    return drawable(text).replace("$", r"\$")


def _small(picture: Image.Image, side: int) -> Image.Image:
    longest = max(picture.size)
    if longest < side:
        return magnified(picture, round(side / longest))
    size = tuple(max(1, round(each * side / longest)) for each in picture.size)
    return picture.convert("RGB").resize((size[0], size[1]), Image.Resampling.LANCZOS)
