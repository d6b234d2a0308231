"""Input gradients at many points near the images, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradscope.saliency._batching import is_out_of_memory, shares_statistics
from gradscope.saliency._passes import input_gradient
from gradscope.saliency._subject import Subject

#: Images in one pass: beyond these nothing was gained.
ROWS = 64
#: On the CPU also no more values than four photographs of 224² have: ResNet-50 keeps 100 MiB for
#: the backward of each, and more of them were hardly faster.
VALUES_ON_CPU = 4 * 3 * 224 * 224

#: From this many images on, convolutions on the CPU ran faster on channels-last storage, forward
#: and backward, for all of eight families that were tried; for a single image some ran slower.
WORTH_A_LAYOUT = 4


def gradients_at(
    subject: Subject, point: Callable[[int], Tensor], count: int
) -> Iterator[tuple[int, Tensor]]:
    """(i, d score / d x [N, C, H, W] at ``point(i)``) for i = 0 … count − 1.

    ``point(i)`` gives inputs [N, C, H, W], one for each image; several points share a pass where
    the device gains from it and memory allows.
    """
    images = len(subject.inputs)
    size = 1 if shares_statistics(subject.model) else max(1, _rows(subject.inputs) // images)
    done = 0
    points: list[Tensor] = []  # made once, in order: a point may be drawn at random
    while done < count:
        size = min(size, count - done)
        points += [point(done + i) for i in range(len(points), size)]
        try:
            found = _gradients(subject, torch.cat(points[:size]))
        except RuntimeError as error:
            if not is_out_of_memory(error) or size == 1:
                raise
            size //= 2
            continue
        yield from ((done + i, found[i * images : (i + 1) * images]) for i in range(size))
        done, points = done + size, points[size:]


def _rows(inputs: Tensor) -> int:
    if inputs.device.type != "cpu" or not inputs[0].numel():
        return ROWS
    return min(ROWS, VALUES_ON_CPU // inputs[0].numel())


def _gradients(subject: Subject, points: Tensor) -> Tensor:
    layout = _layout(points)
    try:
        return _gradient(subject, points.contiguous(memory_format=layout))
    except RuntimeError as error:
        if layout is torch.contiguous_format or is_out_of_memory(error):
            raise
        # Such as a `view` that only the other layout allows.
        return _gradient(subject, points)


def _layout(points: Tensor) -> torch.memory_format:
    several = points.dim() == 4 and len(points) >= WORTH_A_LAYOUT and points.shape[1] > 1
    wins = several and points.device.type == "cpu"
    return torch.channels_last if wins else torch.contiguous_format


def _gradient(subject: Subject, points: Tensor) -> Tensor:
    x = points.detach().requires_grad_()
    with torch.enable_grad():
        score = subject.score(x)
    return input_gradient(score, x, keep=False).contiguous()
