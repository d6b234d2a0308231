"""What a config may import. A guard against accidents and shared YAML, not a sandbox.

Classes of a few libraries, a short list of their builders, and the user's own files; anything else
needs ``--allow``, which a config cannot give itself.
"""

from __future__ import annotations

import fnmatch
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from gradscope.errors import ConfigError, Place, TargetError
from gradscope.loading.imports import OwnCode

PREFIXES = (
    "torch.nn",
    "torch.optim",
    "torchvision.models",
    "torchvision.transforms",
    "timm",
    "transformers",
    "gradscope.demo",
)
RULE = (
    "a config may name modules, losses, optimizers, schedulers, transforms and config classes of "
    f"{', '.join(PREFIXES[:-1])}, {PREFIXES[-1]}.*, their model builders, torch.nn.functional.*, "
    "and code in files below its folder or the working directory"
)
At = Callable[[str], Place | None]
_FUNCTIONAL = re.compile(r"torch\.nn\.functional\.[a-z]\w*")
_FUNCTIONAL_HOMES = {"torch.nn.functional", "torch._C._nn", "torch"}
_AUTO_BUILDERS = {"from_config", "from_pretrained"}

# Refused everywhere: each turns a file into code.
_REFUSED = {
    "trust_remote_code": "it runs code that comes with the weights",
    "weights_only": "gradscope always reads with weights_only=True: a pickle can run code",
    "pickle_module": "a pickle can run code",
    "allow_all_kernels": "it fetches and runs kernels from anywhere",
    "use_kernels": "it fetches and runs kernels",
    "kernel_config": "it fetches and runs kernels",
}
# Refused for timm: each makes the builder fetch or read a file that nobody looked at.
_REFUSED_TIMM = {
    "checkpoint_path": "the builder would read a file of its own",
    "pretrained_cfg": "it names files and addresses to load from",
    "pretrained_cfg_overlay": "it names files and addresses to load from",
    "load_custom": "it names a loader",
}
_REFUSED_TORCHVISION = {
    "pretrained": "it is the old form of weights",
    "pretrained_backbone": "it is the old form of weights_backbone",
}
_INSTEAD = {
    "checkpoint_path": "name the file as the config's `checkpoint`",
    "pretrained": "set the config's `weights: DEFAULT`",
    "weights_only": "save the file as .safetensors where it must be read otherwise",
}
SAFE = {"trust_remote_code": False, "weights_only": True}


class Policy:
    """The rules, with what the command line allowed on top."""

    def __init__(self, own: OwnCode, allow: Iterable[str] = ()) -> None:
        self.own = own
        self.allow = tuple(pattern.strip() for pattern in allow if pattern.strip())

    def allows(self, name: str) -> bool:
        """Whether an ``--allow`` pattern covers a dotted name; ``pkg.*`` covers ``pkg`` too."""
        return any(
            fnmatch.fnmatchcase(name, pattern) or pattern == f"{name}.*" for pattern in self.allow
        )

    def check_dunder(self, name: str, place: Place | None = None) -> None:
        """Refuse a dotted name that leads through Python's own attributes."""
        for part in name.split("."):
            if part.startswith("__") or part.endswith("__"):
                raise TargetError(
                    f"`{name}` may not be imported from a config: `{part}` is internal to Python",
                    place=place,
                    help="name a class or a function of your own that does it",
                )

    def check_written(self, name: str, place: Place | None = None) -> None:
        """Refuse a dotted name before anything is imported for it."""
        self.check_dunder(name, place)
        if below(name, PREFIXES) or self.allows(name) or self.own.home(name):
            return
        raise refusal(f"`{name}`", name, place)

    def check_resolved(self, found: Any, written: str, place: Place | None = None) -> None:
        """Refuse what a permitted name turned out to be."""
        module, qualname = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
        if isinstance(found, ModuleType):
            raise TargetError(
                f"`{written}` is a module, not a class or a function",
                place=place,
                help=f"name what is in it: `{written}.NAME`",
            )
        if not isinstance(module, str) or not isinstance(qualname, str) or not callable(found):
            raise TargetError(
                f"`{written}` may not be imported from a config: it is an object of type "
                f"{type(found).__name__}, of which no module says that it defines it",
                place=place,
                help="name a class or a function that gives the object",
            )
        resolved = f"{module}.{qualname}"
        if "<lambda>" in qualname:
            raise TargetError(
                f"`{written}` may not be imported from a config: it is a lambda, without a name",
                place=place,
                help="write it as a function: `def NAME(...)`",
            )
        home = getattr(sys.modules.get(module), "__file__", None)
        if self.allows(resolved) or (home is not None and self.own.owns(home)):
            return
        if not _listed(found, module, written):
            what = f"`{written}`" if resolved == written else f"`{written}`, which is `{resolved}`,"
            raise refusal(what, resolved, place, _hint(found, resolved))


