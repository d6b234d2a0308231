"""Refuses arguments that would run or fetch code, or make a model too large to build."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gradscope.errors import ConfigError, Place
from gradscope.loading.policy import below, is_container

At = Callable[[str], Place | None]

# Refused everywhere: each turns a file into code.
_REFUSED = {
    "trust_remote_code": "it runs code that comes with the weights",
    "weights_only": "gradscope always reads with weights_only=True: a pickle can run code",
    "pickle_module": "a pickle can run code",
    "allow_all_kernels": "it fetches and runs kernels from anywhere",
    "use_kernels": "it fetches and runs kernels",
    "kernel_config": "it fetches and runs kernels",
    "auto_map": "it names code that comes with the weights",
}
# Refused for timm, to which transformers passes them on: each makes the builder fetch or read a
# file that was not checked.
_REFUSED_TIMM = {
    "checkpoint_path": "the builder would read another file",
    "pretrained_cfg": "it names files and addresses to load from",
    "pretrained_cfg_overlay": "it names files and addresses to load from",
    "load_custom": "it names a loader",
    "pretrained_path": "the builder would read another file",
    "teacher_pretrained_path": "the builder would read another file",
    "teacher_pretrained_cfg_overlay": "it names files and addresses to load from",
}
_REFUSED_TORCHVISION = {
    "pretrained": "it is the old form of weights",
    "pretrained_backbone": "it is the old form of weights_backbone",
}
#: Keys by which timm, and transformers for it, loads a model from more than a name.
_SOURCE = re.compile(r"\s*(hf[-_]hub|local[-_]dir):", re.IGNORECASE)
#: Settings whose values are free text.
_FREE = ("auto_map", "id2label", "label2id")
#: Keys by which transformers loads a part, by the name of a model or by a path.
_PARTS = ("backbone",)
_INSTEAD = {
    "checkpoint_path": "name the file as the config's `checkpoint`",
    "pretrained": "set the config's `weights: DEFAULT`",
    "weights_only": "save the file as .safetensors where it must be read otherwise",
}
SAFE = {"trust_remote_code": False, "weights_only": True}


def check_arguments(name: str, found: Any, arguments: Mapping[str, Any], place: At) -> None:
    """Refuse arguments that would run or fetch code; ``place(argument)`` returns the argument's
    place."""
    module = getattr(found, "__module__", None) or ""
    # Contents of a container may be meant for transformers.
    home = "transformers" if is_container(found) else module
    refused = dict(_REFUSED)
    if below(home, ["timm", "transformers"]):
        refused |= _REFUSED_TIMM
    if below(module, ["torchvision.models"]):
        refused |= _REFUSED_TORCHVISION
    for argument, value in arguments.items():
        _check_value(name, home, refused, argument, value, place(argument))


def check_settings(name: str, settings: Mapping[str, Any], place: Place | None) -> None:
    """Refuse a model's own config, from a folder or a hub, that names further files to load.

    ``pretrained_cfg`` beside a model's type only gives the size of pictures: nothing is loaded.
    """
    full = "model_type" in settings or "architecture" in settings
    for key, value in settings.items():
        if key in _FREE or (full and key == "pretrained_cfg"):
            continue
        if key in _REFUSED_TIMM:
            _refuse(f"stand in {name}", key, _REFUSED_TIMM, place)
        for part in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(part, Mapping):
                check_settings(name, part, place)
            _check_names(f"stand in {name}", key, part, place)


def _check_value(
    name: str,
    module: str,
    refused: Mapping[str, str],
    argument: str,
    value: Any,
    place: Place | None,
) -> None:
    """Refuse an argument, and values with which transformers or timm fetch files unasked."""
    if argument in refused:
        _refuse(f"be given to `{name}`", argument, refused, place)
    library = below(module, ["transformers"])
    if library or below(module, ["timm"]):
        _check_names(f"be given to `{name}`", argument, value, place)
    if library and isinstance(value, Mapping):  # the config of a part
        for inner, part in value.items():
            _check_value(name, module, refused, str(inner), part, place)
    elif library and isinstance(value, (list, tuple)):
        for part in value:
            _check_value(name, module, refused, argument, part, place)
    elif library and "_implementation" in argument and re.search("[/:@]", str(value)):
        raise ConfigError(
            f"`{argument}: {value}` may not be given to `{name}`: it fetches and runs a kernel",
            place=place,
            help="take `eager` or `sdpa`",
        )


def _refuse(where: str, argument: str, refused: Mapping[str, str], place: Place | None) -> None:
    raise ConfigError(
        f"`{argument}` may not {where}: {refused[argument]}",
        place=place,
        help=_INSTEAD.get(argument, f"leave `{argument}` out"),
    )


def _check_names(where: str, argument: str, value: Any, place: Place | None) -> None:
    """Refuse the name of a model that leads to files: of a hub, or of a folder."""
    if not isinstance(value, str):
        return
    timms = argument == "model_name" and ":" in value
    if timms or _SOURCE.match(value) or (argument in _PARTS and _exists(value)):
        raise ConfigError(
            f"`{argument}: {value}` may not {where}: it names files to load",
            place=place,
            help="take the plain name of a model, with your weights as the config's `checkpoint`",
        )


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # longer than names can be, or with a NUL
        return False


def safe_arguments(found: Any) -> dict[str, Any]:
    """Return the safe values of refused arguments, for a callee that takes them."""
    if inspect.ismethod(found) and below(found.__module__, ["transformers.models.auto"]):
        model = found.__qualname__.startswith("_BaseAutoModel")
        names = ["trust_remote_code"]
        names += ["weights_only"] if model and found.__name__ == "from_pretrained" else []
        return {name: SAFE[name] for name in names}
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in SAFE.items() if name in parameters}


#: Counts by their names, with the number that is built in a few minutes.
_MOST = (
    (re.compile(r"layer|depth|block|stack|repeat"), 10_000, "layers"),
    (re.compile(r"num_labels"), 1_000_000, "labels"),
)


def check_sizes(name: str, arguments: Mapping[str, Any], place: Place | None) -> None:
    """Refuse arguments, or a config's fields, that make a model too large.

    Raises:
        ConfigError: the message names the argument.
    """
    for argument, count in _numbers(arguments):
        for pattern, most, what in _MOST:
            if count > most and pattern.search(argument):
                raise ConfigError(
                    f"`{argument}: {count}` of `{name}` is more than {most} {what}",
                    place=place,
                    help="ask for fewer",
                )


def _numbers(arguments: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield each full number in a mapping, under its name."""
    for key, value in arguments.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        else:
            numbers = value if isinstance(value, (list, tuple)) else [value]
            yield from ((str(key), number) for number in numbers if type(number) is int)
