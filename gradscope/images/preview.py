"""Draws a picture in the terminal: each character is two pixels, an upper half block on a
background."""

from __future__ import annotations

from io import StringIO

from PIL import Image
from rich.console import Console
from rich.style import Style
from rich.text import Text

_UPPER_HALF = "▀"


def preview(picture: Image.Image, width: int, color: bool, *, lines: int | None = None) -> str:
    """Return the picture in 24-bit colour, at most ``width`` characters wide and ``lines`` lines
    high.

    The default of ``lines`` is half of ``width``, which is a square. Without colour, return an
    empty text.
    """
    if not color or width < 1:
        return ""
    most = max(1, width // 2 if lines is None else lines)
    factor = min(width / picture.width, 2 * most / picture.height)
    columns = max(1, min(width, round(picture.width * factor)))
    rows = max(1, min(most, round(picture.height * factor / 2)))
    way = Image.Resampling.BOX if factor < 1 else Image.Resampling.NEAREST
    small = picture.convert("RGB").resize((columns, 2 * rows), way)
    out = StringIO()
    console = Console(
        file=out,
        width=columns,
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        force_jupyter=False,
        legacy_windows=False,
    )
    for row in range(rows):
        console.print(_line(small, row, columns), soft_wrap=True)
    return out.getvalue()


def _line(picture: Image.Image, row: int, columns: int) -> Text:
    text = Text()
    for column in range(columns):
        upper, lower = (_hex(picture.getpixel((column, 2 * row + i))) for i in (0, 1))
        text.append(_UPPER_HALF, Style(color=upper, bgcolor=lower))
    return text


def _hex(pixel: object) -> str:
    red, green, blue = pixel if isinstance(pixel, tuple) else (0, 0, 0)
    return f"#{red:02x}{green:02x}{blue:02x}"
