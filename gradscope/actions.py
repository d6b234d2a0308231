"""Actions of interventions on tensors, an entry of ``ACTIONS`` for each; no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gradscope.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

#: Places at which a tensor can be changed; the first is the default.
PLACES: Final = ("grad_output", "grad_input", "parameter_grad", "activation")


def _anything(value: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Action:
    """One way to change a tensor.

    Attributes:
        help: describes it, as the option's help.
        change: maps a tensor and the value to a new tensor of the same shape and dtype. At an
            activation it is part of the graph: gradients follow the chain rule through it.
        takes: describes the value; empty if the action takes none.
        accepts: returns True if a value from a config is valid.
        places: the places where it makes sense; the first is the default.
    """

    help: str
    change: Callable[[Tensor, Any], Tensor]
    takes: str = ""
    accepts: Callable[[Any], bool] = _anything
    places: tuple[str, ...] = PLACES


@dataclass(frozen=True, slots=True)
class Intervention:
    """An action at some modules of a model, or at some parameters.

    ``names`` has the first name of each; these are parameters if ``at`` is ``parameter_grad``.
    ``value`` is a number, a tensor (for replace), or None.
    """

    names: tuple[str, ...]
    at: str
    do: str
    value: Any = field(default=None, compare=False)

    def change(self, tensor: Tensor) -> Tensor:
        """Return the new tensor, in the dtype of the old one."""
        return action(self.do).change(tensor, self.value).to(tensor.dtype)


def action(name: str) -> Action:
    """Return the action of that name.

    Raises:
        ConfigError: no action has that name; the message suggests the closest one.
    """
    if name not in ACTIONS:
        help = did_you_mean(name.replace("-", "_"), ACTIONS)
        raise ConfigError(f"unknown action `{name}`", help=help or f"one of {', '.join(ACTIONS)}")
    return ACTIONS[name]


def is_number(value: Any) -> bool:
    """Return True if a config's value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e308


def is_positive(value: Any) -> bool:
    """Return True if it is a number above 0."""
    return is_number(value) and value > 0


def _clipped(tensor: Tensor, limit: float) -> Tensor:
    """Return the tensor times limit / norm if its norm is above the limit, without the 1e-6 of
    ``torch.nn.utils.clip_grad_norm_``."""
    real = tensor.abs() if tensor.is_complex() else tensor
    # A norm in float16 overflows, so compute it in float64; Apple's devices have no float64.
    wide = real.float() if tensor.device.type == "mps" else real.double()
    norm: Tensor = wide.norm()
    return tensor * (limit / norm.clamp(min=limit)).to(real.dtype)


def _replaced(tensor: Tensor, value: float | Tensor) -> Tensor:
    """Return the value at each element, on the tensor's device and in its dtype. The gradient
    upstream of an activation is then zero, as for any constant."""
    if isinstance(value, int | float):
        return tensor.clone().fill_(value)
    return tensor.clone().copy_(value.expand_as(tensor))


def _replaces(value: Any) -> bool:
    """Return True for a number, nested lists of numbers, or a source such as a file."""
    if isinstance(value, list):
        return bool(value) and all(map(_replaces, value))
    return is_number(value) or (isinstance(value, Mapping) and set(value) <= {"file", "values"})


#: Each action by its name in a config; the name with hyphens is its option.
ACTIONS: Final = {
    "clip_norm": Action(
        "Scale down to an L2 norm of at most VALUE, each tensor separately.",
        _clipped,
        "a number above 0",
        is_positive,
    ),
    "clip_value": Action(
        "Limit each element to the range from -VALUE to VALUE.",
        lambda tensor, limit: tensor.clamp(-limit, limit),
        "a number above 0",
        is_positive,
    ),
    "detach": Action(
        "Cut the graph upstream of the activation, as ``Tensor.detach`` does.",
        lambda tensor, _: tensor.detach(),
        places=("activation",),
    ),
    # PyTorch's own generator: a recomputation under checkpointing adds the same noise.
    "noise": Action(
        "Add Gaussian noise with standard deviation VALUE, from the run's random numbers.",
        lambda tensor, deviation: tensor + deviation * tensor.detach().clone().normal_(),
        "a number above 0",
        is_positive,
    ),
    "replace": Action(
        "Put VALUE in its place: a number for every element, or a tensor.",
        _replaced,
        "a number, nested lists of numbers, or {file: PATH}",
        _replaces,
    ),
    "scale": Action("Multiply by VALUE.", lambda tensor, k: tensor * k, "a number", is_number),
    # At an activation, upstream tensors still get a gradient: zeros.
    "zero": Action(
        "Put zeros in its place, also for NaN and Inf.", lambda tensor, _: tensor.clone().zero_()
    ),
}
