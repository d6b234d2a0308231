"""Draws pictures as points in a plane, by matplotlib: a colour and a name for each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradscope.images.grid import drawable
from gradscope.images.photos import magnified

#: The plane is cut into so many cells a side, each of which shows at most one picture.
CELLS = 19
_INCHES, _DPI = (12.0, 9.6), 120
#: The side of a small picture, the larger the fewer there are.
_SMALLEST, _LARGEST, _TOGETHER = 32, 96, 350
#: Classes below each other in the legend; of more no name is in the plane.
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
