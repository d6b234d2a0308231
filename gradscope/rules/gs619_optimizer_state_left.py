"""GS619: a training that goes on without the state of its optimizer."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS619",
    name="optimizer-state-left",
    severity="warning",
    summary="a checkpoint's weights were loaded, but not the state of its optimizer",
    what=(
        "Reads what `torch.load` returns. It fires if a model took all of its weights from a "
        "checkpoint that also holds the state of an optimizer with the script's groups, settings "
        "and learning rate, and the script loads no optimizer state."
    ),
    why=(
        "The optimizer starts without its moments: Adam's first step moves every element by the "
        "learning rate, several times a usual step, and SGD has no momentum. The loss jumps, and "
        "progress of the last steps is lost."
    ),
    fix=(
        'Call `optimizer.load_state_dict(checkpoint["optimizer"])` after the optimizer is made, '
        "and load the scheduler's state too."
    ),
    sources=(
        "PyTorch tutorials, Saving and loading a general checkpoint for resuming training: save "
        "and load the optimizer's state_dict as well",
        "Ma and Yarats 2021, On the adequacy of untuned warmup (arXiv 1910.04209): the first "
        "updates of Adam",
    ),
    runs=Runs(loop=True),
    explains=("GS601", "GS602", "GS615"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for one in loop.left_states:
        yield RULE.in_loop(
            loop,
            one.optimizer,
            f"`{one.optimizer}` starts without a state. The checkpoint whose weights were "
            f"loaded holds one, for {plural(one.parameters, 'parameter')} with the same "
            "settings.",
            value=float(one.parameters),
            location=one.location,
        )
