"""Parses a Python file, without running it: its definitions, and whether it trains."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

_LARGEST: Final = 1_000_000
#: Functions by which a file can define names that its text does not show.
_HIDDEN: Final = {"globals", "locals", "vars", "exec", "setattr", "__getattr__"}
#: PyTorch's own classes to inherit from that are no modules.
_NO_MODULES: Final = ("torch.utils.", "torch.autograd.", "torch.optim.", "torch.distributions.")


@dataclass(frozen=True)
class PythonFile:
    """A parsed file."""

    tree: ast.Module

    @cached_property
    def models(self) -> list[str]:
        """Return the names of the classes that may be modules: their base is a module, or
        unknown."""
        found: list[str] = []
        for node in self._classes:
            if any(self._may_be_module(base, found) for base in node.bases):
                found.append(node.name)
        return found

    def defines(self, name: str) -> bool:
        """Return True if the file may define a name; also if its text leaves that open."""
        bound = set(_bound(self.tree))
        return name in bound or "*" in bound or not _HIDDEN.isdisjoint(_words(self.tree) | bound)

    def attributes(self, name: str) -> list[str]:
        """Return the attributes that a class sets to the result of a call, such as its layers."""
        found = [node for node in self._classes if node.name == name and name in self.models]
        names = (
            target.attr
            for node in ast.walk(ast.Module(list(found), []))
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in node.targets
            if isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        )
        return list(dict.fromkeys(names))

    @property
    def _classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]

    @cached_property
    def _imports(self) -> dict[str, str]:
        """Return the full names of the names that the file imports."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {a.asname or a.name.split(".")[0]: a.name for a in node.names if a.asname}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        return found

    def _may_be_module(self, base: ast.expr, models: list[str]) -> bool:
        """Return True if a class of this base may be a module; ``models`` are the file's others."""
        if not isinstance(base, ast.Name | ast.Attribute):
            return True
        first, _, rest = ast.unparse(base).partition(".")
        if first in {node.name for node in self._classes} and not rest:
            return first in models
        full = f"{self._imports.get(first, first)}.{rest}"
        if full.split(".")[0] in sys.stdlib_module_names or full.startswith(_NO_MODULES):
            return False
        return first in self._imports or bool(rest) or not hasattr(builtins, first)


def parsed(path: Path) -> PythonFile | None:
    """Parse a file; None if it cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return PythonFile(ast.parse(path.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def classes_of(path: Path) -> list[str]:
    """Return the classes of a file that may be models; empty if it cannot be read."""
    file = parsed(path)
    return [] if file is None else file.models


def attributes_of(path: Path, name: str) -> list[str]:
    """Return the attributes that a class of the file sets to the result of a call."""
    file = parsed(path)
    return [] if file is None else file.attributes(name)


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yield every name that the file binds, at any level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.split(".")[0]
        elif isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(name := getattr(node, "name", None), str):
            yield name


def _words(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


#: Methods that make a step of a training, or run all of it.
_METHODS = {"backward", "manual_backward", "fit", "fit_one_cycle"}
#: Endings of the class names of others' training loops: `Trainer`, `SFTTrainer`, `L.Trainer`.
_TRAINER = "Trainer"
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
#: Statements that only define names.
_QUIET = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Pass, *_Definition.__args__)


def trains(file: PythonFile) -> bool:
    """Return True if running the file calls ``backward`` or a trainer.

    The code of a function or a class counts if code that runs uses its name.
    """
    return any(map(_is_training, _running(file.tree)))


def does_something(file: PythonFile) -> bool:
    """Return True if running the file does more than define names."""
    return any(not isinstance(one, _QUIET) and not _is_text(one) for one in file.tree.body)


def _running(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the code that runs when the file runs, as far as names show."""
    defined: dict[str, list[_Definition]] = {}
    left: list[ast.AST] = []
    for statement in tree.body:
        if isinstance(statement, _Definition):
            defined.setdefault(statement.name, []).append(statement)
            # A decorator may be what runs it: `@app.command()`.
            left += [statement] if statement.decorator_list else []
        else:
            left.append(statement)
    while left:
        for node in ast.walk(left.pop()):
            yield node
            if isinstance(node, ast.Name):
                left += defined.pop(node.id, [])


def _is_training(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        return True
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return bool(name.endswith(_TRAINER))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


#: ``@register_model()``, perhaps with its own name, above a function.
_REGISTERED: Final = re.compile(
    r"^@register_model(?:\((?:name=\"(?P<given>\w+)\")?\))?\n(?:(?!def ).*\n)*?def (?P<made>\w+)\(",
    re.MULTILINE,
)


def names_of(source: str) -> list[str]:
    """Return the models of a source of specs; empty if it is not installed, or has no list."""
    if source not in ("torchvision", "timm"):
        return []
    spec = importlib.util.find_spec(source)
    if spec is None or spec.origin is None:
        return []
    names: set[str] = set()
    for path in (Path(spec.origin).parent / "models").rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        names.update(match["given"] or match["made"] for match in _REGISTERED.finditer(text))
    return sorted(names)
