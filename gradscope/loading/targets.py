"""Builds the objects of ``_target_`` mappings: nested ones first; arguments are checked before the
call."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gradscope.config.targets import LOSSES, Target, is_target, parse_target
from gradscope.errors import ConfigError, GradscopeError, Where, message_of, nowhere
from gradscope.loading.named_objects import Names
from gradscope.loading.policy import (
    below,
    check_arguments,
    check_sizes,
    is_module,
    safe_arguments,
    torchvision_name,
)
from gradscope.loading.signatures import arguments, check, ignored, unknown_argument
from gradscope.loading.wall import Wall, WalledPartial

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
# The built-in losses that take arguments, by torch's names for them.
_LOSSES = {
    "cross_entropy": "cross_entropy",
    "mse": "mse_loss",
    "bce_with_logits": "binary_cross_entropy_with_logits",
    "nll": "nll_loss",
}
_DOING = {
    "model": "construction of the model failed",
    "replace": "construction of a replacement failed",
    "optimizer": "construction of the optimizer failed",
    "loss": "construction of the loss failed",
    "input": "making the input failed",
    "target": "making the target failed",
}


class Targets:
    """Builds the objects that one config names.

    ``directory`` is its folder. ``place`` returns the place of a key, ``typed`` True if its value
    is on the command line, not in a file. ``notices`` lists ignored arguments.
    """

    def __init__(
        self,
        directory: Path,
        allow: Iterable[str] = (),
        place: Where = nowhere,
        typed: Callable[[str], bool] = lambda key: False,
    ) -> None:
        self.directory = directory
        self.place = place
        self.names = Names(directory, allow, place, typed)
        self.own = self.names.own
        self.notices: list[str] = []

    def instantiate(self, mapping: Mapping[str, Any], key: str) -> Any:
        """Build the object of a ``_target_`` mapping, its nested ones first.

        If the loss is a function, it is only bound, and called later with the output.

        Raises:
            ConfigError: an argument is unknown or refused.
            TargetError: a name is refused or does not exist.
            ModelError: the callee raised.
        """
        target = parse_target(mapping, key)
        if key == "loss" and target.name in _LOSSES:
            target = replace(target, name=f"torch.nn.functional.{_LOSSES[target.name]}")
        elif key == "loss" and target.name in LOSSES:
            help = f"write `loss: {target.name}`"
            message = f"the loss `{target.name}` takes no arguments"
            raise ConfigError(message, place=self.place(key), help=help)
        found = self.names.locate(target.name, key)
        if is_module(found):
            return self._instance(target, key)
        args = [self.build(value, f"{key}._args_") for value in target.args]
        kwargs = {name: self.build(v, f"{key}.{name}") for name, v in target.kwargs.items()}
        if torchvision_name(found):
            kwargs = self._no_download(found, kwargs, target, key)
        partial = target.partial or (key == "loss" and not isinstance(found, type))
        return self.call(found, target.name, args, kwargs, key, partial=partial)

    def _instance(self, target: Target, key: str) -> nn.Module:
        """Return an object that the file made at import."""
        if target.args or target.kwargs or target.partial:
            raise ConfigError(
                f"`{target.name}` is an object already made: it takes no arguments",
                place=self.place(key),
                help="name its class, or a function that makes one",
            )
        made, file = self.names.instance(target.name)
        sentence = f"{key}: made by the import of {file}, which ran the full file"
        self.notices += [sentence] if sentence not in self.notices else []
        return made

    def build(self, value: Any, key: str) -> Any:
        """Return ``value`` with each target mapping in it replaced by the object built."""
        if is_target(value):
            return self.instantiate(value, key)
        if isinstance(value, Mapping):
            return {name: self.build(item, f"{key}.{name}") for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.build(item, f"{key}.{i}") for i, item in enumerate(value)]
        return value

    def call(
        self,
        found: Callable[..., Any],
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        key: str,
        *,
        partial: bool = False,
        like: Any = None,
        downloads: bool = False,
    ) -> Any:
        """Call (or bind) the object ``name``, and name the responsible code if that fails.

        ``like`` is the callee that finally gets the arguments, which decides their names;
        ``downloads`` is True if weights were requested.
        """
        named = {**_by_name(found, args), **kwargs}
        check_arguments(name, found, named, lambda word: self.place(f"{key}.{word}"))
        kwargs = self._as_annotated(found, name, {**kwargs, **safe_arguments(found)}, key)
        check(found, name, args, kwargs, key, self.place, partial=partial)
        if partial:
            return self._bound(found, name, args, kwargs, key)
        wall = self.wall(found, name, key, downloads=downloads)
        if wall is not None:
            check_sizes(name, named, self.place(key))
        try:
            with wall or nullcontext():
                made = found(*args, **kwargs)
        except GradscopeError:
            raise
        except (Exception, SystemExit, GeneratorExit) as error:
            raise self._failed(error, found, name, kwargs, key, like) from error
        sentences = (f"{key}: {one}" for one in ignored(found, made, kwargs))
        self.notices += [one for one in sentences if one not in self.notices]
        return made

    def wall(
        self, found: Any, name: str, key: str = "model", *, downloads: bool = False
    ) -> Wall | None:
        """Return the wall around a library's code; None for the user's own, or allowed by
        --allow.
        """
        module = getattr(found, "__module__", None) or ""
        resolved = f"{module}.{getattr(found, '__qualname__', '')}"
        file = getattr(sys.modules.get(module), "__file__", None)
        if self.own.owns(file) or self.names.policy.allows(resolved):
            return None
        package = module.partition(".")[0]
        place = self.place(key)
        return Wall(name, place, package=package, downloads=downloads, owns=self.own.owns)

    def _bound(
        self, found: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], key: str
    ) -> functools.partial[Any]:
        if self.wall(found, name, key) is None:
            return functools.partial(found, *args, **kwargs)
        bound = WalledPartial(found, *args, **kwargs)
        bound.wall = lambda: self.wall(found, name, key) or nullcontext()
        return bound

    def _as_annotated(
        self, found: Any, name: str, kwargs: Mapping[str, Any], key: str
    ) -> dict[str, Any]:
        """Convert plain mappings to the dataclasses and namespaces in a callee's annotations."""
        made = dict(kwargs)
        kinds = {a.name: a.kind for a in arguments(found) if isinstance(kwargs.get(a.name), dict)}
        for word, kind in kinds.items():
            value = made[word]
            named = all(isinstance(each, str) and each.isidentifier() for each in value)
            if kind is None or not named or not self.names.policy.permits(kind):
                continue
            # omegaconf's function takes the mapping, the others a keyword for each value.
            args, values = ([value], {}) if kind.__name__ == "DictConfig" else ([], value)
            made[word] = self.call(kind, kind.__name__, args, values, f"{key}.{word}")
            sentence = f"{key}.{word}: the mapping became `{kind.__name__}`, as {name} annotates it"
            self.notices += [sentence] if sentence not in self.notices else []
        return made

    def _no_download(
        self, found: Any, kwargs: dict[str, Any], target: Target, key: str
    ) -> dict[str, Any]:
        """Set random weights for a torchvision builder inside another object."""
        for word in ("weights", "weights_backbone"):
            if kwargs.get(word) is not None:
                raise ConfigError(
                    f"`{target.name}` cannot fetch {word} inside another object",
                    place=self.place(f"{key}.{word}", of_key=True),
                    help="build it as the model, with `weights`, or load a `checkpoint`",
                )
        if "weights_backbone" in inspect.signature(found).parameters:
            kwargs["weights_backbone"] = None
        return kwargs

    def _failed(
        self,
        error: BaseException,
        found: Any,
        name: str,
        kwargs: Mapping[str, Any],
        key: str,
        like: Any,
    ) -> GradscopeError:
        unexpected = _UNEXPECTED.search(message_of(error)) if isinstance(error, TypeError) else None
        if unexpected and unexpected[1] in kwargs:
            problem = unknown_argument(unexpected[1], like or found, name, key, self.place)
            return ConfigError(problem)
        module = getattr(found, "__module__", None) or ""
        if below(module, ["transformers.models.auto"]) and isinstance(error, (OSError, ValueError)):
            return ConfigError(f"`{name}`: {message_of(error)}", place=self.place(key))
        doing = _DOING.get(key.partition(".")[0], "a call failed")
        return self.own.failure(error, f"{doing} in `{name}`", self.place(key))


def _by_name(found: Any, args: Sequence[Any]) -> dict[str, Any]:
    """Return positional arguments by the callee's names, so that refusals apply to them too."""
    try:
        return dict(inspect.signature(found).bind_partial(*args).arguments)
    except (TypeError, ValueError):
        return {}
