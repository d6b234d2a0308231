"""Mappings that build an object: three spellings, one form.

``{_target_: a.B, _args_: [1], _partial_: true, x: 2}`` is the form; ``{class_path: a.B, init_args:
{x: 2}}`` (LightningCLI) and ``{_component_: a.B, x: 2}`` (torchtune) mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gradscope.config.specs import OPTIMIZERS, name_fault
from gradscope.config.words import Complaint, Path, describe, dotted, unknown_key
from gradscope.errors import ConfigError, Problem, did_you_mean

#: The keys that make a mapping a target.
SPELLINGS: Final = ("_target_", "class_path", "_component_")

_OWN: Final = ("_target_", "_args_", "_partial_")

#: What stands for a value that is still to be written, as in OmegaConf and `gradscope init`.
MISSING: Final = "???"

#: Keyword arguments that would let a downloaded file run code; gradscope passes the safe value.
REFUSED: Final = ("trust_remote_code", "weights_only", "pickle_module")


@dataclass(frozen=True, slots=True)
class Target:
    """What a target mapping asks for: call ``name`` with ``args`` and ``kwargs``, or bind them."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False


def is_target(value: Any) -> bool:
    """Whether a value is a mapping that builds an object, in any of the three spellings."""
    return isinstance(value, Mapping) and any(key in value for key in SPELLINGS)


def parse_target(value: Mapping[str, Any], key: str = "_target_") -> Target:
    """A target mapping, parsed; nested ones stay mappings in the normal form.

    Raises:
        ConfigError: it is malformed, or passes a refused argument; ``key`` names it there.
    """
    normal, complaints = normalise(value, (key,))
    if complaints:
        raise ConfigError(*(Problem(c.message, help=c.help) for c in complaints))
    kwargs = {name: item for name, item in normal.items() if name not in _OWN}
    args, partial = tuple(normal.get("_args_", ())), normal.get("_partial_", False)
    return Target(normal["_target_"], args, kwargs, partial)


def normalise(value: Any, path: Path = ()) -> tuple[Any, list[Complaint]]:
    """``value`` with each target mapping inside it in the ``_target_`` form, and what is wrong."""
    complaints: list[Complaint] = []
    return _normalise(value, path, complaints, inside=False), complaints


def _normalise(value: Any, path: Path, complaints: list[Complaint], *, inside: bool) -> Any:
    """``inside``: some mapping around ``value`` is a target, so its keys become arguments."""
    if isinstance(value, list | tuple):
        return [_normalise(v, (*path, i), complaints, inside=inside) for i, v in enumerate(value)]
    if inside and value == MISSING:
        complaints.append(unwritten(path))
    if not isinstance(value, Mapping):
        return value
    if is_target(value):
        value, inside = _normal_form(value, path, complaints), True
    if inside:
        complaints += [_refused((*path, key)) for key in value if key in REFUSED]
    return {k: _normalise(v, (*path, k), complaints, inside=inside) for k, v in value.items()}


def _normal_form(
    value: Mapping[str, Any], path: Path, complaints: list[Complaint]
) -> dict[str, Any]:
    used = [key for key in SPELLINGS if key in value]
    if len(used) > 1:
        message = f"`{used[0]}` and `{used[1]}` in one mapping"
        complaints.append(Complaint((*path, used[1]), message, "keep one of the two", "key"))
    spelling, name = used[0], value[used[0]]
    rest = {key: item for key, item in value.items() if key not in SPELLINGS}
    if spelling == "class_path":
        rest = _init_args(rest, path, complaints)
    for key in rest:
        if key.startswith("_") and key.endswith("_") and key not in _OWN:
            complaints.append(unknown_key((*path, key), _OWN))
    if not isinstance(rest.get("_args_", []), list):
        message = f"`_args_` expects a list, found {describe(rest['_args_'])}"
        complaints.append(Complaint((*path, "_args_"), message))
    if not isinstance(rest.get("_partial_", False), bool):
        message = f"`_partial_` expects true or false, found {describe(rest['_partial_'])}"
        complaints.append(Complaint((*path, "_partial_"), message))
    if path == ("optimizer",) and isinstance(name, str):
        name = OPTIMIZERS.get(name.lower(), name)
    fault = name_fault(name) if isinstance(name, str) else None
    if fault and path == ("optimizer",):
        fault = fault[0], did_you_mean(name.lower(), OPTIMIZERS, count=2) or fault[1]
    if not isinstance(name, str):
        message = f"`{spelling}` expects a name such as `torch.nn.Linear`, found {describe(name)}"
        complaints.append(Complaint((*path, spelling), message))
    elif fault:
        complaints.append(Complaint((*path, spelling), *fault))
    return {"_target_": name, **rest}


def _init_args(rest: dict[str, Any], path: Path, complaints: list[Complaint]) -> dict[str, Any]:
    arguments = rest.pop("init_args", {})
    for key in rest:
        help = f"put it into `init_args`: `init_args: {{{key}: …}}`"
        complaints.append(unknown_key((*path, key), ["class_path", "init_args"], help=help))
    if not isinstance(arguments, Mapping):
        message = f"`init_args` expects a mapping, found {describe(arguments)}"
        complaints.append(Complaint((*path, "init_args"), message))
        return {}
    return dict(arguments)


def unwritten(path: Path) -> Complaint:
    """The complaint about ``MISSING`` in the place of a value."""
    message = f"`{dotted(path)}` has no value yet"
    return Complaint(path, message, f"write one in place of `{MISSING}`")


def _refused(path: Path) -> Complaint:
    return Complaint(
        path,
        f"the argument `{dotted(path[-1:])}` is refused: it decides whether files may run code",
        "delete it: gradscope passes the safe value itself",
        "key",
    )
