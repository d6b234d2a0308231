"""How often a model is called, and whether one that is only evaluated stays as it was."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.capture.fingerprints import fingerprints
from gradscope.training.models import Model


class ModelUse:
    """One model.

    Attributes:
        calls: how often it was called with gradients enabled.
        evaluations: how often without.
    """

    def __init__(self) -> None:
        self.calls = self.evaluations = 0
        self._first: str | None = None

    def evaluated(self, module: nn.Module) -> None:
        """It is called without gradients."""
        self.evaluations += 1
        if not self.calls and self._first is None:
            self._first = _digest(module)

    def is_unchanged(self, module: nn.Module) -> bool:
        """Whether it was evaluated alone, and has the weights that it had at first."""
        return not self.calls and self._first is not None and self._first == _digest(module)


def twins(models: Iterable[Model]) -> dict[int, list[Model]]:
    """By a model's number the others of the same class and the same shapes."""
    alike: dict[object, list[Model]] = {}
    for model in models:
        shapes = tuple(tuple(parameter.shape) for parameter in _parameters(model.module))
        alike.setdefault((type(model.module), shapes), []).append(model)
    return {
        model.id: [other for other in group if other is not model]
        for group in alike.values()
        for model in group
    }


def _digest(module: nn.Module) -> str:
    """Of one parameter, the last: whoever updates a model updates that too."""
    parameters = _parameters(module)
    return fingerprints(parameters[-1:])[0] if parameters else ""


def _parameters(module: nn.Module) -> list[nn.Parameter]:
    """Those that have a shape by now."""
    return [one for one in module.parameters() if not is_lazy(one)]
