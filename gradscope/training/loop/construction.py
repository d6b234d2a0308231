"""Finds the line of the script that created each module and each parameter."""

from __future__ import annotations

import ast
import functools
import itertools
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType
from typing import NamedTuple

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from gradscope.capture.names import modules_by_name
from gradscope.explain.shared.frames import (
    assignment,
    innermost,
    is_at,
    last_name,
    outwards,
    tree_of,
)
from gradscope.training.loop.script_lines import ScriptLine, script_line


class Made(NamedTuple):
    """A line, and a number that grows with each registration. Plain values, so the garbage
    collector skips it.
    """

    file: str
    number_of_line: int
    number: int

    @property
    def line(self) -> str:
        """The line as ``net.py:12``."""
        return str(ScriptLine(self.file, self.number_of_line))


def observe_registrations(
    module_set: Callable[[nn.Module, str, nn.Module], None],
    parameter_set: Callable[[nn.Module, str, nn.Parameter], None],
    patches: ExitStack,
) -> None:
    """Call the functions before each registration until the stack is closed, by PyTorch's own
    hooks."""

    def module(owner: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is not None:
            module_set(owner, name, child)

    def parameter(owner: nn.Module, name: str, of: nn.Parameter | None) -> None:
        if of is not None:
            parameter_set(owner, name, of)

    patches.callback(register_module_module_registration_hook(module).remove)
    patches.callback(register_module_parameter_registration_hook(parameter).remove)


@dataclass(slots=True)
class _Lines:
    """Lines of one module: the line that called its class, the first that made it a child, and
    those that set its parameters.
    """

    of: weakref.KeyedRef[int, nn.Module]
    called: Made | None = None
    child: Made | None = None
    own: dict[str, Made] = field(default_factory=dict)

    @property
    def made(self) -> Made | None:
        """The line that made the module."""
        module = self.of()
        if self.called is not None or self.child is None or module is None:
            return self.called or self.child
        return _assigned(self.child, type(module).__name__)


class Construction:
    """Stores lines by module, without keeping modules alive.

    It makes no weak reference to a parameter, because ``torch.utils.swap_tensors`` refuses tensors
    with one. Deep copies and unpickled modules do not register, so their lines are unknown.
    """

    def __init__(self) -> None:
        self._lines: dict[int, _Lines] = {}
        self._count = itertools.count()

    def now(self) -> int:
        """Return a number that is higher than those of all earlier registrations."""
        return next(self._count)

    def module_set(self, owner: nn.Module, module: nn.Module) -> None:
        """Note a new child of a module; a module keeps the line of its first registration."""
        self._lines_of(owner)
        lines = self._lines_of(module)
        if lines.child is None:
            lines.child = self._made(sys._getframe(1))

    def parameter_set(self, owner: nn.Module, name: str) -> None:
        """Note a new parameter of a module under this name."""
        made = self._made(sys._getframe(1))
        if made is not None:
            self._lines_of(owner).own[name] = made

    def _made(self, frame: FrameType | None) -> Made | None:
        line = None if frame is None else script_line(frame)
        return None if line is None else Made(line.file, line.line, next(self._count))

    def _lines_of(self, module: nn.Module) -> _Lines:
        known = self._known(module)
        if known is not None:
            return known
        called = self._made(_caller(module, sys._getframe(1)))
        reference = weakref.KeyedRef(module, self._forget, id(module))
        known = self._lines[id(module)] = _Lines(reference, called)
        return known

    def _forget(self, gone: weakref.KeyedRef[int, nn.Module]) -> None:
        mine = self._lines.get(gone.key)
        if mine is not None and mine.of is gone:
            del self._lines[gone.key]

    def modules(self) -> list[nn.Module]:
        """Return the live modules that registered a part, or were registered as one."""
        found = [one.of() for one in self._lines.values()]
        return [module for module in found if module is not None]

    def made(self, module: nn.Module) -> Made | None:
        """Return the place that made a module."""
        known = self._known(module)
        return None if known is None else known.made

    def line_of(self, module: nn.Module) -> str | None:
        """Return the line that made a module, as ``net.py:12``."""
        made = self.made(module)
        return None if made is None else made.line

    def _known(self, module: nn.Module | None) -> _Lines | None:
        known = None if module is None else self._lines.get(id(module))
        return known if known is not None and known.of() is module else None

    def places(self, model: nn.Module) -> Callable[[str], Made | None]:
        """Return a function from the name of a module or parameter to its place of creation."""
        modules = modules_by_name(model)

        def place(name: str) -> Made | None:
            if name in modules:
                known = self._known(modules[name])
                return None if known is None else known.made
            owner, _, last = name.rpartition(".")
            known = self._known(modules.get(owner))
            return None if known is None else known.own.get(last)

        return place


@functools.lru_cache(maxsize=256)
def _assigned(child: Made, kind: str) -> Made:
    """Return the line that assigns a call of a class to a variable, if a line that makes a module a
    child has a single such variable: ``drop = nn.Dropout()``, ``nn.Sequential(layer, drop)``. For
    ``nn.Sequential(*layers)``, return the only line of its function that calls the class. Else
    return the line itself."""
    tree, line = tree_of(child.file), child.number_of_line
    if tree is None:
        return child
    found, scope = set(), innermost(tree, line)
    there = [node for node in ast.walk(scope) if isinstance(node, ast.expr) and is_at(node, line)]
    for node in there:
        if isinstance(node, ast.Name):
            made = assignment(node.id, scope, line)
            if made is not None and isinstance(made.value, ast.Call):
                found |= {made.lineno} if last_name(made.value.func) == kind else set()
    given = scope.args if isinstance(scope, ast.FunctionDef) else None
    handed = {one.arg for one in ast.walk(given) if isinstance(one, ast.arg)} if given else set()
    starred = [node.value for node in there if isinstance(node, ast.Starred)]
    names = {n.id for one in starred for n in ast.walk(one) if isinstance(n, ast.Name)}
    if not found and starred and not names & handed:  # arguments are made elsewhere
        calls = (node for node in ast.walk(scope) if isinstance(node, ast.Call))
        found = {call.lineno for call in calls if last_name(call.func) == kind}
    return child._replace(number_of_line=found.pop()) if len(found) == 1 else child


def _caller(module: nn.Module, frame: FrameType | None) -> FrameType | None:
    """Return the frame that called the class of a module under construction; else None.

    The ``__init__`` is recognised by its qualified name, because before Python 3.13 reading a
    frame's variables keeps them alive.
    """
    own = _constructors(type(module).__mro__)
    inside = False
    for around in outwards(frame):
        if around.f_code.co_qualname in own:
            inside = True
        elif inside:
            return around
    return None


@functools.lru_cache(maxsize=256)
def _constructors(kinds: tuple[type, ...]) -> frozenset[str]:
    """Return the qualified names of the ``__init__`` of a class and of its ancestors."""
    return frozenset(f"{one.__qualname__}.__init__" for one in kinds)
