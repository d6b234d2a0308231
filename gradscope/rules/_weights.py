"""Measures the updates of a model's weights by an optimizer, over all of its samples."""

from __future__ import annotations

import math
from collections import deque

from gradscope.records.loop_figures import LoopWeights
from gradscope.rules._history import SampleHistory
from gradscope.rules._reading import middle

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
