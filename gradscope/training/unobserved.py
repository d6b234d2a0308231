"""Messages on the parts of a script that were not observed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gradscope.errors import message_of
from gradscope.training.processes import OtherProcesses
from gradscope.typeset.numbers import duration, plural

if TYPE_CHECKING:
    from gradscope.training.observer import Observer

_BLIND = "gradscope could not observe this script"
#: The script trains tensors that no module holds.
NO_MODEL = (
    "no `torch.nn.Module` that trains was found: layers are not sampled, and rules on layers cannot"
    " judge this run"
)
#: A framework started the other processes of a distributed training, and this one is rank 0.
ONE_OF_SEVERAL = (
    "only this process was observed; the script started others that train with it. To observe all: "
    "`torchrun --nproc-per-node N -m gradscope run SCRIPT.py`"
)


def attached_late(seconds: float, steps: int) -> str:
    """Return the notice that the run began later than the training."""
    before = f"the {plural(steps, 'step')} before" if steps else "earlier steps"
    return (
        f"observed from {duration(seconds)} on, without {before}: gradscope's import hook missed "
        "the import of torch"
    )


#: In the message of PyTorch's error.
_NO_COMPILER = "InvalidCxxCompiler"


def why_no_step(
    script: str,
    observer: Observer | None,
    others: OtherProcesses | None,
    raised: str | None,
) -> list[str]:
    """Return sentences that explain a run without steps: what happened in this process, and in
    others.

    Args:
        script: as on Python's command line.
        observer: None if gradscope did not see torch imported.
        others: the processes that the script started; None if unknown.
        raised: a sentence on the exception that ended the script; None without one.
    """
    remarks = [raised or _here(observer)]
    started = None if others is None else others.started(script)
    return [*remarks, started] if started else remarks


def raised_early(error: BaseException) -> str:
    """Return the sentence on an error of the script before its first step."""
    if _NO_COMPILER in message_of(error):
        return (
            "torch.compile found no C++ compiler: install one, or set CXX to it (`gradscope doctor`"
            ' looks for it); `backend="aot_eager"` needs none'
        )
    return f"the script raised `{type(error).__name__}` before its first step"


def _here(observer: Observer | None) -> str:
    if observer is None:
        if "torch" not in sys.modules:
            return "the script did not import torch in this process"
        return f"{_BLIND}: its import hook missed the import of torch"
    if observer.backwards:
        return f"no optimizer made a step; `backward` was called {_times(observer.backwards)}"
    unseen = _unseen_training()
    if unseen:
        return f"{_BLIND}: {unseen}"
    if observer.gradients_were_asked:
        return (
            "no optimizer stepped and nothing called `backward`; gradscope does not count "
            "`torch.autograd.grad` as a step"
        )
    return "no step in this process: no optimizer stepped, and nothing called `backward`"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _unseen_training() -> str | None:
    """Return traces of a training that the observer's patches missed."""
    from gradscope.training.discovery import live_optimizers, outermost_modules, steps_made

    for optimizer in live_optimizers():
        steps = steps_made(optimizer)
        if steps:
            return (
                f"`{type(optimizer).__name__}` made {plural(steps, 'step')} without calling its "
                "hooks"
            )
    for module in outermost_modules():
        held = sum(p.grad is not None for p in module.parameters())
        if held:
            name = type(module).__name__
            return (
                f"{plural(held, 'parameter')} of `{name}` got gradients without calling its hooks"
            )
    return None
