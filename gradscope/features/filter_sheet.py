"""The picture of a layer's filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscope import images
from gradscope.features.filters import FilterBank
from gradscope.typeset.numbers import number, plural, shape

if TYPE_CHECKING:
    from PIL.Image import Image

ACROSS, SIDE = 8, 110


def filter_sheet(bank: FilterBank, about: str, top: int) -> list[Image]:
    """The strongest filters, each with its norm; dead and duplicate ones framed.

    Three channels are drawn as colours; one and others as maps, all on one scale.
    """
    weights = bank.weights.numpy()
    colors = weights.shape[1] == 3
    scale = images.scale_of(weights.reshape(len(weights), -1), signed=True)
    tiles = []
    for one in bank.strongest[:top]:
        values = weights[one.filter]
        if colors:
            picture = images.colored_kernel(values, max(abs(scale.low), scale.high))
        else:
            picture = images.mapped_kernel(values, scale)
        lines = (f"norm {number(one.norm)}", *_marks(bank, one.filter))
        tiles.append(images.Tile(picture, f"filter {one.filter}", lines, one.dead or one.duplicate))
    title = [f"filters of {bank.layer} · {bank.kind} {shape(bank.shape)}", about]
    return images.grid(
        title,
        images.in_rows(tiles, ACROSS),
        side=SIDE,
        scale=None if colors else scale,
        foot=_foot(bank, scale, colors, top),
    )


def _marks(bank: FilterBank, i: int) -> list[str]:
    one = bank.filters[i]
    if one.dead:
        return ["dead"]
    return [f"like {one.nearest}: {one.cosine:.3f}"] if one.duplicate else []


def _foot(bank: FilterBank, scale: images.Scale, colors: bool, top: int) -> list[str]:
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
