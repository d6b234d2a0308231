"""Which arguments a callee takes, and which of those given to it came to nothing."""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from gradscope.errors import did_you_mean

#: Where transformers reads what any config may hold, beside the folder of the model itself.
_READERS = (
    "configuration_utils.py",
    "modeling_utils.py",
    "modeling_rope_utils.py",
    "generation/configuration_utils.py",
    "generation/utils.py",
    "loss/*.py",
)


def accepted(found: Any) -> list[str]:
    """The argument names of a callee, and of the class that a builder says it returns."""
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
    """Whether a wrapper around the callee takes more names than the signature that it shows.

    What becomes of them, only the call itself can tell.
    """
    inner: Any = getattr(found, "__init__", None) if isinstance(found, type) else found
    if not hasattr(inner, "__wrapped__"):
        return False
    parameters = inspect.signature(inner, follow_wrapped=False).parameters.values()
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def ignored(found: Any, made: Any, kwargs: Mapping[str, Any]) -> Iterator[str]:
    """What was given and came to nothing, in sentences."""
    name = getattr(found, "__name__", "")
    names = [word for word in kwargs if word not in accepted(found)]
    if not names:
        return
    message = f"{name} takes any name and drops"
    if _is_config(made):
        message = f"{name} keeps, and nothing reads,"
        names = [word for word in names if word in vars(made) and not hasattr(type(made), word)]
        read = _words_read(type(made)) if names else frozenset()
        names = [word for word in names if word not in read]
    elif not _drops_keywords(found):
        return
    for word in names:
        close = did_you_mean(word, accepted(found))
        yield f"{message} `{word}`" + (f": {close}" if close else "")


def _is_config(made: Any) -> bool:
    # Where transformers was not imported, nothing can be an instance of its classes.
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(made, transformers.PretrainedConfig)


def _words_read(config: type) -> frozenset[str]:
    """Every word in the code that reads such a config: its own folder's and the shared parts'."""
    transformers, own = sys.modules["transformers"], sys.modules.get(config.__module__)
    root = Path(str(transformers.__file__)).parent
    files = [path for pattern in _READERS for path in root.glob(pattern)]
    if own is not None and own.__file__ is not None:
        files += Path(own.__file__).parent.glob("*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return frozenset(re.findall(r"\w+", text))


def _drops_keywords(found: Any) -> bool:
    """Whether a callee's ``**kwargs`` are in its signature only: its code never looks at them."""
    inner: Any = getattr(found, "__init__", None) if isinstance(found, type) else found
    code: CodeType | None = getattr(inner, "__code__", None)
    if code is None or hasattr(inner, "__wrapped__") or not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    at = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    word = code.co_varnames[at]
    looked = any(one.argval in (word, "locals") for one in dis.get_instructions(code))
    return word not in code.co_cellvars and not looked
