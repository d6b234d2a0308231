"""Builds the objects of ``_target_`` mappings: nested ones first; arguments are checked before the
call."""

from __future__ import annotations

import dis
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any

from torch import nn

from gradscope.config.targets import LOSSES, Target, is_target, parse_target
from gradscope.errors import (
    ConfigError,
    GradscopeError,
    Place,
    Problem,
    Where,
    did_you_mean,
    message_of,
    nowhere,
)
from gradscope.loading.named_objects import Names
from gradscope.loading.policy import (
    SAFE,
    below,
    check_arguments,
    check_sizes,
    is_container,
    is_module,
    safe_arguments,
    torchvision_name,
)
from gradscope.loading.wall import Wall, WalledPartial

#: Files of transformers that read keys of any config, beside the model's folder.
_READERS = (
    "configuration_utils.py",
    "modeling_utils.py",
    "modeling_rope_utils.py",
    "generation/configuration_utils.py",
    "generation/utils.py",
    "loss/*.py",
)


def accepted(found: Any) -> list[str]:
    """Return the argument names of a callee, and of the class in its return annotation."""
    names: list[str] = []
    returned = getattr(found, "__annotations__", {}).get("return")
    if isinstance(returned, str):
        returned = getattr(found, "__globals__", {}).get(returned)
    for callee in (found, returned):
        if not callable(callee):
            continue
        try:
            parameters = inspect.signature(callee).parameters.values()
        except (TypeError, ValueError):
            continue
        names += [
            p.name
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in names
        ]
    return names


