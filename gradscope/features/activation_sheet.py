"""Pictures of what channels respond to: maps over one picture, and the pictures that excite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.functional import interpolate

from gradscope import images, progress
from gradscope.features.channels import ChannelSweep
from gradscope.features.pictures import Source
from gradscope.features.receptive import SHARE, Box, receptive_boxes
from gradscope.loading.viewing import Viewer
from gradscope.typeset.numbers import number, plural

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 150


def map_rows(
    photo: images.Photo,
    maps: Sequence[tuple[ChannelSweep, Tensor]],
    size: tuple[int, int],
    about: str,
    top: int,
) -> list[images.Row]:
    """A row of a sheet for each layer: its strongest channels over the photograph.

    ``maps`` are [K, h, w] of each layer, enlarged to ``size`` of the input cell by cell.
    """
    rows: list[images.Row] = []
    for sweep, values in maps:
        stats = sweep.stats()
        chosen = [one for one in stats if not one.dead][:top]
        strongest = values[[one.channel for one in chosen]]
        signed = bool((values < 0).any())
        large = interpolate(strongest[:, None], size=size, mode="nearest")[:, 0]
        heats = [
            images.HeatMap(f"channel {one.channel}", heat.numpy(), signed)
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
    """A row of pictures for each of the strongest channels, what excites it framed."""
    stats = [one for one in sweep.stats() if not one.dead]
    tiles = []
    progress.begin("drawing what excites each channel")
    for done, one in enumerate(stats[:top]):
        progress.count(done, min(top, len(stats)))
        for rank, (value, i, box) in enumerate(_best(sweep, one.channel, pictures, viewer)):
            photo = images.reduced(images.cropped(pictures[i].photo(viewer)), SIDE)
            times = max(1, SIDE // max(photo.picture.size))
            picture = photo.picture if box is None else images.framed(photo, box, times)
            title = f"channel {one.channel}" if rank == 0 else ""
            tiles.append(images.Tile(picture, title, (f"{number(value)} {photo.name}",)))
    dead = sum(one.dead for one in sweep.stats())
    foot = [f"{dead} of {plural(len(sweep.total), 'channel')} dead (0 in all pictures)"]
    if sweep.is_map:
        foot.append(
            f"framed: what the largest value depends on, {SHARE:.0%} of its gradient along each "
            "side (effective receptive field)"
        )
    else:
        foot.append("the layer has no map, so no position to frame")
    head = [
        f"what activates {sweep.layer.title} most, of {plural(total, 'picture')}: the strongest "
        f"{min(top, len(stats))} of {plural(len(sweep.total), 'channel')}",
        about,
    ]
    return images.grid(head, images.in_rows(tiles, sweep.best.shape[1]), side=SIDE, foot=foot)


def _best(
    sweep: ChannelSweep, channel: int, pictures: Sequence[Source], viewer: Viewer
) -> Iterator[tuple[float, int, Box | None]]:
    """The value, the picture and what the value depends on, of those that excite a channel most."""
    values, numbers = sweep.best[channel].tolist(), sweep.pictures[channel].tolist()
    places = sweep.places[channel].tolist()
    for value, which, place in zip(values, numbers, places, strict=True):
        box = None
        if sweep.is_map:
            inputs = pictures[which].input(viewer)[None].to(viewer.device, viewer.dtype)
            (box,) = receptive_boxes(viewer.model, inputs, sweep.layer, channel, [place])
        yield value, which, box
