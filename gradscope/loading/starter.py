"""Finds the arguments and the input of a custom model, for a starter config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradscope.config.loaded_config import LoadedConfig
from gradscope.config.targets import MISSING
from gradscope.errors import ConfigError, GradscopeError
from gradscope.loading import specs
from gradscope.loading.first_layer import required_arguments
from gradscope.loading.inference import infer
from gradscope.loading.targets import Argument, Targets
from gradscope.loading.workload import build_model


@dataclass(frozen=True, slots=True)
class Start:
    """Facts for a starter config.

    ``input`` is None if the config needs none, or if it is unknown. ``comment`` gives the origin of
    the input, or what to write.
    """

    arguments: tuple[Argument, ...]
    input: Any = None
    comment: str = ""


def start_of(loaded: LoadedConfig, allow: Sequence[str]) -> Start:
    """Return the arguments of the class or function that a spec names, and the input of its model.

    Raises:
        TargetError: a name that is refused or does not exist.
        ModelError: the user's file raised.
    """
    assert isinstance(loaded.config.model, str)
    targets = Targets(loaded.directory, allow, loaded.place, loaded.typed)
    found = specs.arguments(loaded.config.model, targets)
    if any(argument.required for argument in found):
        return Start(found)  # the model is built once these have values
    try:
        built = build_model(loaded, allow, torch.device("cpu"))
    except GradscopeError:  # the run says why, with all that the config has by then
        return Start(found)
    try:
        inferred = infer(built.context(loaded))
    except ConfigError:
        names = required_arguments(built.model) or []
        shape = {"shape": MISSING}
        wanted: Any = {name: dict(shape) for name in names} or shape
        return Start(found, wanted, "forward's arguments; they cannot be inferred")
    return Start(found, inferred.input or None, f"inferred from {inferred.origin}")
