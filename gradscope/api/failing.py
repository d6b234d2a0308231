"""Why a run failed: what the exception tells, and what a second run under a watch adds."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from gradscope.capture.calls import Call
from gradscope.errors import GradscopeError
from gradscope.explain.errors import Again, explain_again, explain_error, is_own_bug, worth_again
from gradscope.loading import Workload
from gradscope.records.errors import ErrorRecord
from gradscope.running.again import steps_again
from gradscope.running.plain import fresh, loss_of
from gradscope.running.state import deeper_recursion, kept_as_found, run_eagerly

#: Seconds that the failed run may have taken for it to be run again: a watch makes it slower.
PATIENCE = 30.0


def explained_failure(
    workload: Workload,
    failure: BaseException,
    phase: str,
    executing: list[Call],
    *,
    seconds: float,
    restore: bool,
    from_loss: bool = True,
) -> ErrorRecord:
    """The record of what stopped a run; the model is afterwards as it was before.

    Args:
        workload: what ran.
        failure: the exception.
        phase: where it came.
        executing: calls that had not returned, outermost first.
        seconds: what the run took until then.
        restore: give the weights back as well, for a model that somebody goes on to use.
        from_loss: whether backward starts from the loss.
    """
    record = explain_error(failure, phase, executing, workload.model)
    told = phase in ("forward", "loss", "backward", "step") and seconds <= PATIENCE
    if not told or isinstance(failure, GradscopeError) or is_own_bug(failure):
        return record
    if not worth_again(record, failure):
        return record
    if phase == "backward" and not from_loss:
        return record

    def forward() -> torch.Tensor:
        batch = next(workload.batches())
        return loss_of(workload, *fresh(batch))

    again = Again(workload.model, lambda note: steps_again(workload, note), forward)
    spec = workload.criterion.spec
    try:
        with contextlib.ExitStack() as kept:
            kept.enter_context(kept_as_found(workload.model, weights=restore))
            kept.enter_context(run_eagerly())
            kept.enter_context(deeper_recursion())
            if isinstance(spec, nn.Module):
                kept.enter_context(kept_as_found(spec, weights=restore))
            return explain_again(record, failure, again)
    except (Exception, KeyboardInterrupt):
        # What the first run raised is what counts: to explain it must never take its place.
        return record
