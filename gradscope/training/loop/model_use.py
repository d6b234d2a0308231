"""How often a model is called, and whether one that is only evaluated stays as it was."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.capture.fingerprints import fingerprints


class ModelUse:
    """One model.

    Attributes:
        calls: how often it was called with gradients enabled.
        evaluations: how often without.
    """

    def __init__(self, module: nn.Module) -> None:
        self.calls = self.evaluations = 0
        self._digest = _digest(module)
        self._same = True

    def evaluated(self, module: nn.Module) -> None:
        """It is called without gradients."""
        self.evaluations += 1
        if not self.calls and self._same:
            self._same = self._digest == _digest(module)

    @property
    def is_unchanged(self) -> bool:
        """Whether it was evaluated alone, with the weights that it had when it was found."""
        return bool(self.evaluations) and not self.calls and self._same


def signature(module: nn.Module) -> object:
    """The same of two models of one class whose parameters have the same shapes."""
    return type(module), tuple(tuple(parameter.shape) for parameter in _parameters(module))


def _digest(module: nn.Module) -> str:
    """Of one parameter, the last: whoever updates a model updates that too."""
    parameters = _parameters(module)
    return fingerprints(parameters[-1:])[0] if parameters else ""


def _parameters(module: nn.Module) -> list[nn.Parameter]:
    """Those that have a shape by now."""
    return [one for one in module.parameters() if not is_lazy(one)]