def takes_any(found: Any) -> bool:
    """Return True if a wrapper takes more names than the callee's signature shows.

    Only a call can show whether it uses them.
    """
    inner: Any = getattr(found, "__init__", None) if isinstance(found, type) else found
    if not hasattr(inner, "__wrapped__"):
        return False
    parameters = inspect.signature(inner, follow_wrapped=False).parameters.values()
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def ignored(found: Any, made: Any, kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each argument that the callee accepts and ignores."""
    name = getattr(found, "__name__", "")
    names = [word for word in kwargs if word not in accepted(found)]
    if not names:
        return
    message = f"{name} takes any name and drops"
    if is_transformers_config(made):
        message = f"{name} keeps, and nothing reads,"
        names = [word for word in names if word in vars(made) and not hasattr(type(made), word)]
        read = _words_read(type(made)) if names else frozenset()
        names = [word for word in names if word not in read]
    elif not _drops_keywords(found):
        return
    for word in names:
        close = did_you_mean(word, accepted(found))
        yield f"{message} `{word}`" + (f": {close}" if close else "")


def is_transformers_config(made: Any) -> bool:
    """Return True if the object is the config of a transformers model."""
    # Where transformers was not imported, nothing can be an instance of its classes.
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(made, transformers.PretrainedConfig)


def _words_read(config: type) -> frozenset[str]:
    """Return every word in the code that reads such a config: in its own folder and in the shared
    parts."""
    transformers, own = sys.modules["transformers"], sys.modules.get(config.__module__)
    root = Path(str(transformers.__file__)).parent
    files = [path for pattern in _READERS for path in root.glob(pattern)]
    if own is not None and own.__file__ is not None:
        files += Path(own.__file__).parent.glob("*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return frozenset(re.findall(r"\w+", text))


def _drops_keywords(found: Any) -> bool:
    """Return True if the callee's code never reads its ``**kwargs``."""
    inner: Any = getattr(found, "__init__", None) if isinstance(found, type) else found
    code: CodeType | None = getattr(inner, "__code__", None)
    if code is None or hasattr(inner, "__wrapped__") or not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    at = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    word = code.co_varnames[at]
    is_read = any(one.argval in (word, "locals") for one in dis.get_instructions(code))
    return word not in code.co_cellvars and not is_read


_NONE: Any = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
#: Errors of evaluating annotations: they may use names that only a type checker imports.
_UNREADABLE = (NameError, AttributeError, TypeError, SyntaxError, ImportError)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a callee.

    ``wants`` is its annotation as text, ``kind`` the annotated dataclass or container, which a
    mapping is converted to.
    """

    name: str
    wants: str = ""
    default: Any = _NONE
    kind: type | None = None

    @property
    def required(self) -> bool:
        """True if the argument has no default."""
        return self.default is _NONE

    @property
    def fields(self) -> tuple[Argument, ...]:
        """The arguments of the annotated dataclass."""
        return arguments(self.kind) if is_dataclass(self.kind) else ()

    def __str__(self) -> str:
        annotated = f"{self.name}: {self.wants}" if self.wants else self.name
        if self.required:
            return annotated
        equals = " = " if self.wants else "="
        shown = getattr(self.default, "__name__", None) or repr(self.default)
        return f"{annotated}{equals}{shown if len(shown) <= 40 else '…'}"


def arguments(found: Any) -> tuple[Argument, ...]:
    """Return the arguments that a callee names, in order; none if it is written in C."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ()
    hints = _hints(found)
    # In the signature, the default of such a field is only a marker.
    made = {f.name: f.default_factory for f in fields(found)} if is_dataclass(found) else {}
    factories = {name: factory for name, factory in made.items() if factory is not MISSING}
    return tuple(
        Argument(
            p.name,
            _written(p.annotation, found),
            factories.get(p.name, p.default),
            _kind(hints.get(p.name)),
        )
        for p in signature.parameters.values()
        if p.kind not in _VARIADIC
    )


def _hints(found: Any) -> dict[str, Any]:
    try:
        inner = getattr(found, "__init__", found) if isinstance(found, type) else found
        return typing.get_type_hints(inner)
    except _UNREADABLE:
        return {}


def _written(annotation: Any, found: Any) -> str:
    if annotation is _NONE:
        return ""
    if isinstance(annotation, str):
        return annotation
    home = re.escape(getattr(found, "__module__", None) or "builtins")
    return re.sub(rf"\b{home}\.", "", inspect.formatannotation(annotation))


def _kind(hint: Any) -> type | None:
    """Return the class of an annotation that a mapping can become, also for ``Config | None``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        of = [part for part in typing.get_args(hint) if part is not type(None)]
        hint = of[0] if len(of) == 1 else None
    return hint if isinstance(hint, type) and (is_dataclass(hint) or is_container(hint)) else None


def check(
    found: Callable[..., Any],
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    key: str,
    place: Where,
    *,
    partial: bool = False,
) -> None:
    """Refuse unknown arguments, and a call without required ones.

    Raises:
        ConfigError: with all of them, and the arguments that the callee takes.
    """
    if below(getattr(found, "__module__", None) or "", ["transformers.models.auto"]):
        return  # copies of one method, whose signature loses its first argument
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return  # written in C: only the call itself can tell
    try:
        (signature.bind_partial if partial else signature.bind)(*args, **kwargs)
    except TypeError as error:
        parameters = signature.parameters.values()
        wild = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        unknown = [] if wild else [word for word in kwargs if word not in named]
        if unknown and not partial and takes_any(found):
            return
        problems = [unknown_argument(word, found, name, key, place) for word in unknown]
        missing = [] if partial else list(_missing(signature, found, args, kwargs, unknown))
        if missing:
            problems.append(_incomplete(missing, found, name, key, place(key)))
        if not problems:
            takes = ", ".join(map(str, arguments(found)))
            help = f"it takes {takes}" if takes else "it takes none"
            problems = [
                Problem(
                    f"`{name}` cannot be called with these arguments: {error}", place(key), help
                )
            ]
        raise ConfigError(*problems) from None


def unknown_argument(word: str, found: Any, name: str, key: str, place: Where) -> Problem:
    """Return the problem of an argument that a callee does not take."""
    choices = [choice for choice in accepted(found) if choice not in SAFE]
    listed = ", ".join(f"`{choice}`" for choice in choices[:12])
    more = ", …" if len(choices) > 12 else ""
    return Problem(
        f"`{name}` takes no argument `{word}`",
        place(f"{key}.{word}", of_key=True),
        did_you_mean(word, choices) or (f"it takes {listed}{more}" if choices else "it takes none"),
    )


def _missing(
    signature: inspect.Signature,
    found: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    unknown: Sequence[str],
) -> Iterator[Argument]:
    """Yield required arguments that are not given, except those that an unknown name resembles."""
    try:
        known = {word: value for word, value in kwargs.items() if word not in unknown}
        given = signature.bind_partial(*args, **known).arguments
    except TypeError:  # too many, or one twice
        return
    for argument in arguments(found):
        meant = any(did_you_mean(word, [argument.name]) for word in unknown)
        if argument.required and argument.name not in given and not meant:
            yield argument


def _incomplete(
    missing: Sequence[Argument], found: Any, name: str, key: str, place: Place | None
) -> Problem:
    count = "one more argument" if len(missing) == 1 else f"{len(missing)} more arguments"
    every = [f"`{name}` takes {_listed(arguments(found))}"]
    every += [f"`{a.wants}` takes {_listed(a.fields)}" for a in missing if a.fields]
    words = " ".join(word for a in missing for word in _words(a, f"{key}.{a.name}"))
    help = f"give {'it' if len(missing) == 1 else 'them'}: `{words}`"
    if key == "model" and ":" in name:
        help += f"; `gradscope init -m {name}` writes a config that lists all that it takes"
    return Problem(f"`{name}` needs {count}: {_listed(missing)}", place, help, tuple(every))


def _listed(found: Sequence[Argument]) -> str:
    return ", ".join(f"`{argument}`" for argument in found)


def _words(argument: Argument, key: str) -> list[str]:
    """Return the overrides to write: a dataclass's fields without a default, else `{}`."""
    if not argument.fields:
        return [f"{key}=…"]
    needed = [a for a in argument.fields if a.required]
    return [word for a in needed for word in _words(a, f"{key}.{a.name}")] or [f"{key}={{}}"]


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
        --allow."""
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
