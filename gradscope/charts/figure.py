"""Draws panels and maps as one picture file by matplotlib: for a paper, a report, a slide.

It uses the colours of Okabe and Ito, which people with colour blindness can distinguish; curves
differ by their dashes too. The figure is 7 inches wide, and its smallest letters have 6 points. It
uses the axes of a page's charts: positions are shares of an axis's length, so that no float is too
large.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

from gradscope.charts.maps import Map, palette, pixels, shrunk
from gradscope.charts.panels import MISSING, NOT_FINITE, ZERO, Panel, Point, thinned
from gradscope.charts.scales import Scale, written
from gradscope.typeset.numbers import count, number
from gradscope.typeset.text import plain

SUFFIXES = (".png", ".svg", ".pdf")
#: https://jfly.uni-koeln.de/color/, without the yellow, which white paper swallows.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_DASHES = ("-", "--", ":", "-.", (0, (6, 2)))
_TONES = {"bad": "#d55e00", "warn": "#e69f00"}
_WIDTH, _TALL, _DPI = 7.0, 2.1, 200
#: Height of a map's title and the axis below, in inches.
_AROUND = 0.6
#: Number of letters of a legend that are as wide as a panel.
_LETTERS = 60
#: Largest number of places that are named; more are numbered.
_NAMED = 30
#: Each mark's sign, where it is, and its colours inside and at the edge.
_SIGNS = {
    ZERO: ("D", 0.02, "white", "0.1"),
    MISSING: ("X", 0.02, "0.1", "0.1"),
    NOT_FINITE: ("^", 0.97, "#d55e00", "#d55e00"),
}
#: Height of a stretch's strip, as a share, and the number of strips below each other.
_STRIP, _LANES = 0.025, 5
_FULL_SAMPLES: Any = {
    "font.size": 7.5,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "0.88",
    "text.parse_math": False,
    "pdf.fonttype": 42,
    "svg.hashsalt": "gradscope",
}
#: Metadata that would make two files of one figure differ.
_NO_DATE = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def drawn(title: str, charts: Sequence[Panel | Map], suffix: str) -> bytes:
    """Return the file's bytes; ``suffix`` is one of ``SUFFIXES``."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, len(charts))
    rows = [charts[i : i + columns] for i in range(0, len(charts), columns)]
    heights = [max(map(_tall, row)) for row in rows]
    # Overrides any matplotlibrc; a font without some letter draws a box.
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(_FULL_SAMPLES)
        size = (_WIDTH, 0.3 + sum(heights))
        figure = Figure(figsize=size, dpi=_DPI, facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(plain(title), x=0.01, ha="left", color="0.3")
        grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
        for i, row in enumerate(rows):
            for j, chart in enumerate(row):
                axes = figure.add_subplot(grid[i, j])
                axes.set_title(plain(chart.title))
                axes.set_xlabel(plain(chart.x))
                if isinstance(chart, Map):
                    _map(axes, shrunk(chart))
                else:
                    _panel(axes, chart)
        data = io.BytesIO()
        figure.savefig(data, format=suffix.removeprefix("."), metadata=_NO_DATE[suffix])
    return data.getvalue()


def _tall(chart: Panel | Map) -> float:
    if isinstance(chart, Map):
        return min(4.5, 1.0 + 0.11 * min(len(chart.names), 40))
    names = [_short(curve.name) for curve in chart.curves]
    legend = 0.14 * (-(-len(names) // _beside(names)) - 1)
    return _TALL + legend + 0.05 * max((len(_short(p.name)) for p in _named(chart)), default=0)


def _named(panel: Panel) -> list[Point]:
    """Return the points with names at the axis, if there are only a few layers."""
    points = panel.points
    few = len(panel.curves) == 1 and len(points) <= _NAMED and not panel.stretches
    return points if few and all(p.name for p in points) else []


def _panel(axes: Any, panel: Panel) -> None:
    up = panel.scale
    axes.set_ylim(0, 1)
    ticks = up.ticks()
    axes.set_yticks([up.share(y) for y in ticks], [written(y, log=up.log) for y in ticks])
    axes.grid(axis="y")
    axes.set_ylabel(plain(panel.y))
    axes.margins(x=0.02)
    for i, curve in enumerate(panel.curves):
        points = thinned(curve.points)
        if panel.bars:
            _bars(axes, points, up, _COLORS[i % 5])
        else:
            _line(axes, points, up, i, _short(curve.name) if len(panel.curves) > 1 else "")
            _marks(axes, points)
    _stretches(axes, panel)
    names = _named(panel)
    if names:
        axes.set_xticks([p.x for p in names], [_short(p.name) for p in names], rotation=90)
        axes.set_xlabel("")
    elif panel.log:
        axes.set_xscale("log")
        axes.set_xticks(panel.places, [number(x) if x % 1 else count(int(x)) for x in panel.places])
        axes.minorticks_off()
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.xaxis.set_major_formatter(lambda x, _: count(round(x)))
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        beside = _beside(labels)
        # Several labels beside the title would overlap it.
        pad = 6 + 10 * -(-len(labels) // beside) if len(labels) > 1 else None
        axes.set_title(plain(panel.title), pad=pad)
        above = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.1}
        axes.legend(frameon=False, ncols=beside, columnspacing=1.0, handletextpad=0.4, **above)


def _beside(labels: Sequence[str]) -> int:
    """Return the number of labels that a legend has room for side by side."""
    return min(5, max(1, _LETTERS // (5 + max(map(len, labels)))))


def _line(axes: Any, points: Sequence[Point], up: Scale, i: int, name: str) -> None:
    def shares(values: Sequence[float | None]) -> list[float]:
        return [float("nan") if y is None else up.share(y) for y in values]

    places, color = [p.x for p in points], _COLORS[i % 5]
    looks = {"color": color, "linestyle": _DASHES[i % 5], "linewidth": 1.1}
    dots = {"marker": "o", "markersize": 2.5} if len(points) <= 60 else {}
    axes.plot(places, shares([p.y for p in points]), label=name or "_", **looks, **dots)
    if any(p.low != p.high for p in points):
        lows, highs = shares([p.low for p in points]), shares([p.high for p in points])
        axes.fill_between(places, lows, highs, color=color, alpha=0.25, linewidth=0)


def _marks(axes: Any, points: Sequence[Point]) -> None:
    for mark, (sign, height, inside, edge) in _SIGNS.items():
        places = [p.x for p in points if p.mark == mark]
        if places:
            looks = {"marker": sign, "s": 14, "facecolors": inside, "edgecolors": edge}
            heights = [height] * len(places)
            axes.scatter(places, heights, label=mark, linewidths=0.8, zorder=5, **looks)


def _bars(axes: Any, points: Sequence[Point], up: Scale, color: str) -> None:
    spacing = (points[-1].x - points[0].x) / max(1, len(points) - 1) or 1.0
    known = [(p.x, up.share(p.y)) for p in points if p.y is not None]
    axes.bar([x for x, _ in known], [y for _, y in known], width=0.85 * spacing, color=color)


def _stretches(axes: Any, panel: Panel) -> None:
    """Draw stretches as on a page: strips at the top, and a line for a single moment."""
    lanes: dict[str, int] = {}
    for one in panel.stretches:
        color = _TONES.get(one.tone, "0.5")
        if one.first == one.last and not one.tone:
            axes.axvline(one.first, color=color, linewidth=0.6, alpha=0.7, zorder=0)
        else:
            top = 1 - (lanes.setdefault(one.text, len(lanes)) % _LANES) * _STRIP * 1.3
            span = {"ymin": top - _STRIP, "ymax": top, "linewidth": 1.0}
            axes.axvspan(one.first, one.last, color=color, alpha=0.8, zorder=4, **span)


def _map(axes: Any, of: Map) -> None:
    import numpy as np
    from matplotlib.cm import ScalarMappable

    colors = np.array(palette(), dtype=np.uint8)
    rows = np.array([list(row) for row in pixels(of)])
    axes.imshow(colors[rows], aspect="auto", interpolation="nearest")
    every = -(-len(of.names) // 40)
    axes.set_yticks(range(0, len(of.names), every), [_short(n) for n in of.names[::every]])
    axes.tick_params(axis="y", labelsize=6)
    at = sorted({round(k * (len(of.places) - 1) / 4) for k in range(5)})
    axes.set_xticks(at, [count(of.places[i]) for i in at])
    scale = of.scale
    if scale is not None:
        looks = {"fraction": 0.05, "pad": 0.02, "ticks": [0, 1]}
        bar = axes.figure.colorbar(ScalarMappable(cmap="viridis"), ax=axes, **looks)
        bar.ax.set_yticklabels([number(scale.low), number(scale.high)])
        bar.set_label(
            textwrap.fill(plain(of.y), max(10, round((_tall(of) - _AROUND) / 0.045))), size=6
        )


def _short(name: str) -> str:
    text = plain(name)
    return text if len(text) <= 22 else f"…{text[-21:]}"
