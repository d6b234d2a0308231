"""Measures the decay of a model's gradients over depth, over all of its samples."""

from __future__ import annotations

import math

from gradscope.records.loop_figures import LayerGradient, LoopDepth
from gradscope.rules._history import SampleHistory
from gradscope.rules._optimizers import is_scale_free
from gradscope.rules._reading import layers

#: The square of a larger number overflows a float.
_LARGEST = 1e100


class Depth:
    """The ratio of each layer, and the layers upstream of it, to the layers downstream, as root
    mean squares over samples.

    The measure of a layer is the norm of its gradient divided by the norm of its weight: the
    relative step of SGD without the learning rate. For optimizers whose step does not depend on the
    gradient's size, it is the step itself.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._front: dict[str, float] = {}  # sums of squares, of what comes before or at a layer
        self._rear: dict[str, float] = {}  # and downstream of it
        self._seen: dict[str, int] = {}
        self._last = ""

    def add(self, history: SampleHistory) -> None:
        """Add one sample."""
        sizes = _sizes(history)
        if not any(sizes.values()):
            return
        self.samples += 1
        names = list(sizes)
        downstream = [0.0]
        for name in names[:0:-1]:
            downstream.append(max(downstream[-1], sizes[name]))
        downstream.reverse()
        before = 0.0
        for name, rear in zip(names[:-1], downstream, strict=False):
            before = max(before, sizes[name])
            self._front[name] = self._front.get(name, 0.0) + before**2
            self._rear[name] = self._rear.get(name, 0.0) + rear**2
            self._seen[name] = self._seen.get(name, 0) + 1
        self._last = names[-1]

    def record(self, model: int, optimizer: str) -> LoopDepth:
        """Return the course of the gradient over depth, for the layers in every sample."""
        return LoopDepth(
            model=model,
            optimizer=optimizer,
            samples=self.samples,
            layers=tuple(
                LayerGradient(name, math.sqrt(front / self._rear[name]))
                for name, front in self._front.items()
                if self._seen[name] == self.samples and self._rear[name]
            ),
            last=self._last,
        )


def _sizes(history: SampleHistory) -> dict[str, float]:
    """Return the measure of each layer that trains, in the order of forward."""
    assert history.now is not None
    report = history.now.report
    by_step = is_scale_free(report.run.optimizer)
    own: dict[str, float] = {}
    for name, weight in history.weights.items():
        now = weight.now
        size = now.update_ratio
        if not by_step:
            gradient, value = now.gradient, now.value.norm
            size = gradient.norm / value if gradient and gradient.norm and value else None
        if size is not None and size < _LARGEST:
            owner = name.rpartition(".")[0]
            own[owner] = max(own.get(owner, 0.0), size)
    # Parameters of the model itself, such as position embeddings, belong to no single layer.
    names = [layer.name for layer in layers(report) if layer.name]
    return {name: own[name] for name in names if name in own}
