"""Runs an action as soon as the script has imported a module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any


class ImportHook(MetaPathFinder):
    """Runs ``action`` once, after the module was fully imported, in any way.

    Usually, this finder comes before all others, and runs the action after the ``exec_module`` of
    the module's loader. A request for the spec has no effect, so any number of probes
    (``find_spec``, a lazy loader, a failed import) may come before the import. Another finder may
    be put before this one. So each import that reaches this finder also checks whether the module
    was imported in another way (``check``). If the module is still being imported, the action runs
    when Python marks its spec as complete. The check never runs from the garbage collector: the
    script may hold locks then, and an action that waits for one would wait forever.

    Args:
        name: the name of a top-level module.
        action: called in the thread that imported the module, or found it; its argument is True
            if it is late, so that the script may have used the module already.
    """

    def __init__(self, name: str, action: Callable[[bool], None]) -> None:
        self._name, self._action = name, action
        self._done = self._executing = False
        self._loaders: list[Any] = []
        self._specs: list[ModuleSpec] = []

    @property
    def done(self) -> bool:
        """True if the action was called already."""
        return self._done

    def install(self) -> None:
        """Call the action now if the module is imported, else once it is."""
        if not self.check():
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Remove the finder and all other changes."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for loader in self._loaders:
            vars(loader).pop("exec_module", None)
        for spec in self._specs:
            spec.__class__ = ModuleSpec
        self._loaders.clear()
        self._specs.clear()

    def check(self) -> bool:
        """Run the action if the module is fully imported; return True if it has run by now."""
        if not self._done and not self._executing:
            module = _imported(self._name)
            if module is not None and not self._wait_for(module):
                self._act(late=True)
        return self._done

    def _act(self, *, late: bool) -> None:
        self._done = True
        self.remove()
        self._action(late)

    def _wait_for(self, module: ModuleType) -> bool:
        """Return True if the module is being imported; Python reports its spec when it is
        complete.
        """
        spec = vars(module).get("__spec__")
        if getattr(spec, "_initializing", False):
            if type(spec) is ModuleSpec:
                spec.__class__ = _notifying(self._imported)
                self._specs.append(spec)
            return True
        # A caller may have started the module's code itself, and a submodule may still be
        # importing.
        return any(_is_being_imported(self._name, top) for top in sys._current_frames().values())

    def _imported(self, spec: ModuleSpec) -> None:
        """Note the end of the module's import, perhaps by an error."""
        if spec in self._specs:
            self._specs.remove(spec)
        spec.__class__ = ModuleSpec
        if not self._done and self._name in sys.modules:
            self._act(late=False)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the next finders, with a loader that runs the action afterwards."""
        if name != self._name:
            self.check()
            return None
        spec = self._next_spec(name, path, target)
        if spec is not None and not self._done:
            self._extend(spec.loader)
        return spec

    def _next_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        if self not in finders:  # a caller that kept it asks
            return None
        for finder in finders[finders.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _extend(self, loader: Loader | None) -> None:
        """Give this one loader an ``exec_module`` that calls the action when it is done.

        The loader stays what it is, so that code that only reads it sees no change.
        """
        if isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return  # it cannot be set here; `check` notices the import
        if not isinstance(vars(loader).get("exec_module"), _ExecModule):
            loader.exec_module = _ExecModule(loader.exec_module, self._execute)  # type: ignore
            self._loaders.append(loader)

    def _execute(self, module: ModuleType, exec_module: Callable[[ModuleType], None]) -> None:
        if module.__name__ != self._name or self._done:
            exec_module(module)  # a loader may serve several modules
            return
        self._executing = True
        try:
            exec_module(module)
        finally:
            self._executing = False
        self._act(late=False)


class _ExecModule:
    """The ``exec_module`` of one loader. All instances are equal, because loaders compare their
    attributes."""

    def __init__(
        self,
        original: Callable[[ModuleType], None],
        execute: Callable[[ModuleType, Callable[[ModuleType], None]], None],
    ) -> None:
        self._original, self._execute = original, execute

    def __call__(self, module: ModuleType) -> None:
        self._execute(module, self._original)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ExecModule)

    __hash__ = None  # type: ignore[assignment]


def _imported(name: str) -> ModuleType | None:
    """Return the module, unless it is lazy: reading an attribute of a lazy module loads it."""
    module = sys.modules.get(name)
    if module is None or type(module).__getattribute__ is not ModuleType.__getattribute__:
        return None
    return module


def _notifying(imported: Callable[[ModuleSpec], None]) -> type[ModuleSpec]:
    """Return a class for a spec that calls ``imported`` when Python has ended the import.

    The interpreter reads the same mark to recognise a half-imported module, in
    ``importlib._bootstrap._load_unlocked``.
    """

    class Spec(ModuleSpec):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_initializing" and not value:
                imported(self)

    return Spec


def _is_being_imported(name: str, frame: FrameType | None) -> bool:
    """Return True if the body of a module of the package runs on a thread's stack."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            running = str(frame.f_globals.get("__name__", ""))
            if running.partition(".")[0] == name:
                return True
        frame = frame.f_back
    return False
