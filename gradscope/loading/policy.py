"""Decides which imports a config may make, and refuses arguments that run code or build too much.

A guard against accidents and shared YAML, not a sandbox. Allowed are classes of a few libraries, a
short list of their builders, and the user's own files; anything else needs ``--allow``, which a
config cannot give itself.
"""

from __future__ import annotations

import fnmatch
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from gradscope.errors import ConfigError, Place, TargetError
from gradscope.loading.imports import OwnCode
from gradscope.output_files import expanded

PREFIXES = (
    "torch.nn",
    "torch.optim",
    "torchvision.models",
    "torchvision.transforms",
    "timm",
    "transformers",
    "gradscope.demo",
)
#: Containers of values for a constructor that reads attributes; building one runs nothing.
CONTAINERS = (
    "types.SimpleNamespace",
    "argparse.Namespace",
    "omegaconf.OmegaConf.create",
    "omegaconf.DictConfig",
)
_CONTAINER_HOMES = (
    *CONTAINERS[:2],
    "omegaconf.omegaconf.OmegaConf.create",
    "omegaconf.dictconfig.DictConfig",
)
RULE = (
    "a config may name modules, losses, optimizers, schedulers, transforms and config classes of "
    f"{', '.join(PREFIXES[:-1])}, {PREFIXES[-1]}.*, their model builders, torch.nn.functional.*, "
    f"{', '.join(CONTAINERS)}, and code in files below its folder or the working directory"
)
_FUNCTIONAL = re.compile(r"torch\.nn\.functional\.[a-z]\w*")
_FUNCTIONAL_HOMES = {"torch.nn.functional", "torch._C._nn", "torch"}
_AUTO_BUILDERS = {"from_config", "from_pretrained"}


class Policy:
    """The rules, with the command line's permissions on top."""

    def __init__(self, own: OwnCode, allow: Iterable[str] = ()) -> None:
        self.own = own
        self.allow = tuple(pattern.strip() for pattern in allow if pattern.strip())

    def allows(self, name: str) -> bool:
        """Return True if an ``--allow`` pattern covers a dotted name; ``pkg.*`` covers ``pkg``
        too."""
        return any(
            fnmatch.fnmatchcase(name, pattern) or pattern == f"{name}.*" for pattern in self.allow
        )

    def allows_file(self, path: Path) -> bool:
        """Return True if an ``--allow`` pattern covers a file: a path pattern, or ``*``.

        A permission for a package does not cover a file of the same name.
        """
        files = [os.path.realpath(expanded(p)) for p in self.allow if _is_path(p)]
        return "*" in self.allow or any(fnmatch.fnmatchcase(str(path), file) for file in files)

    def check_dunder(self, name: str, place: Place | None = None) -> None:
        """Refuse a dotted name that leads through Python's own attributes."""
        for part in name.split("."):
            if part.startswith("__") or part.endswith("__"):
                raise TargetError(
                    f"`{name}` may not be imported: `{part}` is internal to Python",
                    place=place,
                    help="name a class or a function of your own that does it",
                )

    def installed(self, name: str) -> bool:
        """Return True if a permitted name belongs to a library, not to the user's own file."""
        return below(name, PREFIXES) or name in CONTAINERS or self.allows(name)

    def check_written(self, name: str, place: Place | None = None) -> None:
        """Refuse a dotted name before anything is imported for it."""
        self.check_dunder(name, place)
        if self.installed(name) or self.own.home(name):
            return
        raise refusal(f"`{name}`", name, place)

    def check_resolved(
        self, found: Any, written: str, holder: ModuleType | None, place: Place | None = None
    ) -> None:
        """Refuse an object by its resolved name; ``holder`` is the module that contains it."""
        module, qualname = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
        if isinstance(found, ModuleType):
            raise TargetError(
                f"`{written}` is a module, not a class or a function",
                place=place,
                help=f"name an object in it: `{written}.NAME`",
            )
        own = self.own.owns(getattr(holder, "__file__", None))
        if is_module(found) and (own or self.allows(written)):
            return
        if not isinstance(module, str) or not isinstance(qualname, str) or not callable(found):
            raise TargetError(
                f"`{written}` may not be imported: no module says that it defines this object of "
                f"type {type(found).__name__}",
                place=place,
                help="name a class or a function that gives the object",
            )
        resolved = f"{module}.{qualname}"
        if "<lambda>" in qualname:
            raise TargetError(
                f"`{written}` may not be imported: it is a lambda, without a name",
                place=place,
                help="write it as a function: `def NAME(...)`",
            )
        if is_container(found):
            return
        home = getattr(sys.modules.get(module), "__file__", None)
        if self.allows(resolved) or (home is not None and self.own.owns(home)):
            return
        if not _listed(found, module, written):
            what = f"`{written}`" if resolved == written else f"`{written}`, which is `{resolved}`,"
            raise refusal(what, resolved, place, _hint(found, resolved))

    def permits(self, kind: type) -> bool:
        """Return True if a class may be built although the config does not name it."""
        home = sys.modules.get(kind.__module__)
        try:
            self.check_resolved(kind, f"{kind.__module__}.{kind.__qualname__}", home)
        except TargetError:
            return False
        return True


