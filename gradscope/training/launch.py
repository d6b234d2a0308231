"""Runs the script as ``python SCRIPT`` would, without importing torch before the script does.

The setup and the end of a script follow CPython's ``Modules/main.c`` and ``Lib/runpy.py``.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from gradscope.errors import OptionError

Excepthook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


@dataclass(frozen=True, slots=True)
class Script:
    """The script: a file, or a module as for ``python -m``, and its own arguments."""

    name: str
    arguments: Sequence[str] = ()
    is_module: bool = False

    @property
    def words(self) -> str:
        """The script in the form of Python's command line, without the arguments."""
        return f"-m {self.name}" if self.is_module else self.name

    def check(self) -> None:
        """Check the script before anything runs.

        Raises:
            OptionError: the file cannot be read. (For a module, Python reports it.)
        """
        path = Path(self.name)
        if not self.is_module and path.suffix == ".ipynb":
            raise OptionError(
                f"`{path}` is a notebook; `gradscope run` runs scripts",
                help="in the notebook, put `with gradscope.watch(model):` around the loop; or make "
                f"it a script: `jupyter nbconvert --to script {path}`",
            )
        if self.is_module or (path.is_file() and os.access(path, os.R_OK)):
            return
        if path.is_dir():
            raise OptionError(f"`{path}` is a folder", help="name the script in it")
        problem = f"cannot read `{path}`" if path.exists() else f"there is no file `{path}`"
        raise OptionError(problem, help="a module is run by its name: `gradscope run -m pkg.train`")

    def run(self) -> None:
        """Run it to its end.

        Raises:
            BaseException: the exception that ended it; its traceback starts in the script.
        """
        main = _main_module()
        sys.argv = [self.name, *self.arguments]
        try:
            code = self._module(main) if self.is_module else self._file(main)
        except BaseException:
            _show_from(None)
            raise
        try:
            exec(code, main.__dict__)
        except BaseException:
            _show_from(code)
            raise

    def _file(self, main: ModuleType) -> CodeType:
        path = str(Path(self.name).absolute())
        if not sys.flags.safe_path:
            sys.path[0] = str(Path(self.name).resolve().parent)
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        main.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
        with io.open_code(path) as file:
            return compile(file.read(), path, "exec", dont_inherit=True)

    def _module(self, main: ModuleType) -> CodeType:
        if not sys.flags.safe_path:
            sys.path[0] = str(Path.cwd())
        sys.argv[0] = "-m"  # what it is during the search for the module
        details: Any = runpy._get_module_details  # type: ignore[attr-defined]
        try:
            _, spec, code = details(self.name, runpy._Error)  # type: ignore[attr-defined]
        except runpy._Error as error:  # type: ignore[attr-defined]
            sys.exit(f"{sys.executable}: {error}")
        sys.argv[0] = spec.origin
        main.__dict__.update(
            __file__=spec.origin,
            __loader__=spec.loader,
            __cached__=spec.cached,
            __package__=spec.parent,
            __spec__=spec,
        )
        assert isinstance(code, CodeType)
        return code


def _main_module() -> ModuleType:
    """Return a new ``__main__``, as the interpreter makes one."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    return main


def _show_from(code: CodeType | None) -> None:
    """Let the traceback that ends the process begin in the script; without code it has no
    frames.
    """
    shown = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> Any:
        while trace is not None and trace.tb_frame.f_code is not code:
            trace = trace.tb_next
        return shown(kind, error.with_traceback(trace), trace)

    sys.excepthook = excepthook