def refusal(
    what: str, name: str, place: Place | None = None, hint: str | None = None
) -> TargetError:
    """The error for an import outside the rules; ``name`` is what --allow would have to cover."""
    parts = name.split(".")
    # The narrowest pattern that still reads well: all of a package, but one name of torch's.
    wide = parts[0] not in {"torch", "torchvision", "timm", "transformers", "builtins"}
    pattern = f"{parts[0]}.*" if wide and len(parts) > 1 else name
    help = f"if you trust it, say so on the command line: --allow '{pattern}'"
    return TargetError(
        f"{what} may not be imported from a config",
        place=place,
        help=f"{hint}; {help}" if hint else help,
        notes=[RULE],
    )


def below(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a dotted name is one of ``prefixes`` or lies below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _listed(found: Any, module: str, written: str) -> bool:
    """Whether the built-in lists hold an object."""
    if _FUNCTIONAL.fullmatch(written) and not isinstance(found, type):
        # The C functions among them say that they live in torch or torch._C._nn.
        return module in _FUNCTIONAL_HOMES
    if not below(module, PREFIXES):
        return False
    if below(module, ["gradscope.demo"]):
        return True
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
        # Its registry is what makes a builder: load_state_dict_from_url is a function there too.
        return torchvision_name(found) is not None or found.__qualname__ == "get_model"
    if below(module, ["timm"]):
        return bool(found.__qualname__ == "create_model")
    if below(module, ["transformers.models.auto"]):
        owner = getattr(found, "__self__", None)
        auto = isinstance(owner, type) and owner.__name__.startswith("Auto")
        return auto and found.__name__ in _AUTO_BUILDERS
    return False


def torchvision_name(found: Any) -> str | None:
    """The name that a builder is registered by in torchvision.models, or None."""
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


def check_arguments(name: str, found: Any, arguments: Mapping[str, Any], place: At) -> None:
    """Refuse arguments that would open a side door; ``place(argument)`` says where it stands."""
    module = getattr(found, "__module__", None) or ""
    refused = dict(_REFUSED)
    if below(module, ["timm"]):
        refused |= _REFUSED_TIMM
    if below(module, ["torchvision.models"]):
        refused |= _REFUSED_TORCHVISION
    for argument, value in arguments.items():
        if argument in refused:
            raise ConfigError(
                f"`{argument}` may not be given to `{name}`: {refused[argument]}",
                place=place(argument),
                help=_INSTEAD.get(argument, f"leave `{argument}` out"),
            )
        _check_value(name, module, argument, value, place(argument))


def _check_value(name: str, module: str, argument: str, value: Any, place: Place | None) -> None:
    """Refuse values that make transformers or timm fetch something which nobody asked for."""
    library = below(module, ["transformers"])
    if library and isinstance(value, Mapping):  # the config of a part
        for inner, part in value.items():
            _check_value(name, module, str(inner), part, place)
    elif library and "_implementation" in argument and re.search("[/:@]", str(value)):
        raise ConfigError(
            f"`{argument}: {value}` may not be given to `{name}`: it fetches and runs a kernel",
            place=place,
            help="take `eager` or `sdpa`",
        )
    if argument == "model_name" and below(module, ["timm"]) and ":" in str(value):
        raise ConfigError(
            f"timm's `{value}` may not be built: it brings a config that names files to load",
            place=place,
            help="take a plain timm name, with your weights as the config's `checkpoint`",
        )


def safe_arguments(found: Any) -> dict[str, Any]:
    """The safe values of refused arguments, for a callee that takes them."""
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
