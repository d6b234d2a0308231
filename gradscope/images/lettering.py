"""Draws text and colour bars in pictures, in the font that Pillow contains."""

from __future__ import annotations

import math
import unicodedata
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.ImageFont import FreeTypeFont
from PIL.ImageFont import ImageFont as BitmapFont

from gradscope.images.colour_scales import STEPS, Scale, table

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
