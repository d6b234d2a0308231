"""Which elements of a tensor inside a model may differ, because they belong to what was changed.

Nobody says which dimension of a tensor is time. So an element is excused where any dimension whose
size fits puts it among what was changed: of scores [query, key] both may. What differs and has no
such excuse carries a leak: softmax over all keys changes the past queries' weights on past keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def excused(shape: Sequence[int], dirty: torch.Tensor, slack: int = 0) -> torch.Tensor:
    """Bool of that shape: what may differ.

    Args:
        shape: of the tensor.
        dirty: bool over the axis: which entries were changed.
        slack: by how many entries a dimension may be shorter than the axis, as slices are; with
            any it may be longer too, as what was padded is.
    """
    found = torch.zeros(tuple(shape), dtype=torch.bool)
    for dim, size in enumerate(shape):
        labels = labelled(size, dirty, slack)
        if labels is not None:
            view = [1] * len(shape)
            view[dim] = size
            found |= labels.reshape(view)
    return found


def labelled(size: int, dirty: torch.Tensor, slack: int = 0) -> torch.Tensor | None:
    """For a dimension of that size which entries may belong to what was changed; None: none."""
    length = dirty.numel()
    if size == length:
        return dirty
    if size < 2 or length < 2:
        return None
    if size % length == 0:  # several entries side by side, or the whole axis several times
        times = size // length
        return dirty.repeat(times) | dirty.repeat_interleave(times)
    if length % size == 0:  # blocks
        return dirty.reshape(size, -1).any(1)
    if slack and -min(slack, length // 3) <= size - length <= length:
        found = torch.zeros(size, dtype=torch.bool)
        for offset in range(min(0, length - size), max(0, length - size) + 1):
            place = torch.arange(size) + offset
            inside = (place >= 0) & (place < length)
            found |= inside & dirty[place.clamp(0, length - 1)]
            if bool(dirty[-1]):  # beyond the end is later than all
                found |= place >= length
        return found
    if size % 2 == 0 and size > length:  # several rows of an axis that was padded or cut
        for parts in range(2, min(size // 2, 64) + 1):
            if slack and size % parts == 0 and 0 < size // parts - length <= slack:
                inner = labelled(size // parts, dirty, slack)
                return None if inner is None else inner.repeat(parts)
    return None
