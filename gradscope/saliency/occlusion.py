"""Occlusion: by how much the score falls when a window of the picture is covered."""

from __future__ import annotations

import torch
from torch import Tensor

from gradscope.errors import OptionError
from gradscope.saliency._subject import Subject

paper = "Zeiler & Fergus 2014, arXiv 1311.2901"
signed = True
reads = ("scores",)


def attribute(
    subject: Subject, *, window: int = 0, stride: int = 0, baseline: float = 0.0
) -> Tensor:
    """The fall S(x) − S(x with the window at the baseline), averaged over windows, [N, H, W].

    A window is square and covers all channels at once. The last one of a row or column is cut off
    at the edge, so that every pixel is covered. Positive where the picture speaks for the class.

    captum's ``Occlusion`` with windows (C, w, w) is the same map, repeated for each channel: C
    times this when it is summed over them.

    Args:
        window: side in pixels of the input; 0 is 1/7 of the input's shorter side.
        stride: pixels from one window to the next; 0 is half a window.
        baseline: the value of a covered pixel, in the model's input space (after its transform).

    Raises:
        OptionError: a window larger than the picture, or a stride that leaves pixels uncovered.
    """
    height, width = subject.inputs.shape[-2:]
    window, stride = _sizes(min(height, width), window, stride)
    rows, columns = _spans(height, window, stride), _spans(width, window, stride)
    images, places = len(subject.inputs), len(rows) * len(columns)
    device = subject.inputs.device
    tall, wide = rows.to(device), columns.to(device)

    def make(items: slice) -> Tensor:
        item = torch.arange(items.start, items.stop, device=device)
        place = item // images
        covered = tall[place // len(columns)][:, :, None] & wide[place % len(columns)][:, None]
        return subject.inputs[item % images].masked_fill_(covered[:, None], baseline)

    scores = subject.scores_of(make, places * images).view(places, images)
    falls = (subject.scores - scores).T.reshape(images, len(rows), len(columns))
    # On the CPU and in float64: some devices have none, and these are few numbers.
    down, across = rows.double(), columns.double()
    total = down.T @ falls.cpu().double() @ across
    return (total / torch.outer(down.sum(0), across.sum(0))).float().to(device)


def _sizes(side: int, window: int, stride: int) -> tuple[int, int]:
    """Return window and stride; gradscope chooses those that are 0."""
    window = window or max(1, round(side / 7))
    stride = stride or max(1, window // 2)
    if not 0 < window <= side:
        raise OptionError(
            f"a window of {window} does not fit into a picture whose shorter side is {side}",
            help=f"--option window={max(1, round(side / 7))}",
        )
    if not 0 < stride <= window:
        raise OptionError(
            f"a stride of {stride} leaves pixels between windows of {window} uncovered",
            help=f"--option stride={max(1, window // 2)}",
        )
    return window, stride


def _spans(length: int, window: int, stride: int) -> Tensor:
    """Return the positions that each window covers along one side, [windows, length], bool."""
    starts = torch.arange(0, length - window + stride, stride, device="cpu")[:, None]
    position = torch.arange(length, device="cpu")
    return (position >= starts) & (position < starts + window)
