"""Seconds of a device's work, measured without waiting for it on the way."""

from __future__ import annotations

import time
from types import TracebackType

import torch


class Stopwatch:
    """Adds up the seconds of the blocks that it is entered for.

    A GPU works on after Python has gone on: there a block is bounded by events in the GPU's own
    queue, and only ``seconds`` waits until it has come to the last of them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began = 0.0
        self._seconds = 0.0
        self._start: torch.cuda.Event | None = None
        self._blocks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> None:
        if self._device.type == "cuda":
            self._start = self._mark()
        else:
            self._began = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._device.type == "cuda":
            if self._start is not None:
                self._blocks.append((self._start, self._mark()))
        else:
            self._seconds += time.perf_counter() - self._began

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @property
    def seconds(self) -> float:
        """Of all blocks together."""
        milliseconds = 0.0
        for start, end in self._blocks:
            end.synchronize()
            milliseconds += float(start.elapsed_time(end))
        return self._seconds + milliseconds / 1000
