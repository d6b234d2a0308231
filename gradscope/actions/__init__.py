"""Actions of interventions on tensors: a file each, found by its name; no torch.

A file has ``ACTION``: the function from a tensor to the new one, its additional value, and the
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
        change: the new tensor of a tensor and the value, of the same shape and dtype. At an
            activation it is part of the graph: gradients follow the chain rule through it.
        takes: the value in words; empty: there is none.
        accepts: whether a value from a config is such.
        places: where it makes sense; the first is meant where none is named.
    """

    change: Callable[[Tensor, Any], Tensor]
    takes: str = ""
    accepts: Callable[[Any], bool] = _anything
    places: tuple[str, ...] = PLACES


@dataclass(frozen=True, slots=True)
class Intervention:
    """An action at some modules of a model, or at some parameters.

    ``names`` are their first names, of parameters where ``at`` is ``parameter_grad``. ``value`` is
    a number, a tensor (for replace), or None.
    """

    names: tuple[str, ...]
    at: str
    do: str
    value: Any = field(default=None, compare=False)

    def change(self, tensor: Tensor) -> Tensor:
        """The new tensor, in the dtype of the old one."""
        return action(self.do).change(tensor, self.value).to(tensor.dtype)


def action_names() -> tuple[str, ...]:
    """Every action, as a config names it."""
    return tuple(name.replace("-", "_") for name in names(_FOLDER))


def action(name: str) -> Action:
    """The action of that name.

    Raises:
        ConfigError: there is none; the closest is offered.
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
