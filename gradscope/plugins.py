"""Folders as registries: a file's name is the name that the user types.

``names`` lists a package's files without importing them; ``load`` imports one. A subfolder is not a
choice; it holds shared code. A choice without a separate file is an entry of ``FORMATS`` in the
folder's ``__init__.py``, or in a single file.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from gradscope.errors import OptionError, refuse_unknown


@dataclass(frozen=True, slots=True)
class Format:
    """An entry of a registry's ``FORMATS``, with the attributes of a format's file.

    ``page`` makes a notebook's display; ``render_check`` renders a check of several models.
    """

    suffix: str
    render: Callable[..., Any]
    render_check: Any = None
    page: Any = None
    binary: bool = False


def _entries(package: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(importlib.import_module(package), "FORMATS", {})
    return found


def names(package: str) -> list[str]:
    """Return the choices of a registry, sorted: entries, and files with names such as
    ``grad-cam``."""
    return sorted([*_files(package), *_entries(package)])


@functools.cache
def _files(package: str) -> tuple[str, ...]:
    # Read once: the rules are a hundred files, and each is loaded by its name.
    path = getattr(importlib.import_module(package), "__path__", ())
    files = [info.name for info in pkgutil.iter_modules(path) if not info.ispkg]
    return tuple(name.replace("_", "-") for name in files if not name.startswith("_"))


def folders(package: str) -> list[str]:
    """Return the folders of a package, sorted, such as a command with subcommands."""
    path = importlib.import_module(package).__path__
    found = [info.name for info in pkgutil.iter_modules(path) if info.ispkg]
    return sorted(name.replace("_", "-") for name in found if not name.startswith("_"))


def commands(package: str) -> list[str]:
    """Return the choices of a package whose folders are choices too."""
    return sorted([*names(package), *folders(package)])


def load(package: str, name: str) -> Any:
    """Return the module or the entry of a choice.

    Raises:
        OptionError: no choice has that name; the message suggests the closest.
    """
    choices = names(package)
    refuse_unknown(package.rpartition(".")[2].removesuffix("s"), name, choices)
    if name in _entries(package):
        return _entries(package)[name]
    return importlib.import_module(f"{package}.{name.replace('-', '_')}")


def by_suffix(package: str, file: Path, *, otherwise: str) -> str:
    """Return the format of the file's suffix; ``otherwise`` describes another way to choose it.

    Raises:
        OptionError: no format has the suffix.
    """
    suffixes = {load(package, name).suffix: name for name in names(package)}
    suffix = file.suffix.lower()
    if suffix in suffixes:
        return suffixes[suffix]
    choices = ", ".join(f"`{suffix}` ({name})" for suffix, name in sorted(suffixes.items()))
    raise OptionError(
        f"the suffix `{file.suffix}` of `{file}` names no format"
        if suffix
        else f"no suffix in `{file}` to tell the format",
        help=f"use one of {choices}, or {otherwise}",
    )


def docstring(package: str, name: str, function: str) -> str | None:
    """Return the docstring of a function in a choice's file, without importing the file."""
    spec = importlib.util.find_spec(f"{package}.{name.replace('-', '_')}")
    assert spec is not None
    assert spec.origin is not None
    # The spec's own loader may be pytest's, so it is not used. This one uses the bytecode of an
    # earlier run, if there is any.
    loader = SourceFileLoader(spec.name, spec.origin)
    module: Any = loader.get_code(spec.name)
    for one in module.co_consts:
        if isinstance(one, CodeType) and one.co_name == function:
            return inspect.getdoc(FunctionType(one, {}))
    return None
