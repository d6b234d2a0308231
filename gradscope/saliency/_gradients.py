"""Input gradients at many points near the images, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradscope.saliency._batching import is_out_of_memory, shares_statistics
from gradscope.saliency._passes import input_gradient
from gradscope.saliency._subject import Subject

#: Images in one pass. Two CPU cores gain nothing from more; other devices do, up to here.
ROWS = {"cpu": 1}
ROWS_ELSEWHERE = 64


def gradients_at(
    subject: Subject, point: Callable[[int], Tensor], count: int
) -> Iterator[tuple[int, Tensor]]:
    """(i, d score / d x [N, C, H, W] at ``point(i)``) for i = 0 … count − 1.

    ``point(i)`` gives inputs [N, C, H, W], one for each image; several points share a pass where
    the device gains from it and memory allows.
    """
    images = len(subject.inputs)
    rows = ROWS.get(subject.inputs.device.type, ROWS_ELSEWHERE)
    size = 1 if shares_statistics(subject.model) else max(1, rows // images)
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


def _gradients(subject: Subject, points: Tensor) -> Tensor:
    x = points.detach().requires_grad_()
    with torch.enable_grad():
        score = subject.score(x)
    return input_gradient(score, x, keep=False)
