"""The bytes that a step keeps for backward, counted in its own run."""

from __future__ import annotations

from gradscope.capture.graph import SavedBytes
from gradscope.capture.saved_memory import counting_saved
from gradscope.errors import message_of
from gradscope.running.step import Step, repeated


def count_saved(step: Step, notices: list[str]) -> SavedBytes | None:
    """What one forward saves, counted by hooks; a notice, and nothing, where it cannot be."""
    try:
        with repeated(step, weights=True) as plain, counting_saved(step.workload.model) as saved:
            plain.forward()
    except Exception as error:
        # `torch.func` forbids hooks on saved tensors, for one: the report goes without.
        first = (message_of(error) or type(error).__name__).splitlines()[0]
        notices.append(f"saved bytes: not counted: {first}")
        return None
    return saved
