"""Draws a method's heat map over a photograph, at the photograph's resolution, and pictures in the
terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from io import StringIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps
from rich.console import Console
from rich.style import Style
from rich.text import Text

from gradscope.images.colour_scales import STEPS, Scale, scale_of, table
from gradscope.images.files import USUAL
from gradscope.images.tracing import Geometry

#: Smaller photographs are magnified until their longer side reaches about this.
_VISIBLE = 320


@dataclass(frozen=True, slots=True, eq=False)
class Photo:
    """A photograph from ``read_image``, and the model's result for it.

    ``geometry`` is from ``trace``; without one, the model's input counts as the full picture.
    ``pixel`` is the row and column of a marked pixel in the model's input.
    """

    picture: Image.Image
    name: str
    target: str
    score: float | None = None
    geometry: Geometry | None = None
    remarks: tuple[str, ...] = ()
    pixel: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """The map of a method: ``values`` ``[H, W]`` at the size of the model's input, unscaled.
    ``alpha`` and ``colormap`` are as in ``Scale``.
    """

    method: str
    values: NDArray[np.float32]
    signed: bool = False
    remarks: tuple[str, ...] = ()
    alpha: float | None = None
    colormap: str = USUAL

    @property
    def scale(self) -> Scale:
        """The colour scale of the map."""
        found = scale_of(self.values, signed=self.signed)
        return replace(found, alpha=self.alpha, colormap=self.colormap)


def magnification(size: tuple[int, int]) -> int:
    """Return the factor by which a small photograph is enlarged; 1 for a large one."""
    longer, shorter = max(size), min(size)
    # A strip of a few lines is made thicker, within what a screen holds.
    return max(1, _VISIBLE // longer, min(-(-32 // shorter), 6 * _VISIBLE // longer))


def magnified(picture: Image.Image, times: int) -> Image.Image:
    """Return the photograph in RGB, with each pixel as a square of ``times`` × ``times`` pixels."""
    size = (picture.width * times, picture.height * times)
    return picture.convert("RGB").resize(size, Image.Resampling.NEAREST)


def cropped(photo: Photo) -> Photo:
    """Return the photograph cropped to the smallest box around the model's view."""
    geometry = photo.geometry
    if geometry is None or geometry.sees_all():
        return photo
    xs, ys = zip(*geometry.seen(), strict=True)
    width, height = photo.picture.size
    box = (
        min(max(0, math.floor(min(xs) + 0.5)), width - 1),
        min(max(0, math.floor(min(ys) + 0.5)), height - 1),
        max(1, min(width, math.ceil(max(xs) - 0.5))),
        max(1, min(height, math.ceil(max(ys) - 0.5))),
    )
    return replace(
        photo,
        picture=photo.picture.crop(box),
        geometry=geometry.cropped(box),
        remarks=("only what the model saw is drawn", *photo.remarks),
    )


def reduced(photo: Photo, longest: int) -> Photo:
    """Return the photograph with its geometry, with a longer side of at most ``longest``."""
    size, factor = photo.picture.size, longest / max(photo.picture.size)
    if factor >= 1:
        return photo
    small = (max(1, round(size[0] * factor)), max(1, round(size[1] * factor)))
    picture = photo.picture.resize(small, Image.Resampling.LANCZOS)
    geometry = photo.geometry and photo.geometry.resized(small)
    return replace(photo, picture=picture, geometry=geometry)


#: The backdrop: the greys below the colours, for the photograph's darkest and lightest parts. It is
#: dark below unsigned colours, which are black at 0, and light below signed ones, which are white
#: at 0.
_GLOW, _INK = (12, 145), (165, 255)
#: Opacity of the colours over the backdrop, at the weakest and at the strongest value.
_GLOW_COVER, _INK_COVER = (0.0, 0.9), (0.35, 0.92)
#: Share by which parts outside the model's view are faded.
_DIMMED = 0.7
#: Pixels that are worked on at a time: what bounds the memory on a large photograph.
_AT_ONCE = 4_000_000


