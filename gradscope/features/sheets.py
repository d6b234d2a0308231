"""Draws filters, responses of channels, maximising pictures, and feature space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor
from torch.nn.functional import interpolate

from gradscope import progress
from gradscope.features.channels import SHARE, Box, ChannelSweep, FilterBank, receptive_boxes
from gradscope.features.maximize import Maximized
from gradscope.features.streaming import Source
from gradscope.images import photos
from gradscope.images.colour_scales import Scale, scale_of
from gradscope.images.decoding import from_shares
from gradscope.images.grid import (
    Tile,
    colored_kernel,
    grid,
    in_rows,
    mapped_kernel,
    scattered,
    spread_out,
)
from gradscope.images.photos import HeatMap, Photo, cropped, reduced
from gradscope.images.sheets import Row
from gradscope.loading.vision_models import Viewer
from gradscope.records.features import Neighbor
from gradscope.typeset.numbers import number, plural, shape

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

FILTERS_ACROSS, FILTER_SIDE = 8, 110


def filter_sheet(bank: FilterBank, about: str, top: int) -> list[Image]:
    """Draw the strongest filters, each with its norm; dead and duplicate ones have a frame.

    Filters of three channels are in colour; all others are maps on one scale.
    """
    weights = bank.weights.numpy()
    colors = weights.shape[1] == 3
    scale = scale_of(weights.reshape(len(weights), -1), signed=True)
    tiles = []
    for one in bank.strongest[:top]:
        values = weights[one.filter]
        if colors:
            picture = colored_kernel(values, max(abs(scale.low), scale.high))
        else:
            picture = mapped_kernel(values, scale)
        lines = (f"norm {number(one.norm)}", *_marks(bank, one.filter))
        tiles.append(Tile(picture, f"filter {one.filter}", lines, one.dead or one.duplicate))
    title = [f"filters of {bank.layer} · {bank.kind} {shape(bank.shape)}", about]
    return grid(
        title,
        in_rows(tiles, FILTERS_ACROSS),
        side=FILTER_SIDE,
        scale=None if colors else scale,
        foot=_foot(bank, scale, colors, top),
    )


def _marks(bank: FilterBank, i: int) -> list[str]:
    one = bank.filters[i]
    if one.dead:
        return ["dead"]
    return [f"like {one.nearest}: {one.cosine:.3f}"] if one.duplicate else []


def _foot(bank: FilterBank, scale: Scale, colors: bool, top: int) -> list[str]:
    foot = []
    if top < len(bank.filters):
        foot.append(f"the {top} strongest of {plural(len(bank.filters), 'filter')}")
    channels = bank.weights.shape[1]
    if colors:
        end = number(max(abs(scale.low), scale.high))
        foot.append(f"red, green and blue are the three channels: grey is 0, black -{end}")
        foot[-1] += f", white {end}"
    elif channels > 1:
        foot.append(f"a filter's {channels} channels are side by side, row by row")
    if scale.blank:
        foot.append(scale.blank)
    dead = sum(one.dead for one in bank.filters)
    twins = sum(one.duplicate for one in bank.filters)
    if dead or twins:
        foot.append(f"framed: {dead} dead, {twins} with a near duplicate, and the cosine to it")
    return foot


SIDE = 150


def map_rows(
    photo: Photo,
    maps: Sequence[tuple[ChannelSweep, Tensor]],
    size: tuple[int, int],
    about: str,
    top: int,
) -> list[Row]:
    """Return a row of tiles for each layer: its strongest channels over the photograph.

    ``maps`` are [K, h, w] of each layer, enlarged cell by cell to ``size`` of the input.
    """
    rows: list[Row] = []
    for sweep, values in maps:
        stats = sweep.stats()
        chosen = [one for one in stats if not one.dead][:top]
        strongest = values[[one.channel for one in chosen]]
        signed = bool((values < 0).any())
        large = interpolate(strongest[:, None], size=size, mode="nearest")[:, 0]
        heats = [
            HeatMap(f"channel {one.channel}", heat.numpy(), signed)
            for one, heat in zip(chosen, large, strict=True)
        ]
        dead = sum(one.dead for one in stats)
        places = " × ".join(map(str, values.shape[1:]))
        shown = f"the {len(chosen)} strongest of " if len(chosen) < len(stats) - dead else ""
        target = f"{sweep.layer.title}: {shown}{plural(len(stats), 'channel')} of {places}"
        remarks = (f"{dead} dead (0 everywhere)", about)
        rows.append((replace(photo, target=target, remarks=remarks), heats))
    return rows


def excitation_sheet(
    sweep: ChannelSweep,
    pictures: Sequence[Source],
    viewer: Viewer,
    about: str,
    top: int,
    total: int,
) -> list[Image]:
    """Return a row of pictures for each of the strongest channels, with a frame around the
    receptive field.
    """
    stats = [one for one in sweep.stats() if not one.dead]
    tiles = []
    progress.begin("drawing the best pictures of each channel")
    for done, one in enumerate(stats[:top]):
        progress.count(done, min(top, len(stats)))
        for rank, (value, i, box) in enumerate(_best(sweep, one.channel, pictures, viewer)):
            photo = reduced(cropped(pictures[i].photo(viewer)), SIDE)
            times = max(1, SIDE // max(photo.picture.size))
            picture = photo.picture if box is None else photos.framed(photo, box, times)
            title = f"channel {one.channel}" if rank == 0 else ""
            tiles.append(Tile(picture, title, (f"{number(value)} {photo.name}",)))
    dead = sum(one.dead for one in sweep.stats())
    foot = [f"{dead} of {plural(len(sweep.total), 'channel')} dead (0 in all pictures)"]
    if sweep.is_map:
        foot.append(
            f"framed: the pixels that cause the largest value, with {SHARE:.0%} of its gradient "
            "along each side (effective receptive field)"
        )
    else:
        foot.append("the layer has no map, so no position to frame")
    head = [
        f"pictures that activate {sweep.layer.title} most, of {total}: the strongest "
        f"{min(top, len(stats))} of {plural(len(sweep.total), 'channel')}",
        about,
    ]
    return grid(head, in_rows(tiles, sweep.best.shape[1]), side=SIDE, foot=foot)


def _best(
    sweep: ChannelSweep, channel: int, pictures: Sequence[Source], viewer: Viewer
) -> Iterator[tuple[float, int, Box | None]]:
    """Yield value, picture and box of the pictures that excite a channel most."""
    values, numbers = sweep.best[channel].tolist(), sweep.pictures[channel].tolist()
    places = sweep.places[channel].tolist()
    for value, which, place in zip(values, numbers, places, strict=True):
        box = None
        if sweep.is_map:
            inputs = pictures[which].input(viewer)[None].to(viewer.device, viewer.dtype)
            (box,) = receptive_boxes(viewer.model, inputs, sweep.layer, channel, [place])
        yield value, which, box


ACROSS = 9


def neighbor_sheet(
    found: Sequence[tuple[Source, Sequence[tuple[Source, Neighbor]]]], title: Sequence[str]
) -> list[Image]:
    """Return a row for each picture: the picture, then its neighbours.

    Neighbours of another class have a frame.
    """
    rows: list[Sequence[Tile]] = []
    framed = False
    for query, neighbors in found:
        tiles = [Tile(query.picture(), "picture", tuple(_words(query)))]
        for source, one in neighbors:
            other = None not in (query.label, source.label) and query.label != source.label
            framed |= other
            shown = f"{one.rank} · {number(one.distance)}"
            tiles.append(Tile(source.picture(), shown, tuple(_words(source)), other))
        rows += in_rows(tiles, ACROSS)
    foot = ["above each neighbour: its rank and its distance"]
    return grid(title, rows, side=SIDE, foot=foot + ["framed: of another class"] * framed)


def _words(source: Source) -> list[str]:
    return [Path(source.name).name, *([f"class {source.label}"] if source.label else [])]


def plane(
    places: NDArray[np.float64],
    pictures: Sequence[Source],
    title: Sequence[str],
    foot: str,
) -> Image:
    """Draw the plane, with the pictures that do not hide each other."""
    shown = {i: pictures[i].picture() for i in spread_out(places)}
    return scattered(places, [one.label for one in pictures], shown, title, foot)


def maximized_sheet(
    found: Maximized,
    channels: Sequence[int],
    names: Sequence[str],
    title: Sequence[str],
    foot: Sequence[str],
) -> list[Image]:
    """Draw the maximising picture of each channel, with the activation before and after."""
    tiles = []
    for i, (channel, name) in enumerate(zip(channels, names, strict=True)):
        picture = from_shares(found.pictures[i].numpy())
        lines = (name,) * bool(name)
        lines += (f"{number(found.start[i])} > {number(found.reached[i])}",)
        tiles.append(Tile(picture, f"channel {channel}", lines))
    return grid(title, in_rows(tiles, 6), side=SIDE, foot=foot)
