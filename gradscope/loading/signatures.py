"""Compares the arguments that a callee takes with those that a config gives."""

from __future__ import annotations

import dis
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from gradscope.errors import ConfigError, Place, Problem, Where, did_you_mean
from gradscope.loading.policy import SAFE, below, is_container

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
    looked = any(one.argval in (word, "locals") for one in dis.get_instructions(code))
    return word not in code.co_cellvars and not looked


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
    # Their default in the signature is a mark without a name.
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
            problems = [Problem(f"`{name}` cannot be called so: {error}", place(key), help)]
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
