"""The steps of a run once more, with nobody recording: for who wants to know why they raised."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from gradscope.loading import Workload
from gradscope.running.plain import backward, closure_step, fresh, loss_of


def steps_again(workload: Workload, note: Callable[[str], None]) -> None:
    """Forward, loss, backward and optimizer as often as the workload says.

    Args:
        workload: what to run; it is not put back as it was.
        note: called with the name of each step, and of each repeat, that begins.
    """
    optimizer = workload.make_optimizer(workload.model) if workload.make_optimizer else None
    batches = workload.batches()
    batch = None
    for step in range(workload.steps):
        batch = next(batches, batch)
        if batch is None:
            return
        word = f"step {step + 1}" if workload.steps > 1 else ""
        note(word)
        for parameter in workload.model.parameters():
            parameter.grad = None
        args, kwargs, target = fresh(batch)
        loss = loss_of(workload, args, kwargs, target)
        for repeat in range(workload.repeats):
            more = [f"repeat {repeat + 1}"] if workload.repeats > 1 else []
            note(" of ".join([*more, *([word] if word else [])]))
            backward(loss, workload)
        if optimizer is None:
            continue
        wanted = inspect.signature(optimizer.step).parameters.get("closure")
        if wanted is not None and wanted.default is inspect.Parameter.empty:
            closure_step(optimizer, workload, batch)
        else:
            optimizer.step()
