"""What of a script was not observed, in sentences: never that nothing happened, where it did."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gradscope.training.processes import OtherProcesses
from gradscope.typeset.numbers import duration, plural

if TYPE_CHECKING:
    from gradscope.training.observer import Observer

_BLIND = "gradscope could not observe this script"
#: A framework started the other processes of a distributed training, and this one is rank 0.
ONE_OF_SEVERAL = (
    "only this process was observed, and the script started others that train with it: for all, "
    "use `torchrun --nproc-per-node N -m gradscope run SCRIPT.py`"
)


def attached_late(seconds: float, steps: int) -> str:
    """That the run begins after the training did."""
    before = f"the {plural(steps, 'step')} before" if steps else "earlier steps"
    return (
        f"observed from {duration(seconds)} on, without {before}: torch was imported by a route "
        "that gradscope's import hook does not see"
    )


def why_no_step(script: str, observer: Observer | None, others: OtherProcesses | None) -> list[str]:
    """Sentences: what this process did, and what others may have done.

    Args:
        script: as on Python's command line.
        observer: None where torch was not seen to be imported.
        others: the processes that the script started; None where nobody counted them.
    """
    said = [_here(observer)]
    started = None if others is None else others.started(script)
    return [*said, started] if started else said


def _here(observer: Observer | None) -> str:
    if observer is None:
        if "torch" not in sys.modules:
            return "the script did not import torch in this process"
        return f"{_BLIND}: torch was imported by a route that its import hook does not see"
    if observer.backwards:
        return f"no optimizer made a step; `backward` was called {_times(observer.backwards)}"
    unseen = _unseen_training()
    if unseen:
        return f"{_BLIND}: {unseen}"
    if observer.gradients_were_asked:
        return (
            "no optimizer stepped and nothing called `backward`; gradients of "
            "`torch.autograd.grad` make no step that gradscope sees"
        )
    return "no step was seen in this process: no optimizer stepped, and nothing called `backward`"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _unseen_training() -> str | None:
    """The traces of a training that the observer's patches missed; looked for once."""
    from gradscope.training.discovery import live_optimizers, outermost_modules, steps_made

    for optimizer in live_optimizers():
        steps = steps_made(optimizer)
        if steps:
            return f"`{type(optimizer).__name__}` made {plural(steps, 'step')} past its hooks"
    for module in outermost_modules():
        held = sum(p.grad is not None for p in module.parameters())
        if held:
            name = type(module).__name__
            return f"{plural(held, 'parameter')} of `{name}` got gradients past its hooks"
    return None
