"""Computes input gradients at many points near the images, and reduces them to one value per
pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradscope import progress
from gradscope.saliency._batching import is_out_of_memory, shares_statistics
from gradscope.saliency._layers import input_gradient
from gradscope.saliency._subject import Subject

#: Images in one pass: beyond these nothing was gained.
ROWS = 64
#: On the CPU also no more values than four photographs of 224² have: ResNet-50 keeps 100 MiB for
#: the backward of each, and more of them were hardly faster.
VALUES_ON_CPU = 4 * 3 * 224 * 224


#: Gradients of the first point, alone and in a batch, that differ by more than this share of their
#: norm show a model whose output for one picture depends on the others. A ReLU whose input is
#: nearly zero may fall to either side by rounding alone: 0.003 was seen on DenseNet-121.
WITHIN = 1e-2
WITHIN_HALF = 5e-2


def gradients_at(
    subject: Subject, point: Callable[[int], Tensor], count: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield i and d score / d x [N, C, H, W] at ``point(i)``, for i = 0 … count − 1.

    ``point(i)`` gives inputs [N, C, H, W], one for each image, and is called once for each i, in
    order, so a point may be random. Several points share a pass if memory allows, and if the first
    one's gradient is the same in a batch as alone.
    """
    passes = subject.once(_PointBatches, lambda: _PointBatches(subject))
    first = point(0)
    (alone,) = passes.gradients([first])
    yield 0, alone
    done = 1
    points: list[Tensor] = []
    while done < count:
        size = min(passes.room, count - done)
        points += [point(done + i) for i in range(len(points), size)]
        found = passes.together(points[:size], first, alone)
        if found is not None:
            yield from enumerate(found, done)
            done, points = done + size, points[size:]
            progress.count(done, count)


class _PointBatches:
    """Number of points in a pass of the subject's model, and their memory layout.

    Attributes:
        size: the number of points in one pass; 1 if they must not share one.
        shared: True after points have shared a pass without a difference.
    """

    def __init__(self, subject: Subject) -> None:
        images = len(subject.inputs)
        alone = shares_statistics(subject.model)
        self._subject = subject
        self.size = 1 if alone else max(1, _rows(subject.inputs) // images)
        self.shared = False

    @property
    def room(self) -> int:
        """Number of new points that fit into the next pass."""
        return self.size if self.shared or self.size == 1 else self.size - 1

    def together(self, points: list[Tensor], first: Tensor, alone: Tensor) -> list[Tensor] | None:
        """Return the gradients at ``points`` from one pass; None if ``room`` had to be reduced.

        Until points have shared a pass, the first one is included for comparison.
        """
        comparing = self.size > 1 and not self.shared
        batch = [first, *points] if comparing else points
        try:
            found = self.gradients(batch)
        except Exception as error:
            if len(batch) == 1:
                raise
            # Some models take one picture and no more.
            self.size = len(batch) // 2 if is_out_of_memory(error) else 1
            return None
        if comparing:
            half = alone.dtype in (torch.float16, torch.bfloat16)
            within = (WITHIN_HALF if half else WITHIN) * alone.norm()
            self.shared = bool((found.pop(0) - alone).norm() <= within)
            if not self.shared:
                self.size = 1
                return None
        return found

    def gradients(self, points: list[Tensor]) -> list[Tensor]:
        """Return the gradient [N, C, H, W] at each point, from one pass."""
        subject = self._subject
        found = subject.layout.run(torch.cat(points), lambda x: _gradient(subject, x))
        return list(torch.split(found, len(subject.inputs)))


def _rows(inputs: Tensor) -> int:
    if inputs.device.type != "cpu" or not inputs[0].numel():
        return ROWS
    return min(ROWS, VALUES_ON_CPU // inputs[0].numel())


def _gradient(subject: Subject, inputs: Tensor) -> Tensor:
    x = inputs.detach().requires_grad_()
    with torch.enable_grad():
        score = subject.score(x)
    return input_gradient(score, x, keep=False).contiguous()


def strongest(attribution: Tensor) -> Tensor:
    """Reduce [N, C, H, W] to [N, H, W]: the largest absolute value over the channels."""
    return attribution.abs().amax(dim=1).float()


def summed(attribution: Tensor) -> Tensor:
    """Reduce [N, C, H, W] to [N, H, W]: the signed sum over the channels."""
    return attribution.sum(dim=1).float()
