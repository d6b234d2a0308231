"""Resolves a name to its object, under the import policy."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from gradscope.errors import Place, Problem, TargetError, closest_file, did_you_mean
from gradscope.loading.imports import OwnCode
from gradscope.loading.policy import Policy, is_module, refusal
from gradscope.output_files import expanded

_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<attribute>.*))?")
#: An object, and the module that has it.
Found = tuple[Any, ModuleType]
_LIBRARY = re.compile(r"(torchvision|timm|hf|demo)(:.*)?")


class Names:
    """The names that one config may use.

    Args:
        directory: the config's folder.
        allow: the patterns of ``--allow``.
        place: returns the place of a key.
        typed: returns True if a key's value is on the command line, not in a file.
    """

    def __init__(
        self,
        directory: Path,
        allow: Iterable[str],
        place: Callable[[str], Place | None],
        typed: Callable[[str], bool],
    ) -> None:
        self.directory = directory
        self.place = place
        self.typed = typed
        self.own = OwnCode([directory, Path.cwd()])
        self.policy = Policy(self.own, allow)
        self._found: dict[str, Any] = {}
        self._holders: dict[str, ModuleType] = {}  # the modules that hold instances

    def locate(self, name: str, key: str) -> Any:
        """Return the object of a dotted name, ``./net.py:Net`` or ``pkg.mod:Net``.

        Raises:
            TargetError: the name is refused, or does not exist; the message suggests the closest.
            ModelError: the user's file raised.
        """
        if name not in self._found:
            place = self.place(key)
            file = _FILE.fullmatch(name)
            try:
                if file:
                    found, holder = self._in_file(file["file"], file["attribute"], key)
                else:
                    found, holder = self._dotted(name, place)
                written = name if file else name.replace(":", ".")
                self.policy.check_resolved(found, written, holder, place)
                if is_module(found):
                    self._holders[name] = holder
            except TargetError as error:
                # If the file's own line is known it stays; else the config's line.
                raise TargetError(
                    *(Problem(p.message, p.place or place, p.help, p.notes) for p in error.problems)
                ) from error.__cause__
            self._found[name] = found
        return self._found[name]

    def instance(self, name: str) -> tuple[nn.Module, str]:
        """Return a module that ``locate`` found as an instance, and the name of its file.

        The file runs again for the next config, so changes of the module do not carry over.
        """
        holder = self._holders[name]
        self.own.forget(holder)
        return self._found[name], Path(getattr(holder, "__file__", None) or holder.__name__).name

    def faults(self, config: Mapping[str, Any]) -> list[Problem]:
        """Return the errors of all names in a config that are refused or do not exist, without
        building anything."""
        problems: list[Problem] = []
        for key, value in config.items():
            for name, where in _names(value, key):
                if _LIBRARY.fullmatch(name) or ("." not in name and ":" not in name):
                    continue
                try:
                    self.locate(name, where)
                except TargetError as error:
                    problems += [p for p in error.problems if p not in problems]
        return problems

    def _in_file(self, text: str, attribute: str | None, key: str) -> Found:
        place = self.place(key)
        path = (self.directory / expanded(text)).resolve()
        if not path.is_file():
            raise TargetError(f"there is no file `{text}`", help=closest_file(path, [".py"]))
        attribute = attribute or ""
        written = f"{path.stem}.{attribute}"
        self.policy.check_dunder(written, place)
        if not self.own.offers(path):
            named = self.typed(key)
            if not named and not self.policy.allows_file(path):
                where = (
                    "outside the config's folder and the working directory, or in an environment"
                )
                raise refusal(f"`{text}` lies {where}, and", os.path.relpath(path))
            self.own.grant(path, named=named)
        try:
            module = self.own.import_file(path)
        except (Exception, SystemExit, GeneratorExit) as error:
            raise self.own.failure(error, f"importing `{text}` failed", place) from error
        if not attribute:
            raise TargetError(f"`{text}` names no class", help=_offer(module, text))
        return self._walk(module, attribute.split("."), text)

    def _dotted(self, name: str, place: Place | None) -> Found:
        module_name, colon, attribute = name.partition(":")
        parts = [*module_name.split("."), *(attribute.split(".") if colon else [])]
        if not all(part.isidentifier() for part in parts):
            raise TargetError(f"`{name}` is not a dotted name", help="as in `torch.nn.Linear`")
        written = ".".join(parts)
        try:
            self.policy.check_written(written, place)
        except TargetError as error:
            near = did_you_mean(parts[0], self.own.names())
            if near and len(parts) > 1:
                raise TargetError(error.problems[0].message, help=near, notes=[]) from None
            raise
        root = None if self.policy.installed(written) else self.own.home(parts[0])
        module = self._import(parts[0], root, place)
        return self._walk(module, parts[1:], parts[0], root)

    def _walk(
        self, module: ModuleType, parts: Sequence[str], where: str, root: Path | None = None
    ) -> Found:
        """Follow attributes, and submodules that are not imported yet, from a module."""
        found: Any = module
        for part in parts:
            if not isinstance(found, (ModuleType, type)):
                raise TargetError(
                    f"`{where}` is neither a module nor a class: nothing in it may be named",
                    help="name a class or a function at the top of a module",
                )
            inner = self._member(found, part, root)
            if inner is None:
                raise TargetError(f"`{where}` has no `{part}`", help=_offer(found, where, part))
            module = found if isinstance(found, ModuleType) else module
            found, where = inner[0], f"{where}{':' if where.endswith('.py') else '.'}{part}"
        return found, module

    def _member(self, found: Any, part: str, root: Path | None) -> tuple[Any] | None:
        try:
            return (getattr(found, part),)
        except AttributeError:
            pass
        except (ImportError, RuntimeError) as error:
            raise self.own.failure(error, f"importing `{part}` failed", None) from error
        if not hasattr(found, "__path__"):
            return None
        name = f"{found.__name__}.{part}"
        try:
            return (self._import(name, root, None),)
        except TargetError as error:
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError) and missing.name == name:
                return None
            raise

    def _import(self, name: str, root: Path | None, place: Place | None) -> ModuleType:
        try:
            if root is not None:
                return self.own.import_module(name, root)
            return importlib.import_module(name)
        except TargetError:
            raise
        except (Exception, SystemExit, GeneratorExit) as error:
            raise self.own.failure(error, f"importing `{name}` failed", place) from error


def _offer(found: Any, where: str, part: str = "") -> str | None:
    """Return the closest public name to ``part``, else the names that the module defines."""
    public = [name for name in dir(found) if not name.startswith("_")]
    joint = ":" if where.endswith(".py") else "."
    close = did_you_mean(part, public)
    if close or not isinstance(found, ModuleType):
        return close
    own = [n for n in public if getattr(vars(found).get(n), "__module__", "") == found.__name__]
    listed = ", ".join(f"`{where}{joint}{n}`" for n in own[:6]) + (", …" if len(own) > 6 else "")
    return f"it has {listed}" if own else None


def _names(value: Any, key: str) -> Iterable[tuple[str, str]]:
    """Yield the target names in a config's value, with the key of each."""
    if key == "model" and isinstance(value, str):
        yield value, key
    elif isinstance(value, Mapping):
        name = value.get("_target_")
        if isinstance(name, str):
            yield name, f"{key}._target_"
        for word, item in value.items():
            yield from _names(item, f"{key}.{word}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _names(item, f"{key}.{index}")