def painted(
    photo: Photo, heat: HeatMap, scale: Scale | None = None, *, times: int | None = None
) -> Image.Image:
    """Return the photograph in grey, with the map's colours over the part that the model saw.

    A stronger value is more opaque. The rest of the photograph is dimmed, and a line marks the
    model's view. NaN and Inf are hatched; a blank map has no colour. An enlarged photograph (by
    ``times``, else by ``magnification``) shows its pixels, and those of the map, as squares.

    Raises:
        ValueError: the map is not ``[H, W]``, or its size differs from the geometry's.
    """
    scale = scale or heat.scale
    shares, size = _shares(heat, scale), photo.picture.size
    times = times or magnification(size)
    grey = _exposed(magnified(photo.picture, times).convert("L"))
    if not shares.size:
        return grey.convert("RGB")
    height, width = shares.shape
    geometry = photo.geometry or Geometry.full(size, (width, height))
    if geometry.input != (width, height) or geometry.photo != size:
        raise ValueError(
            f"a map of {[height, width]} and a photograph of {list(size)} do not fit a geometry "
            f"from {list(geometry.photo)} to {list(geometry.input)} (width, height)"
        )
    matrix = np.array(geometry.matrix).reshape(3, 3) @ np.diag([1 / times, 1 / times, 1.0])
    layers = _layers(shares, matrix, total=geometry.sees_all(), smooth=times == 1)
    result = Image.new("RGB", grey.size)
    step = max(8, _AT_ONCE // grey.width // 8 * 8)
    for top in range(0, grey.height, step):
        box = (0, top, grey.width, min(top + step, grey.height))
        result.paste(_strip(grey.crop(box), layers, top, scale), box)
    if not geometry.sees_all():
        _outline(result, geometry.seen(), times)
    if photo.pixel is not None:
        _mark(result, geometry, photo.pixel, times)
    return result


def framed(photo: Photo, box: tuple[float, float, float, float], times: int) -> Image.Image:
    """Return the photograph, ``times`` as large, with a line around a part of the model's view.

    ``box`` is left, top, right and bottom of that part, as shares of the model's input.
    """
    result = magnified(photo.picture, times)
    geometry = photo.geometry or Geometry.full(photo.picture.size, photo.picture.size)
    width, height = geometry.input
    left, top, right, bottom = box
    corners = [
        geometry.to_photo(x * width, y * height)
        for x, y in ((left, top), (right, top), (right, bottom), (left, bottom))
    ]
    _outline(result, corners, times)
    return result


def _exposed(grey: Image.Image) -> Image.Image:
    """Spread greys over the full range, with the median near the middle, so that the content of
    under- and overexposed photographs stays visible.
    """
    spread = ImageOps.autocontrast(grey, cutoff=0.5)
    counts, below, median = spread.histogram(), 0, 0
    while below + counts[median] < grey.width * grey.height / 2:
        below += counts[median]
        median += 1
    share = min(max(median / 255, 0.25), 0.71)
    gamma = math.log(0.5) / math.log(share)
    return spread.point([round(255 * (g / 255) ** gamma) for g in range(256)])


def _shares(heat: HeatMap, scale: Scale) -> NDArray[np.float32]:
    values = np.asarray(heat.values, dtype=np.float32)
    if values.ndim != 2:
        raise ValueError(f"a heat map is [H, W], not {list(values.shape)}")
    if not scale.blank:
        return scale.shares(values)
    # No range: the low end of an unsigned scale, zero of a signed one.
    rest = 0.5 if scale.signed else 0.0
    return np.where(np.isfinite(values), rest, np.nan).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """A picture at the input's resolution, with the positions of the drawn photograph's pixels in
    it."""

    image: Image.Image
    matrix: NDArray[np.float64]
    smooth: bool

    def at(self, size: tuple[int, int], top: int) -> Image.Image:
        """Resample the picture to rows of the drawn photograph, from ``top`` on."""
        moved = self.matrix @ np.array([[1.0, 0.0, 0.0], [0.0, 1.0, top], [0.0, 0.0, 1.0]])
        data = tuple((moved / moved[2, 2]).ravel()[:8].tolist())
        way = Image.Resampling.BILINEAR if self.smooth else Image.Resampling.NEAREST
        return self.image.transform(size, Image.Transform.PERSPECTIVE, data, way)


@dataclass(frozen=True, slots=True, eq=False)
class _Layers:
    """Steps of the colour scale; places of NaN or Inf (None: nowhere); the model's view (None:
    everywhere).
    """

    steps: _Layer
    broken: _Layer | None
    inside: _Layer | None


def _layers(
    shares: NDArray[np.float32], matrix: NDArray[np.float64], *, total: bool, smooth: bool
) -> _Layers:
    finite = np.isfinite(shares)
    steps = np.rint(np.where(finite, shares, 0.5).clip(0, 1) * (STEPS - 1)).astype(np.uint8)
    # A rim of two: the last pixels' colours reach to the photograph's edge and a little beyond.
    image = Image.fromarray(np.pad(steps, 2, mode="edge"))
    shift = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0]])
    ratio = np.eye(3)
    # The number of input pixels per drawn pixel along a side; if there are several, their mean is
    # drawn.
    many = float(np.sqrt(abs(np.linalg.det(matrix[:2, :2] / matrix[2, 2]))))
    if many > 1.5:
        size = (max(1, round(image.width / many)), max(1, round(image.height / many)))
        ratio = np.diag([size[0] / image.width, size[1] / image.height, 1.0])
        image = image.resize(size, Image.Resampling.BOX)
    broken = Image.fromarray(np.pad(np.where(finite, 0, 255).astype(np.uint8), 2, mode="edge"))
    inside = Image.new("L", shares.shape[::-1], 255)
    return _Layers(
        _Layer(image, ratio @ shift @ matrix, smooth),
        None if finite.all() else _Layer(broken, shift @ matrix, False),
        None if total else _Layer(inside, matrix, False),
    )


