"""Reads names of objects: a spec (one word for a model) or a mapping.

Nothing is imported here. ``{_target_: a.B, _args_: [1], _partial_: true, x: 2}`` is the form of a
mapping; ``{class_path: a.B, init_args: {x: 2}}`` (LightningCLI) and ``{_component_: a.B, x: 2}``
(torchtune) mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final

from gradscope.config.python_files import parsed
from gradscope.config.words import Complaint, Path, describe, dotted, either, shorten, unknown_key
from gradscope.errors import ConfigError, Problem, closest_file, did_you_mean
from gradscope.output_files import expanded

#: The word before the colon; the pattern of the word after it; an example.
SOURCES: Final = {
    "torchvision": (re.compile(r"\w+(\.\w+)*\Z"), "torchvision:resnet18"),
    "timm": (re.compile(r"[\w./:@-]+\Z"), "timm:vit_tiny_patch16_224"),
    "hf": (re.compile(r"[^\x00-\x1f]+\Z"), "hf:DIR_OR_ID"),
}
DEMOS: Final = ("demo", "demo:lecture", "demo:scouter", "demo:scouter-negative")
_MISNOMERS: Final = {
    "huggingface": "hf",
    "tv": "torchvision",
    "torchvision.models": "torchvision",
    "lecture": "demo",
}
_FORMS: Final = (
    "a model is `torchvision:NAME`, `timm:NAME`, `hf:DIR_OR_ID`, `./net.py:Name`, `pkg.mod:Name`, "
    "`demo`, or the path of a YAML"
)

#: Families of torchvision.models, by the beginnings of their names: only for suggestions.
_TORCHVISION: Final = re.compile(
    r"(alexnet|convnext|deeplabv3|densenet|efficientnet|fasterrcnn|fcn|fcos|googlenet|inception|"
    r"keypointrcnn|lraspp|maskrcnn|maxvit|mc3|mnasnet|mobilenet|mvit|r2plus1d|r3d|raft|regnet|"
    r"resnet|resnext|retinanet|s3d|shufflenet|squeezenet|ssd|swin|vgg|vit_|wide_resnet)\w*\Z"
)
_TIMM: Final = re.compile(r"\w*(_patch\d|_tiny|_small|_base|_large|deit|beit|eva|mixer)\w*[\w.]*\Z")

#: Built-in losses that are made of the output alone, or find their target in it.
WITHOUT_ARGUMENTS: Final = ("sum", "mean", "logit", "output")
#: The built-in losses; as a ``_target_`` the others take the arguments of PyTorch's function.
LOSSES: Final = ("cross_entropy", "mse", "bce_with_logits", "nll", *WITHOUT_ARGUMENTS)

#: torch's optimizers by their names in small letters.
OPTIMIZERS: Final = {
    name.lower(): f"torch.optim.{name}"
    for name in (
        *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon"),
        *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"),
    )
}

Fault = tuple[str, str | None]  # message, help


def is_own(spec: str) -> bool:
    """Return True if a spec names the user's own code, not a library's model."""
    return spec not in DEMOS and spec.partition(":")[0] not in SOURCES


def spec_fault(spec: str, directory: FilePath, *, argument: bool = False) -> Fault | None:
    """Return the mistake in a model spec's form, or None.

    ``directory`` is the folder of local modules. ``argument``: the spec is on the command line,
    where a YAML path is allowed too.
    """
    kind = "neither a config file nor a model spec" if argument else "not a model spec"
    if not spec.strip():
        return "the model spec is empty", _FORMS
    prefix, colon, name = spec.rpartition(":") if ".py:" in spec else spec.partition(":")
    if spec in DEMOS:
        return None
    if prefix in SOURCES and colon:
        pattern, example = SOURCES[prefix]
        if pattern.match(name):
            return None
        return f"`{shorten(spec)}` names no model", f"write it as in `{example}`"
    if not colon and spec.endswith(".py"):
        return _python_file(spec, directory, kind)
    if not colon:
        return f"`{shorten(spec)}` is {kind}", _bare(spec, directory)
    if prefix == "demo":
        close = did_you_mean(spec, DEMOS[1:])
        return f"unknown demo `{shorten(name)}`", close or f"a demo is {either(DEMOS)}"
    if prefix.endswith(".py"):
        return _attribute_fault(spec, name)
    known = _MISNOMERS.get(prefix.lower()) or (prefix.lower() if prefix != prefix.lower() else None)
    if known in SOURCES:
        return f"`{shorten(spec)}` is {kind}", f"did you mean `{known}:{shorten(name)}`?"
    close = did_you_mean(prefix, SOURCES)
    local = _exists(directory / f"{prefix}.py") or _exists(directory / prefix)
    if close and not local and _is_dotted(prefix) and "." not in prefix:
        fixed = close.replace("`?", f":{shorten(name)}`?")
        return f"`{shorten(prefix)}` is not a source of models", fixed
    if not _is_dotted(prefix):
        return f"`{shorten(spec)}` is {kind}", _FORMS
    return _attribute_fault(spec, name)


def name_fault(name: str) -> Fault | None:
    """Return the mistake in a ``_target_``'s form (a dotted name or a spec), or None."""
    if name in LOSSES or (_is_dotted(name) and "." in name):
        return None
    if ":" in name or name in DEMOS:
        return spec_fault(name, FilePath())
    if not name.strip():
        return "the name is empty", "write it as in `torch.nn.Linear` or `./net.py:Net`"
    help = "write the module too, as in `torch.nn.Linear`, `net.Net` or `./net.py:Net`"
    if name.endswith(".py"):
        help = f"name the class in the file: `{shorten(name)}:Net`"
    return f"`{shorten(name)}` is not the full name of a class or function", help


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _attribute_fault(spec: str, name: str) -> Fault | None:
    if name and _is_dotted(name):
        return None
    return f"`{shorten(spec)}` names no class", "write it as in `./net.py:Net` or `pkg.mod:Net`"


