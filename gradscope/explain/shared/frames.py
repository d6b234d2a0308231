"""Reads Python frames (the owner of their code, its text, the call site), and parses scripts."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from gradscope.records.run import Frame

PACKAGE = str(Path(__file__).parents[2])
_ABOVE = str(Path(PACKAGE).parent)
_SPEC = importlib.util.find_spec("torch")  # found, not imported: whoever waits for it asks, too
assert _SPEC is not None and _SPEC.origin is not None
_TORCH = str(Path(_SPEC.origin).parent)
#: The folders of installed code, those that lie in another first.
_LIBRARIES = tuple(
    sorted(
        {sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib")},
        key=len,
        reverse=True,
    )
)

#: gradscope's files whose functions stand in the place of PyTorch's, between these and the script.
_BETWEEN = frozenset(
    str(Path(PACKAGE, *folders, "patches.py"))
    for folders in (("capture", "transformer"), ("training", "loop"))
)
_STANDARD = sysconfig.get_path("stdlib") + os.sep

#: A frame as ``traceback`` formats it.
_FORMATTED = re.compile(r'\s*File "(.+)", line (\d+), in (\S*)')


def is_ours(file: str) -> bool:
    """Return True if a file is gradscope's own; the bundled demo counts as the user's."""
    return file.startswith(PACKAGE + os.sep) and f"{os.sep}demo{os.sep}" not in file


@functools.cache
def is_hidden(file: str) -> bool:
    """Return True if a file is PyTorch's or gradscope's own, or no file (``<string>``)."""
    return is_ours(file) or file.startswith((_TORCH + os.sep, "<"))


@functools.cache
def in_library(file: str) -> bool:
    """Return True if a file is installed (standard library or site-packages), not the user's."""
    return str(Path(file).absolute()).startswith(_LIBRARIES)


def shown(file: str) -> str:
    """Return a path for messages: relative below the working directory.

    An installed file has its path from the package on: `torchvision/models/vgg.py`. So has
    gradscope's demo.
    """
    if file.startswith(PACKAGE + os.sep):
        return file.removeprefix(_ABOVE + os.sep)
    for folder in _LIBRARIES:
        if file.startswith(folder):
            return file.removeprefix(folder)
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or the working directory is gone
        return file


@functools.cache
def is_standard(file: str) -> bool:
    """Return True if a file belongs to Python's standard library."""
    return next((f for f in _LIBRARIES if file.startswith(f)), None) == _STANDARD


def user_frames(trace: TracebackType | None) -> list[Frame]:
    """Return the lines outside of PyTorch, the standard library and gradscope, outermost first."""
    frames = []
    for frame, line in traceback.walk_tb(trace):
        file = frame.f_code.co_filename
        if not is_hidden(file) and not is_standard(file):
            name = frame.f_code.co_qualname
            frames.append(Frame(shown(file), line, name, source(file, line)))
    return frames


def raised_by_user(trace: TracebackType | None) -> bool:
    """Return True if the user's own line raised, not a function that it called."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)][-1:]
    return any(not is_hidden(file) and not in_library(file) for file in files)


def raised_at(trace: TracebackType | None) -> str | None:
    """Return the innermost line of the user's code in a traceback, as ``net.py:31``; else of a
    library."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    lines = [(file, line) for file, line in lines if not is_hidden(file)]
    own = [(file, line) for file, line in lines if not in_library(file)]
    for file, line in (own or lines)[-1:]:
        return f"{shown(file)}:{line}"
    return None


def source(file: str, line: int) -> str | None:
    """Return the text of a line, if the file can be read by its path or its ``shown`` path."""
    return linecache.getline(_full_path(file), line).strip() or None


def _full_path(file: str) -> str:
    """Return the path of a file from its path or its ``shown`` path; ``file`` itself if there is no
    such file.

    A relative path is no key of a cache: it names another file in another working directory.
    """
    if Path(file).is_absolute():
        return file
    try:
        places = [Path(folder, file) for folder in (str(Path.cwd()), _ABOVE, *_LIBRARIES)]
        return str(next((place for place in places if place.exists()), file))
    except OSError:  # the working directory is gone, or the name is too long for one of a file
        return file


def outwards(frame: FrameType | None, last: CodeType | None = None) -> Iterator[FrameType]:
    """Yield ``frame`` and the frames around it, up to the one that runs ``last``; all if that is
    None."""
    while frame is not None and frame.f_code is not last:
        yield frame
        frame = frame.f_back