def _strip(grey: Image.Image, layers: _Layers, top: int, scale: Scale) -> Image.Image:
    """Draw some rows of the overlay. Colours come from tables of 256 entries, because pictures are
    large."""
    steps = layers.steps.at(grey.size, top)
    dark, light = _INK if scale.signed else _GLOW
    base = grey.point([round(dark + (light - dark) * g / 255) for g in range(256)])
    if scale.blank:
        result = base.convert("RGB")
    else:
        colors = Image.frombytes("P", grey.size, steps.tobytes())
        colors.putpalette(table(scale.signed, scale.colormap).tobytes())
        cover = steps.point([_cover(min(i / (STEPS - 1), 1.0), scale) for i in range(256)])
        result = Image.composite(colors.convert("RGB"), base.convert("RGB"), cover)
    if layers.broken is not None:
        result.paste(_hatch(grey.size), mask=layers.broken.at(grey.size, top))
    if layers.inside is not None:
        dim = grey.point([round(g + _DIMMED * (128 - g)) for g in range(256)]).convert("RGB")
        result = Image.composite(result, dim, layers.inside.at(grey.size, top))
    return result


def _cover(share: float, scale: Scale) -> int:
    """Return the opacity of a colour, of 255; it rises fast, so that weak values are visible."""
    strength = abs(share - 0.5) * 2 if scale.signed else share
    least, most = _INK_COVER if scale.signed else _GLOW_COVER
    if scale.alpha is not None:
        least, most = least * scale.alpha / most, scale.alpha
    return round(255 * (least + (most - least) * (1 - (1 - strength) ** 2)))


def _hatch(size: tuple[int, int]) -> Image.Image:
    """Return diagonals that repeat every eight pixels, as strips do."""
    line = np.where(np.arange(size[0] + 8) // 4 % 2 == 0, 40, 215).astype(np.uint8)
    tile = np.stack([line[i : i + size[0]] for i in range(8)])
    return Image.fromarray(np.tile(tile, (-(-size[1] // 8), 1))[: size[1]]).convert("RGB")


def _outline(canvas: Image.Image, places: Iterable[tuple[float, float]], times: int) -> None:
    """Draw a black and white line around places of the photograph, visible on any picture."""
    thick = max(1, round(max(canvas.size) / 600))
    draw = ImageDraw.Draw(canvas)
    corners = [
        (_drawn_in(x * times, canvas.width, thick), _drawn_in(y * times, canvas.height, thick))
        for x, y in places
    ]
    draw.line([*corners, corners[0]], fill=(0, 0, 0), width=3 * thick, joint="curve")
    draw.line([*corners, corners[0]], fill=(255, 255, 255), width=thick, joint="curve")


def _mark(canvas: Image.Image, geometry: Geometry, pixel: tuple[int, int], times: int) -> None:
    """Draw a black and white ring around a pixel of the model's input."""
    row, column = pixel
    x, y = (place * times for place in geometry.to_photo(column + 0.5, row + 0.5))
    size = max(canvas.size)
    thick, radius = max(1, round(size / 400)), max(5, round(size / 50))
    draw = ImageDraw.Draw(canvas)
    for color, width in (((0, 0, 0), 3 * thick), ((255, 255, 255), thick)):
        around = radius + width / 2
        draw.ellipse((x - around, y - around, x + around, y + around), outline=color, width=width)


def _drawn_in(place: float, side: int, thick: int) -> float:
    """Move a place at the edge inwards, so that the line is visible; others stay."""
    inner = min(max(place, thick), side - 1.0 - thick)
    return inner if abs(inner - place) < 4 * thick else place


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