def _exists(path: FilePath) -> bool:
    try:
        return path.exists()
    except OSError:  # a name longer than names can be
        return False


def _bare(word: str, directory: FilePath) -> str:
    """Return the remedy for a word without a colon."""
    for suffix in (".yaml", ".yml"):
        if _exists(directory / f"{word}{suffix}"):
            return f"did you mean `{shorten(word)}{suffix}`?"
    if re.search(r"\.(pt|pth|ckpt|bin|safetensors)$", word):
        return (
            f"a checkpoint needs its model beside it: `torchvision:NAME checkpoint={shorten(word)}`"
        )
    close = did_you_mean(word.lower(), DEMOS)
    if close:
        return close
    if _TORCHVISION.match(word.lower()) and "patch" not in word:
        return f"did you mean `torchvision:{word.lower()}`?"
    if _TIMM.match(word.lower()):
        return f"did you mean `timm:{word.lower()}`?"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", word):
        return f"did you mean `hf:{word}`?"
    module, _, name = word.rpartition(".")
    if module and _is_dotted(word):
        return f"did you mean `{module}:{name}`?"
    return _FORMS


def definition_fault(spec: str, directory: FilePath) -> Fault | None:
    """Return the mistake of a spec if its file does not define the name.

    The file is parsed, not run.
    """
    text, colon, name = spec.rpartition(":")
    file = parsed(directory / expanded(text)) if colon and text.endswith(".py") else None
    first = name.partition(".")[0]
    if file is None or file.defines(first):
        return None
    shown = shorten(text)
    help = did_you_mean(first, file.models) or _classes(shown, file.models) or _observe(shown)
    return f"`{shown}` has no `{shorten(first)}`", help


def _python_file(word: str, directory: FilePath, kind: str) -> Fault:
    """Return the mistake if a Python file's path is given as a model."""
    path = directory / expanded(word)
    shown = shorten(word)
    if not _exists(path):
        return f"there is no file `{shown}`", closest_file(path, [".py"]) or _FORMS
    file = parsed(path)
    if file is not None and not file.models:
        return f"`{shown}` defines no model class", _observe(shown)
    start = shown if shown.startswith((".", "/", "~")) else f"./{shown}"
    which = _classes(start, [] if file is None else file.models)
    which = which or f"name the class in it, as in `{start}:Net`"
    return f"`{shown}` is {kind}", f"{which}; {_observe(shown)}"


def _classes(file: str, names: Sequence[str]) -> str | None:
    return f"name the class in it: {either(f'`{file}:{n}`' for n in names[:4])}" if names else None


def _observe(file: str) -> str:
    return (
        f"for a training script: `gradscope why {file}` says why it does not learn, "
        f"`gradscope run {file}` records it"
    )


#: The keys that make a mapping a target.
SPELLINGS: Final = ("_target_", "class_path", "_component_")

_OWN: Final = ("_target_", "_args_", "_partial_")

#: Placeholder of a value that is still to be written, as in OmegaConf and `gradscope init`.
MISSING: Final = "???"

#: Keyword arguments that would let a downloaded file run code; gradscope passes the safe value.
REFUSED: Final = ("trust_remote_code", "weights_only", "pickle_module")


@dataclass(frozen=True, slots=True)
class Target:
    """An object to build: call ``name`` with ``args`` and ``kwargs``, or bind them."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False


def is_target(value: Any) -> bool:
    """Return True for a mapping that builds an object, in any of the three spellings."""
    return isinstance(value, Mapping) and any(key in value for key in SPELLINGS)


def parse_target(value: Mapping[str, Any], key: str = "_target_") -> Target:
    """Parse a target mapping; nested ones stay mappings in the normal form.

    Raises:
        ConfigError: it is malformed, or passes a refused argument; ``key`` names the mapping in
            messages.
    """
    normal, complaints = normalise(value, (key,))
    if complaints:
        raise ConfigError(*(Problem(c.message, help=c.help) for c in complaints))
    kwargs = {name: item for name, item in normal.items() if name not in _OWN}
    args, partial = tuple(normal.get("_args_", ())), normal.get("_partial_", False)
    return Target(normal["_target_"], args, kwargs, partial)


def normalise(value: Any, path: Path = ()) -> tuple[Any, list[Complaint]]:
    """Return ``value`` with each target mapping in the ``_target_`` form, and complaints."""
    complaints: list[Complaint] = []
    return _normalise(value, path, complaints, inside=False), complaints


def _normalise(value: Any, path: Path, complaints: list[Complaint], *, inside: bool) -> Any:
    """Return ``value`` in the normal form. ``inside``: a mapping around it is a target, whose keys
    become arguments."""
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
    """Return the complaint about a value that is still ``MISSING``."""
    message = f"`{dotted(path)}` has no value yet"
    return Complaint(path, message, f"write one in place of `{MISSING}`")


def _refused(path: Path) -> Complaint:
    return Complaint(
        path,
        f"the argument `{dotted(path[-1:])}` is refused: it decides whether files may run code",
        "delete it: gradscope passes the safe value itself",
        "key",
    )
