"""``optimizer``: a ``_target_`` mapping to what makes one for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from gradscope.config.targets import is_target, parse_target
from gradscope.errors import ConfigError
from gradscope.loading.targets import Targets

Maker = Callable[[nn.Module], Optimizer]
#: The learning rate where nobody set one.
RATE = 0.01


def maker(config: Mapping[str, Any], targets: Targets, model: nn.Module) -> Maker:
    """What makes the configured optimizer; its arguments are checked against ``model`` now.

    Raises:
        ConfigError: arguments that it does not take, or no parameters to step.
        TargetError: refused, unknown, or no optimizer.
    """
    if not is_target(config):
        raise ConfigError(
            "`optimizer` names no class",
            place=targets.place("optimizer"),
            help="write it as in {_target_: torch.optim.SGD, lr: 0.01}",
        )
    target = parse_target(config, "optimizer")
    found = targets.names.locate(target.name, "optimizer")
    args = [targets.build(value, "optimizer._args_") for value in target.args]
    kwargs = {k: targets.build(v, f"optimizer.{k}") for k, v in target.kwargs.items()}

    def make(model: nn.Module) -> Optimizer:
        parameters = list(model.parameters())
        if not parameters:
            raise ConfigError(
                "the model has no parameters for the optimizer to step",
                place=targets.place("optimizer"),
                help="leave `optimizer` and `steps` out",
            )
        made = targets.call(found, target.name, [parameters, *args], kwargs, "optimizer")
        if not isinstance(made, Optimizer):
            raise ConfigError(
                f"`{target.name}` gives a {type(made).__name__}, not a torch.optim.Optimizer",
                place=targets.place("optimizer"),
                help="write it as in {_target_: torch.optim.SGD, lr: 0.01}",
            )
        return made

    # Once for the check: a wrong argument must not wait until after the backward pass.
    make(model)
    return make


def default(model: nn.Module) -> Optimizer:
    """What `--steps` without an optimizer takes: SGD with lr 0.01."""
    return SGD(model.parameters(), lr=RATE)
