"""Measures a model over all of its samples: gradients over depth, updates, what trained."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from gradscope.records.loop_figures import LayerGradient, LoopDepth, LoopWeights
from gradscope.records.report import Report
from gradscope.records.training import StepSample
from gradscope.rules._history import SampleHistory
from gradscope.rules._reading import is_scale_free, layers, middle

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


#: Number of the latest samples whose share of weight decay is kept.
_KEPT = 64


class Weights:
    """Adds up the samples of one model in the steps of one optimizer."""

    def __init__(self) -> None:
        self._samples = 0
        self._ratios = self._rms = self._first = self._last = 0.0
        self._decays: deque[float] = deque(maxlen=_KEPT)
        self._settings: dict[str, float] = {}
        self._since = self._now = 0

    def add(self, history: SampleHistory) -> None:
        """Add one sample."""
        assert history.now is not None
        weights = list(history.weights.values())
        ratio = middle(w.now.update_ratio for w in weights if w.now.update_ratio is not None)
        norms = [w.now.value.norm for w in weights if w.now.value.norm is not None]
        norm = math.hypot(*norms)
        if ratio is None or not math.isfinite(norm) or not norm:
            return
        self._settings = history.now.settings
        if not self._samples:
            self._first, self._since = norm, history.now.step
        self._samples += 1
        self._last, self._now = norm, history.now.step
        self._ratios += ratio
        self._rms += middle(w.now.update_rms for w in weights if w.now.update_rms) or 0.0
        shares = [w.now.decay_share for w in weights if w.now.decay_share is not None]
        self._decays.append(middle(shares) or 0.0)

    def record(self, model: int, optimizer: str) -> LoopWeights | None:
        """Return the record; None before the first sample that moved a weight."""
        if not self._samples:
            return None
        late = list(self._decays)[len(self._decays) // 2 :]
        return LoopWeights(
            model=model,
            optimizer=optimizer,
            samples=self._samples,
            first=self._first,
            last=self._last,
            ratio=self._ratios / self._samples,
            rms=self._rms / self._samples,
            decay=min(late),
            rate=self._settings.get("lr", 0.0),
            weight_decay=self._settings.get("weight_decay", 0.0),
            steps=self._now - self._since,
        )


class Sampled:
    """One model over its sampled steps, with the parameters that trained at least once.

    In a GAN, the other optimizer's parameters have no gradient, or a discarded one, in half of all
    steps, and may be frozen in these steps.
    """

    def __init__(self) -> None:
        self._trained: set[str] = set()

    def views(self, sample: StepSample) -> dict[str, Report]:
        """Return the report for each choice of ``Runs.parameters``."""
        report = sample.report
        self._trained.update(p.name for p in report.parameters if p.requires_grad)
        unheld = frozenset(sample.unheld)
        stepped = [p for p in report.parameters if p.in_optimizer is not False]
        held = [p for p in report.parameters if p.in_optimizer is not False or p.name in unheld]
        every = [
            p if p.requires_grad or p.name not in self._trained else replace(p, requires_grad=True)
            for p in report.parameters
        ]
        return {
            "stepped": replace(report, parameters=tuple(stepped)),
            "unheld": replace(report, parameters=tuple(held)),
            "all": replace(report, parameters=tuple(every)),
        }
