"""Draws values as colours: maps of rows over places, and nested blocks of modules."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.charts.scales import Scale, viridis
from gradscope.typeset.numbers import count, number
from gradscope.typeset.text import markup

Row = tuple[float | None, ...]
#: If there are more rows or places, the middles of stretches are drawn.
ROWS, PLACES = 240, 400
#: The places in a picture's palette that are no value: nothing measured, zero, not finite.
_NOTHING, _ZERO, _LOST, _VALUES = 0, 1, 2, 3
_ZERO_COLOR, _LOST_COLOR = (0, 0, 0), (232, 0, 11)
_WIDTH, _LEFT, _TALLEST, _TALL = 480, 150, 420, 15


@dataclass(frozen=True, slots=True)
class Map:
    """``values`` has a row for each name and a column for each of ``places``.

    A value is None if nothing was measured, and NaN or Inf if the number was not finite. ``y``
    names the values. With ``share`` they go from 0 to 1, with ``cosine`` from −1 to 1. ``beside``
    has the values of another map that shares the scale.
    """

    title: str
    y: str
    x: str
    names: tuple[str, ...]
    places: tuple[int, ...]
    values: tuple[Row, ...]
    share: bool = False
    beside: tuple[Row, ...] = ()
    cosine: bool = False

    @property
    def linear(self) -> bool:
        """True if 0 and negative values have a colour of the scale."""
        return self.share or self.cosine

    @property
    def finite(self) -> list[float]:
        """The values with a colour of the scale."""
        rows = (*self.values, *self.beside)
        known = (value for row in rows for value in row if value is not None)
        return [value for value in known if math.isfinite(value) and (self.linear or value > 0)]

    @property
    def scale(self) -> Scale | None:
        """Scale from the smallest value to the largest; None if there is none."""
        known = self.finite
        if not known or self.linear:
            return Scale(-1.0 if self.cosine else 0.0, 1.0) if known else None
        return Scale.from_end_to_end(known)


def shrunk(of: Map) -> Map:
    """Return the map with as many rows and places as can be distinguished."""
    rows, places = _stretches(len(of.names), ROWS), _stretches(len(of.places), PLACES)
    if (len(rows), len(places)) == (len(of.names), len(of.places)):
        return of
    return replace(
        of,
        names=tuple(of.names[part[0]] for part in rows),
        places=tuple(of.places[part[0]] for part in places),
        values=tuple(
            tuple(_middle([of.values[i][j] for i in some for j in part]) for part in places)
            for some in rows
        ),
    )


def _stretches(n: int, most: int) -> list[range]:
    parts = min(n, most)
    return [range(i * n // parts, (i + 1) * n // parts) for i in range(parts)]


def _middle(values: Sequence[float | None]) -> float | None:
    """Return the median; if a value is NaN or Inf, return that."""
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    lost = [value for value in values if value is not None and not math.isfinite(value)]
    return lost[0] if lost else known[(len(known) - 1) // 2] if known else None


def map_svg(of: Map, href: Callable[[str], str | None]) -> str:
    """Draw the map as an SVG element; a row is a link if ``href`` returns one for its name."""
    of = shrunk(of)
    tall = min(_TALL, max(2.0, _TALLEST / max(1, len(of.names))))
    bottom = 6 + tall * len(of.names)
    label = markup(f"{of.title}: {of.y}, {of.x}")
    image = base64.b64encode(png(of)).decode("ascii")
    wide = _WIDTH - _LEFT - 10
    return "".join(
        [
            f'<svg class="map" viewBox="0 0 {_WIDTH} {bottom + 62:.0f}" role="group"',
            f' aria-label="{label}">',
            f'<image x="{_LEFT}" y="6" width="{wide}" height="{tall * len(of.names):.1f}"',
            f' preserveAspectRatio="none" href="data:image/png;base64,{image}"/>',
            *_names(of, tall, href),
            *_ticks(of, bottom, wide),
            *_key(of, bottom + 40),
            "</svg>",
        ]
    )


def _names(of: Map, tall: float, href: Callable[[str], str | None]) -> Iterator[str]:
    every = max(1, round(13 / tall))
    for i, name in enumerate(of.names):
        y, text = 6 + tall * i, markup(name)
        if i % every == 0:
            short = name if len(name) <= 22 else f"…{name[-21:]}"
            yield f'<text x="{_LEFT - 6}" y="{y + min(tall, 13) / 2 + 4:.1f}" text-anchor="end">'
            yield f"{markup(short)}</text>"
        place = f'x="0" y="{y:.1f}" width="{_WIDTH - 10}" height="{tall:.1f}"'
        row, target = f"<rect {place}><title>{text}</title></rect>", href(name)
        if target is None:
            yield row
        else:
            yield f'<a href="#{target}" tabindex="-1" aria-label="{text}">{row}</a>'


def _ticks(of: Map, bottom: float, wide: int) -> Iterator[str]:
    n = len(of.places)
    for i in sorted({round(k * (n - 1) / 5) for k in range(6)}):
        x = _LEFT + wide * (i + 0.5) / n
        anchor = "end" if i == n - 1 else "middle"
        yield f'<text x="{x:.1f}" y="{bottom + 14:.1f}" text-anchor="{anchor}">'
        yield f"{count(of.places[i])}</text>"


def _key(of: Map, y: float) -> Iterator[str]:
    """Draw the scale with its ends, and the colours for missing and non-finite values."""
    x = _LEFT
    scale = of.scale
    if scale is not None:
        for i in range(24):
            place = f'x="{x + 4 * i}" y="{y}" width="4.2" height="10"'
            yield f'<rect fill="{_hex(viridis(i / 23))}" {place}/>'
        ends = f"{number(scale.low)} to {number(scale.high)}"
        yield f'<text x="{x + 102}" y="{y + 9.5}">{ends}</text>'
    x += 220
    for color, word, there in (
        (_ZERO_COLOR, "zero", not of.linear and any(0 in row for row in of.values)),
        (_LOST_COLOR, "not finite", any(_lost(value) for row in of.values for value in row)),
    ):
        if there:
            place = f'x="{x}" y="{y}" width="10" height="10"'
            yield f'<rect class="swatch" fill="{_hex(color)}" {place}/>'
            yield f'<text x="{x + 14}" y="{y + 9.5}">{word}</text>'
            x += 46


def _hex(color: Iterable[float]) -> str:
    return "#" + "".join(f"{round(channel):02x}" for channel in color)


def _lost(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def palette() -> list[tuple[int, int, int]]:
    """Return the colours of ``pixels``: three for missing, zero and non-finite values, then the
    scale."""
    last = 255 - _VALUES
    scale = [viridis(i / last) for i in range(last + 1)]
    rounded = [(round(red), round(green), round(blue)) for red, green, blue in scale]
    return [(255, 255, 255), _ZERO_COLOR, _LOST_COLOR, *rounded]


def pixels(of: Map) -> list[bytes]:
    """Return each row of values as indices into the palette."""
    scale = of.scale

    def place(value: float | None) -> int:
        if value is None:
            return _NOTHING
        if not math.isfinite(value):
            return _LOST
        if scale is None or (value <= 0 and not of.linear):
            return _ZERO
        return _VALUES + round(scale.share(value) * (255 - _VALUES))

    return [bytes(map(place, row)) for row in of.values]


def png(of: Map) -> bytes:
    """Return the values as a PNG with a palette, one pixel each; the palette's first colour is
    transparent."""
    from PIL import Image

    picture = Image.frombytes("P", (len(of.places), len(of.names)), b"".join(pixels(of)))
    picture.putpalette(bytes(channel for color in palette() for channel in color))
    data = io.BytesIO()
    picture.save(data, "PNG", transparency=_NOTHING, optimize=True)
    return data.getvalue()


WIDTH, _ROW, _LETTER = 960, 22, 6.6
#: On darker colours than this the text is white.
_DARK = 0.435


@dataclass(frozen=True, slots=True)
class Block:
    """A module above its innermost modules, from ``first`` to ``last``.

    Attributes:
        value: the value of its colour; None if ``mark`` gives the reason why there is none.
    """

    name: str
    first: int
    last: int
    depth: int
    value: float | None = None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Blocks:
    """All modules, outer ones first; ``y`` is the quantity of the colours."""

    title: str
    y: str
    blocks: tuple[Block, ...]

    @property
    def scale(self) -> Scale | None:
        """Logarithmic scale from the smallest value to the largest; None if there is none."""
        known = [one.value for one in self.blocks if one.value]
        return Scale.from_end_to_end(known) if known else None

    @property
    def colors(self) -> str:
        """Return the meaning of the colours in words."""
        scale = self.scale
        if scale is None:
            return f"{self.y}: none"
        return f"{self.y}, from {number(scale.low)} (dark) to {number(scale.high)} (light)"


def blocks_svg(
    of: Blocks, href: Callable[[str], str | None], place: Callable[[str], str | None]
) -> str:
    """Return the blocks as an SVG element: each links to ``href``, and has the id ``place``."""
    columns = 1 + max(one.last for one in of.blocks)
    height = _ROW * (1 + max(one.depth for one in of.blocks))
    label = markup(f"{of.title}: {of.colors}")
    scale, wide = of.scale, (WIDTH - 2) / columns
    parts = (part for one in of.blocks for part in _block(one, wide, scale, href, place))
    frame = f'viewBox="0 0 {WIDTH} {height + 2}" role="group" aria-label="{label}"'
    return f'<svg class="blocks" {frame}>{"".join(parts)}</svg>'


def _block(
    one: Block,
    wide: float,
    scale: Scale | None,
    href: Callable[[str], str | None],
    place: Callable[[str], str | None],
) -> Iterator[str]:
    x, y = 1 + wide * one.first, 1 + _ROW * one.depth
    width = wide * (one.last - one.first + 1)
    target, own = href(one.name), place(one.name)
    text = markup(one.name)
    value = one.mark or ("" if one.value is None else number(one.value))
    led = "" if target is None else f' href="#{target}" tabindex="-1"'
    called = "" if own is None else f' id="{own}"'
    yield f'<a{called}{led} aria-label="{text}">' if led else f"<g{called}>"
    fill, tone = "", "off" if one.value is None else ""
    if one.value and scale is not None:
        share = scale.share(one.value)
        fill = f' fill="{_hex(viridis(share))}"'
        tone = "on-dark" if share < _DARK else "on-light"
    kind = ' class="lost"' if one.mark == "not finite" else "" if fill else ' class="none"'
    yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 1}"{kind}{fill}>'
    yield f"<title>{text}{f': {value}' if value else ''}</title></rect>"
    room = int((width - 6) / _LETTER)
    short = one.name.rpartition(".")[2]
    if room >= min(len(short), 4):
        short = short if len(short) <= room else f"{short[: room - 1]}…"
        yield f'<text class="{tone}" x="{x + 4:.1f}" y="{y + 15}">'
        yield f"{markup(short)}</text>"
    yield "</a>" if led else "</g>"
