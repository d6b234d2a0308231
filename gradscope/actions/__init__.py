"""Actions of interventions on tensors: one file per action, found by its name; no torch.

A file has ``ACTION``: the function from a tensor to the new one, the value that it takes, and the
places where it makes sense. The first line of its docstring is the help of its option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gradscope.errors import ConfigError, did_you_mean
from gradscope.plugins import load, names

if TYPE_CHECKING:
    from torch import Tensor

#: Places at which a tensor can be changed; the first is the default.
PLACES: Final = ("grad_output", "grad_input", "parameter_grad", "activation")
_FOLDER: Final = "gradscope.actions"


def _anything(value: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Action:
    """One way to change a tensor.

    Attributes:
        change: maps a tensor and the value to a new tensor of the same shape and dtype. At an
            activation it is part of the graph: gradients follow the chain rule through it.
        takes: describes the value; empty if the action takes none.
        accepts: returns True if a value from a config is valid.
        places: where it makes sense; the first is the default.
    """

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


def action_names() -> tuple[str, ...]:
    """Return the name of every action, as a config spells it."""
    return tuple(name.replace("-", "_") for name in names(_FOLDER))


def action(name: str) -> Action:
    """Return the action of that name.

    Raises:
        ConfigError: no action has that name; the message suggests the closest one.
    """
    if name not in action_names():
        help = did_you_mean(name.replace("-", "_"), action_names())
        raise ConfigError(
            f"unknown action `{name}`", help=help or f"one of {', '.join(action_names())}"
        )
    found: Action = load(_FOLDER, name.replace("_", "-")).ACTION
    return found


def summary(name: str) -> str:
    """Return the description of an action, in one line."""
    text = inspect.getdoc(load(_FOLDER, name.replace("_", "-"))) or ""
    return text.splitlines()[0]


def is_number(value: Any) -> bool:
    """Return True if a config's value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e308


def is_positive(value: Any) -> bool:
    """Return True if it is a number above 0."""
    return is_number(value) and value > 0
