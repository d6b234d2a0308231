"""Makes the configured optimizer: torch's or the user's own, with parameter groups by pattern."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from gradscope.config.targets import is_target, parse_target
from gradscope.errors import ConfigError
from gradscope.loading.surgery import parameters_matching
from gradscope.loading.targets import Targets

Maker = Callable[[nn.Module], Optimizer]
#: The default learning rate.
RATE = 0.01
_GROUPS = "optimizer.param_groups"
_EXAMPLE = 'write it as in [{params: "hidden.**", lr: 0.0001}]'


def optimizer_maker(config: Mapping[str, Any], targets: Targets, model: nn.Module) -> Maker:
    """Return the maker of the configured optimizer; checks its arguments against ``model`` now.

    The maker is called with the parameters, or their groups. A user's function whose first argument
    is called ``model`` gets the model.

    Raises:
        ConfigError: it does not take these arguments, or there are no parameters.
        LayerError: a pattern of a group matches no parameter.
        TargetError: the name is refused, unknown, or not an optimizer.
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
    takes_model = _takes_model(found)
    groups = None if takes_model else kwargs.pop("param_groups", None)

    def make(model: nn.Module) -> Optimizer:
        parameters: Any = list(model.parameters())
        if not parameters:
            raise ConfigError(
                "the model has no parameters for the optimizer to step",
                place=targets.place("optimizer"),
                help="leave `optimizer` and `steps` out",
            )
        if groups is not None:
            parameters = _grouped(model, groups, targets)
        first = model if takes_model else parameters
        made = targets.call(found, target.name, [first, *args], kwargs, "optimizer")
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


def default_optimizer(model: nn.Module) -> Optimizer:
    """Return the optimizer of `--steps` without a configured one: SGD with lr 0.01."""
    return SGD(model.parameters(), lr=RATE)


def _takes_model(found: Any) -> bool:
    return inspect.isfunction(found) and next(iter(inspect.signature(found).parameters), "") == (
        "model"
    )


def _grouped(model: nn.Module, wanted: Any, targets: Targets) -> list[dict[str, Any]]:
    """Return PyTorch's parameter groups, first the group of unmatched parameters; of several
    matches the last wins.

    ``wanted`` has the groups with patterns instead of parameters.
    """
    given = isinstance(wanted, Sequence) and not isinstance(wanted, str)
    if not given or not all(isinstance(one, Mapping) and "params" in one for one in wanted):
        raise ConfigError(
            f"`{_GROUPS}` expects a list of mappings with `params`",
            place=targets.place(_GROUPS),
            help=_EXAMPLE,
        )
    group_of: dict[nn.Parameter, int] = {}
    for number, one in enumerate(wanted):
        patterns = [one["params"]] if isinstance(one["params"], str) else one["params"]
        key = f"{_GROUPS}.{number}.params"
        if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
            raise ConfigError(
                f"`{key}` expects patterns of parameters, which are text",
                place=targets.place(key),
                help=_EXAMPLE,
            )
        for parameter in parameters_matching(model, patterns, key, targets.place):
            group_of[parameter] = number
    rest = [p for p in model.parameters() if p not in group_of]
    made = [{"params": rest}] if rest else []
    for number, one in enumerate(wanted):
        own = [p for p in model.parameters() if group_of.get(p) == number]
        made += [{**one, "params": own}] if own else []
    return made
