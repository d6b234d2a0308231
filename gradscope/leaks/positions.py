"""Which elements of a tensor inside a model may differ, because they belong to what was changed.

Nobody says which dimension of a tensor is time. So an element is excused where any dimension whose
size fits puts it among what was changed: of scores [query, key] both may. What differs and has no
such excuse carries a leak: softmax over all keys changes the past queries' weights on past keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import combinations, product
from operator import or_

import torch


def excused(shape: Sequence[int], dirty: torch.Tensor, slack: int = 0) -> list[torch.Tensor]:
    """What may differ, as bools of that shape: one for each way to read the dimensions.

    Args:
        shape: of the tensor.
        dirty: bool over the axis: which entries were changed.
        slack: by how many entries a dimension may be shorter than the axis, as slices are; with
            any it may be longer too, as what was padded is.
    """
    fixed = torch.zeros(tuple(shape), dtype=torch.bool)
    readings: list[list[torch.Tensor]] = []
    length = dirty.numel()
    blocked: set[int] = set()
    for one, other in combinations(range(len(shape)), 2):
        if shape[one] * shape[other] == length and min(shape[one], shape[other]) > 1:
            # The axis in blocks: the block's number and the place in it.
            fixed |= _placed(dirty.reshape(shape[one], shape[other]), shape, one, other)
            blocked.update((one, other))
    exact = bool(blocked) or length in shape  # then a near fit is one by chance
    for dim, size in enumerate(shape):
        if dim not in blocked and (not exact or size % max(length, 1) == 0):
            ways = [_placed(way, shape, dim) for way in readings_of(size, dirty, slack)]
            if len(ways) == 1:
                fixed |= ways[0]
            elif ways:
                readings.append(ways)
    return [reduce(or_, chosen, fixed) for chosen in product(*readings[:3])]


def _placed(labels: torch.Tensor, shape: Sequence[int], *dims: int) -> torch.Tensor:
    view = [1] * len(shape)
    for dim in dims:
        view[dim] = shape[dim]
    return labels.reshape(view)


def readings_of(size: int, dirty: torch.Tensor, slack: int = 0) -> list[torch.Tensor]:
    """For a dimension of that size, which entries may belong to what was changed."""
    length = dirty.numel()
    if size == length:
        return [dirty]
    if size < 2 or length < 2:
        return []
    if size % length == 0:  # several entries side by side, or the axis several times
        times = size // length
        return [dirty.repeat(times), dirty.repeat_interleave(times)]
    if length % size == 0:  # blocks
        return [dirty.reshape(size, -1).any(1)]
    if slack and size - length >= -min(slack, length // 3):
        found = torch.zeros(size, dtype=torch.bool)
        for offset in range(max(0, length - size) + 1):
            place = torch.arange(size) + offset
            inside = place < length
            found |= inside & dirty[place.clamp(0, length - 1)]
            if bool(dirty[-1]):  # beyond the end is later than all
                found |= place >= length
        return [found]
    if size > length and not slack:  # something is before it, or behind it
        other = torch.zeros(size - length, dtype=torch.bool)
        return [torch.cat([other, dirty]), torch.cat([dirty, other])]
    return []
