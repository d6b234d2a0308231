"""Pictures of feature space: who lies near whom, the plane, and what a channel wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradscope import images
from gradscope.features.maximize import Maximized
from gradscope.features.pictures import Source
from gradscope.records.features import Neighbor
from gradscope.typeset.numbers import number

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

SIDE, ACROSS = 150, 9


def neighbor_sheet(
    found: Sequence[tuple[Source, Sequence[tuple[Source, Neighbor]]]], title: Sequence[str]
) -> list[Image]:
    """A row for each picture: itself, then its neighbours; those of another class framed."""
    rows: list[Sequence[images.Tile]] = []
    framed = False
    for query, neighbors in found:
        tiles = [images.Tile(query.picture(), "picture", tuple(_words(query)))]
        for source, one in neighbors:
            other = None not in (query.label, source.label) and query.label != source.label
            framed |= other
            shown = f"{one.rank} · {number(one.distance)}"
            tiles.append(images.Tile(source.picture(), shown, tuple(_words(source)), other))
        rows += images.in_rows(tiles, ACROSS)
    foot = ["above each neighbour: its rank and its distance"]
    return images.grid(title, rows, side=SIDE, foot=foot + ["framed: of another class"] * framed)


def _words(source: Source) -> list[str]:
    return [Path(source.name).name, *([f"class {source.label}"] if source.label else [])]


def plane(
    places: NDArray[np.float64],
    pictures: Sequence[Source],
    title: Sequence[str],
    foot: str,
) -> Image:
    """The plane with the pictures that do not hide each other."""
    shown = {i: pictures[i].picture() for i in images.spread_out(places)}
    return images.scattered(places, [one.label for one in pictures], shown, title, foot)


def maximized_sheet(
    found: Maximized,
    channels: Sequence[int],
    names: Sequence[str],
    title: Sequence[str],
    foot: Sequence[str],
) -> list[Image]:
    """The picture that each channel wants, with the activation before and after."""
    tiles = []
    for i, (channel, name) in enumerate(zip(channels, names, strict=True)):
        picture = images.from_shares(found.pictures[i].numpy())
        lines = (name,) * bool(name)
        lines += (f"{number(found.start[i])} > {number(found.reached[i])}",)
        tiles.append(images.Tile(picture, f"channel {channel}", lines))
    return images.grid(title, images.in_rows(tiles, 6), side=SIDE, foot=foot)
