"""Asks a classifier again, some steps later, for a sample of which it was sure that it belongs to
another class than its label: a wrong label stays wrong, a hard sample is learned or forgotten."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gradscope.capture.hooks import raised_by_a_handler
from gradscope.records.spike import Capsule, LaterLoss
from gradscope.rules import stays_wrong
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.nan_detector.replayed_calls import rerun_results
from gradscope.training.spikes.sample_losses import RowLosses

#: Number of steps after which a sample is asked for again.
LATER = 16
#: Number of samples that are held.
_MOST = 4
#: A repeated forward has the losses of the step, except for rounding.
_ROUNDING = 1e-3


@dataclass(slots=True)
class HeldSample:
    """A sample that is asked for again.

    Attributes:
        step: its step.
        due: the number of the optimizer's steps at which it is asked for.
        call: the model's call with it; it holds references to the batch.
        sample: its index in the batch.
        target: its label.
        loss: its loss.
        predicted: the class that the model predicted.
        place: the number of the scores among the results of the call.
        capsule: the capsule of the step, if its loss is far above those before, else None.
        tensors: those of the capsule.
        size: how far its loss is above the usual ones, in deviations.
    """

    step: int
    due: int
    call: RecordedCall
    sample: int
    target: int
    loss: float
    predicted: int
    place: int
    capsule: Capsule | None = None
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    size: float = 0.0

    def keep(self, capsule: Capsule, tensors: Mapping[str, torch.Tensor], size: float) -> None:
        """Keep the capsule of the step until the sample is asked for."""
        self.capsule, self.tensors, self.size = capsule, tensors, size


class LaterLosses:
    """The samples that are asked for again, and what became of earlier ones.

    Attributes:
        held: the samples, in the order of their steps.
    """

    def __init__(self) -> None:
        self.held: deque[HeldSample] = deque()
        self._asked = self._stayed = 0

    def has_room(self, suspected: bool) -> bool:
        """Return True if another sample may be held; without a suspicion only one is."""
        return len(self.held) < (_MOST if suspected else 1)

    def hold(self, step: int, count: int, call: RecordedCall, rows: RowLosses) -> HeldSample | None:
        """Hold the sample with the largest loss; None if the scores are no result of the call, or
        if a repeated forward has other losses.

        Args:
            step: the number of the step.
            count: the number of the optimizer's steps so far.
            call: the only call of the model in this step.
            rows: its losses.
        """
        if rows.target is None or rows.target.dim() != 1 or not bool(rows.counts.all()):
            return None
        if rows.target.is_floating_point() or not len(rows.target):
            return None
        classes = int(rows.target.max()) + 1
        for place, scores in enumerate(_again(call) or ()):
            # The script may compute the scores from the result, as distances to prototypes.
            if scores.dim() != 2 or len(scores) != len(rows.values) or scores.shape[1] < classes:
                continue
            logs = scores.double().log_softmax(1)
            losses = -logs.gather(1, rows.target.to(logs.device).long()[:, None])[:, 0]
            if torch.allclose(losses, rows.values.double(), _ROUNDING, _ROUNDING):
                worst = int(losses.argmax())
                target, predicted = int(rows.target[worst]), int(logs[worst].argmax())
                loss = float(losses[worst])
                due = count + LATER
                found = HeldSample(step, due, call, worst, target, loss, predicted, place)
                self.held.append(found)
                return found
        return None

    def ask(self, step: int) -> LaterLoss | None:
        """Return what the model says of the first sample now, which is no longer held afterwards;
        None if it cannot be repeated."""
        held = self.held.popleft()
        if held.call.overwritten:
            return None
        results = _again(held.call) or ()
        if held.place >= len(results) or len(results[held.place]) <= held.sample:
            return None
        logs = results[held.place][held.sample].double().log_softmax(0)
        loss, best = -float(logs[held.target]), int(logs.argmax())
        found = LaterLoss(
            step, loss, -float(logs[best]), best == held.predicted, self._asked, self._stayed
        )
        self._asked += 1
        self._stayed += stays_wrong(held.loss, found)
        return found


def _again(call: RecordedCall) -> list[torch.Tensor] | None:
    """Return the results of a call with the weights of now; None if it cannot be repeated."""
    if call.side_effects.draws:
        return None
    try:
        return rerun_results(call)
    except Exception as error:
        if raised_by_a_handler(error):
            raise
        return None  # as of a model that depends on what it was called with before
