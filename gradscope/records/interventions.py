"""The effect of an intervention: the tensor before and after, at each place."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.records.tensors import TensorStats


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor that an intervention changed, or should have changed.

    ``name`` is a module with its ``call``, or a parameter, which has none. ``at`` is activation,
    grad_output, grad_input or parameter_grad; ``do`` is the action and ``value`` its number.
    ``before`` and ``after`` are None where nothing came by, and ``note`` says why. Gradients of
    several backwards are added up, as ``.grad`` is.
    """

    name: str
    at: str
    do: str
    value: float | None = None
    call: int | None = None
    path: str = ""
    before: TensorStats | None = None
    after: TensorStats | None = None
    #: The norm after, divided by the norm before; None where that was 0 or is unknown.
    factor: float | None = None
    note: str | None = None