def nearest(frame: FrameType | None, last: CodeType | None = None) -> FrameType | None:
    """Return the innermost frame of the user's code around ``frame``; else of a library."""
    library = None
    for around in outwards(frame, last):
        file = around.f_code.co_filename
        if is_hidden(file):
            continue
        if not in_library(file):
            return around
        library = library or around
    return library


def locate(stack: Sequence[str]) -> str | None:
    """Return the innermost line of the user's code in a stack of formatted frames, as
    ``net.py:31``.

    Without one below the model's call, return a library's line.
    """
    line = user_line(stack)
    return f"{shown(line[0])}:{line[1]}" if line else None


def user_line(stack: Sequence[str]) -> tuple[str, int, str | None] | None:
    """Return the user's file and line, with the PyTorch function that the line calls.

    The function is None if it has no frame, because it is not written in Python.
    """
    library = function = None
    for formatted in reversed(stack):
        match = _FORMATTED.match(formatted)
        if match is None:
            continue
        file = match[1]
        if file in _BETWEEN:
            continue
        if is_ours(file):
            break  # from here on frames are gradscope's callers
        if is_hidden(file):
            function = match[3]
            continue
        found = file, int(match[2]), function
        if not in_library(file):
            return found
        library, function = library or found, None
    return library


@dataclass(frozen=True, slots=True)
class CallSite:
    """The place of an operation: the innermost module call, and the user's file and line."""

    module: str | None = None
    call: int | None = None
    file: str | None = None
    line: int | None = None

    @property
    def location(self) -> str | None:
        """``net.py:19``, if the line is known."""
        return f"{shown(self.file)}:{self.line}" if self.file and self.line else None

    @property
    def code(self) -> str:
        """The text of the line."""
        return (source(self.file, self.line) or "") if self.file and self.line else ""

    @property
    def at(self) -> str:
        """`` at net.py:19``; nothing without a line."""
        return f" at {self.location}" if self.location else ""

    @property
    def at_code(self) -> str:
        """The place with the text of the line: `` at net.py:19 (`x = x * 0`)``."""
        return self.at + (f" (`{self.code}`)" if self.code else "")

    @property
    def within(self) -> str:
        """`` in `block` ``: the module that it belongs to."""
        return f" in `{self.module}`" if self.module else ""


def tree_of(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it cannot be read."""
    return _parsed(_full_path(file))


@functools.cache
def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def source_file(kind: type) -> str | None:
    """Return the file of a class; None without one, for example for C code or at a prompt."""
    try:
        return inspect.getsourcefile(kind)
    except (TypeError, OSError):
        return None


def classes_of_script(kind: type) -> list[tuple[str, ast.ClassDef]]:
    """Return the text of a class and its file, for classes of the script, not of libraries.

    A file may have several classes of one name.
    """
    file = source_file(kind)
    tree = None if file is None or in_library(file) or is_ours(file) else tree_of(file)
    if tree is None or file is None:
        return []
    return [
        (file, node)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    ]


def is_at(node: ast.expr | ast.stmt, line: int) -> bool:
    """Return True if a node covers a line."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def innermost(tree: ast.Module, line: int) -> ast.AST:
    """Return the innermost function around a line."""
    found: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_at(node, line):
            found = node  # walked from the outside in
    return found


def assignment(name: str, scope: ast.AST, line: int) -> ast.Assign | None:
    """Return the last assignment of a variable before a line."""
    last: ast.Assign | None = None
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and node.lineno < line and len(node.targets) == 1:
            (target,) = node.targets
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            mine = any(isinstance(one, ast.Name) and one.id == name for one in names)
            if mine and (last is None or last.lineno < node.lineno):
                last = node
    return last


def assignments(tree: ast.AST, target: str) -> list[ast.Assign]:
    """Return all assignments of a variable or an attribute, as ``self.scale``."""
    return [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.Assign) and target in map(ast.unparse, one.targets)
    ]


def products(tree: ast.AST, line: int) -> list[ast.BinOp]:
    """Return the products on a line."""
    return [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult) and is_at(one, line)
    ]


def factors(tree: ast.AST, line: int) -> list[str]:
    """Return the variables and attributes that are factors of a product on a line."""
    return [
        ast.unparse(side)
        for one in products(tree, line)
        for side in (one.left, one.right)
        if isinstance(side, ast.Name | ast.Attribute)
    ]


def last_name(expression: ast.expr) -> str:
    """Return the last part of a name: ``dropout`` for ``F.dropout``; "" for another expression."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