def refusal(
    what: str, name: str, place: Place | None = None, hint: str | None = None
) -> TargetError:
    """Return the error for an import outside the rules; ``name`` is the one for --allow."""
    parts = [name] if _is_path(name) else name.split(".")
    # The suggested pattern covers a full package; of torch and other large ones, a single name.
    wide = parts[0] not in {"torch", "torchvision", "timm", "transformers", "builtins"}
    pattern = f"{parts[0]}.*" if wide and len(parts) > 1 else name
    help = f"if you trust it, say so on the command line: --allow '{pattern}'"
    return TargetError(
        f"{what} may not be imported",
        place=place,
        help=f"{hint}; {help}" if hint else help,
        notes=[RULE],
    )


def _is_path(pattern: str) -> bool:
    """Return True if the pattern is for file paths, not for dotted names."""
    return os.sep in pattern or "/" in pattern or pattern.endswith(".py")


def below(name: str, prefixes: Iterable[str]) -> bool:
    """Return True if a dotted name is one of ``prefixes`` or lies below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def is_module(found: Any) -> bool:
    """Return True if the object is a ``torch.nn.Module`` instance."""
    torch = sys.modules.get("torch")  # where it was not imported, there is none
    return torch is not None and isinstance(found, torch.nn.Module)


def is_container(found: Any) -> bool:
    """Return True if the object is one of ``CONTAINERS``."""
    module, qualname = getattr(found, "__module__", ""), getattr(found, "__qualname__", "")
    return f"{module}.{qualname}" in _CONTAINER_HOMES


def _listed(found: Any, module: str, written: str) -> bool:
    """Return True if the built-in lists hold the object."""
    if _FUNCTIONAL.fullmatch(written) and not isinstance(found, type):
        # C functions among them have the module torch or torch._C._nn.
        return module in _FUNCTIONAL_HOMES
    if not below(module, PREFIXES):
        return False
    return _class(found, module) if isinstance(found, type) else _builder(found, module)


def _class(found: type, module: str) -> bool:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    if issubclass(found, (nn.Module, nn.Parameter, Optimizer, LRScheduler)):
        return True
    if below(module, ["torchvision.transforms", "timm.data.transforms", "timm.scheduler"]):
        return True
    return not module.startswith("torch.") and found.__name__.endswith(("Config", "Cfg"))


def _builder(found: Any, module: str) -> bool:
    if below(module, ["torchvision.models"]):
        # Only functions in the registry are builders: load_state_dict_from_url is in the package
        # too.
        return torchvision_name(found) is not None or found.__qualname__ == "get_model"
    if below(module, ["timm"]):
        return bool(found.__qualname__ == "create_model")
    if below(module, ["transformers.models.auto"]):
        owner = getattr(found, "__self__", None)
        auto = isinstance(owner, type) and owner.__name__.startswith("Auto")
        return auto and found.__name__ in _AUTO_BUILDERS
    return False


def torchvision_name(found: Any) -> str | None:
    """Return the name of a builder in torchvision.models, or None."""
    api = sys.modules.get("torchvision.models._api")
    registry: Mapping[str, Any] = getattr(api, "BUILTIN_MODELS", {})
    return next((name for name, builder in registry.items() if builder is found), None)


def _hint(found: Any, resolved: str) -> str | None:
    if below(resolved, ["timm.models"]) and inspect.isfunction(found):
        return f"write the model as `timm:{found.__name__}`"
    if below(resolved, ["transformers"]) and getattr(found, "__name__", "") == "from_pretrained":
        return "write the model as `hf:DIR_OR_ID`, or use transformers.Auto*.from_pretrained"
    if below(resolved, ["transformers.models.auto"]) and isinstance(found, type):
        return f"write transformers.{found.__name__}.from_config"
    return None


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
    "weights_only": "if gradscope cannot read the file, save it as .safetensors",
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
    """Yield each integer in a mapping, under its name."""
    for key, value in arguments.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        else:
            numbers = value if isinstance(value, (list, tuple)) else [value]
            yield from ((str(key), number) for number in numbers if type(number) is int)
