"""Makes a copy of the working folder for an arm, and refuses writes outside of it.

The copy is deleted afterwards.
If writing were refused, most scripts would fail at their first checkpoint. If it were allowed, the
arm with learning rate × 100 could overwrite the user's best checkpoint. Small files are copied and
large ones are linked, so data sets need no space. It guards against accidents and is not a sandbox:
it sees ``open`` of Python, and ``torch.save``.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The largest file that is copied, and the most bytes in all; other files are linked.
LARGEST, MOST_BYTES = 1 << 20, 64 << 20
#: Number of entries to copy; beyond them a folder is linked as one.
MOST_ENTRIES = 2000
#: Folders that a training does not write to, and that hold very many files.
_LINKED = {"__pycache__", "node_modules", "venv", "env", "site-packages", "gradscope-runs"}


@dataclass(slots=True)
class Scratch:
    """The content of a folder's scratch copy.

    Attributes:
        source: the folder.
        copied, linked: relative paths; a linked one may be a folder.
        folders: the folders that are created in the copy.
        size: the bytes of the copied files.
    """

    source: Path
    copied: list[Path] = field(default_factory=list)
    linked: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    size: int = 0

    @classmethod
    def of(cls, source: Path) -> Scratch:
        """Decide for each file whether to copy or to link it; files of upper levels are copied
        first."""
        found = cls(source)
        waiting = deque([Path()])
        entries = 0
        while waiting:
            folder = waiting.popleft()
            try:
                inside = sorted(os.scandir(source / folder), key=lambda entry: entry.name)
            except OSError:
                continue
            if folder != Path() and entries + len(inside) > MOST_ENTRIES:
                found.linked.append(folder)
                continue
            entries += len(inside)
            if folder != Path():
                found.folders.append(folder)
            for entry in inside:
                path = folder / entry.name
                if entry.is_dir(follow_symlinks=False) and not _is_linked(entry.name):
                    waiting.append(path)
                elif entry.is_file(follow_symlinks=False) and found._fits(entry):
                    found.copied.append(path)
                else:
                    found.linked.append(path)
        return found

    def _fits(self, entry: os.DirEntry[str]) -> bool:
        size = entry.stat().st_size
        if size > LARGEST or self.size + size > MOST_BYTES:
            return False
        self.size += size
        return True

    def make(self, root: Path) -> Path:
        """Make the copy below ``root``; a path such as ``../data`` leads to the same place as
        before.

        Returns:
            The folder in which the script runs.
        """
        place = root
        for parent, name in _steps(self.source):
            place.mkdir(exist_ok=True)
            for sibling in _names(parent):
                if sibling != name:
                    (place / sibling).symlink_to(parent / sibling)
            place = place / name
        place.mkdir(exist_ok=True)
        for folder in self.folders:
            (place / folder).mkdir()
        for path in self.copied:
            shutil.copy2(self.source / path, place / path)
        for path in self.linked:
            (place / path).symlink_to(self.source / path)
        return place


def _is_linked(name: str) -> bool:
    return name in _LINKED or name.startswith(".")


def _steps(folder: Path) -> list[tuple[Path, str]]:
    """Return each folder above the path, with the next name on the way down."""
    parents = [*folder.parents][::-1]
    return [(parent, next(iter(folder.relative_to(parent).parts))) for parent in parents]


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


#: Events of Python's that change a file, with the positions of the paths in their arguments.
_EVENTS = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.truncate": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "shutil.rmtree": (0,),
    "sqlite3.connect": (0,),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Variables of the environment that name a cache.
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_HOME", "MPLCONFIGDIR")


class Writes:
    """Refuses to write outside of the scratch copy.

    Args:
        scratch: the root of the copy.
        source: the original folder, where nothing may be written.
        refused: called with each refused path.
    """

    def __init__(self, scratch: Path, source: Path, refused: Callable[[str], None]) -> None:
        self._scratch, self._source = os.path.realpath(scratch), os.path.realpath(source)
        caches = [os.environ[name] for name in _CACHES if os.environ.get(name)]
        temporary = [tempfile.gettempdir(), "/dev", "/proc"]
        home = [str(Path.home() / name) for name in (".cache", ".triton", ".config", ".nv")]
        self._allowed = [os.path.realpath(path) for path in (*caches, *temporary, *home)]
        self._refused, self._process = refused, os.getpid()

    def install(self) -> None:
        """Refuse writes from now on until the process ends, because Python cannot remove an audit
        hook."""
        sys.addaudithook(self._audit)

    def check(self, path: Any) -> None:
        """Refuse a path outside of the copy; replace a link to a file by a copy of the file.

        Raises:
            PermissionError: the path is outside.
        """
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor, or a stream
        name = os.fsdecode(path)
        real, link = os.path.realpath(name), Path(name)
        inside = _within(os.path.realpath(link.absolute().parent), self._scratch)
        if inside and link.is_symlink() and link.is_file():
            if not _within(real, self._scratch):
                link.unlink()
                shutil.copyfile(real, name)
            return
        if _within(real, self._scratch) or name.endswith(".pyc") or "__pycache__" in name:
            return
        if any(_within(real, one) for one in self._allowed_for(real)):
            return
        self._refused(name)
        raise PermissionError(
            errno.EACCES, "an arm of `gradscope experiment` writes in its scratch copy only", name
        )

    def _allowed_for(self, real: str) -> list[str]:
        """Return the folders that may hold a path. For a path in the source, these are folders in
        the source itself, such as a temporary folder of the project.
        """
        if not _within(real, self._source):
            return self._allowed
        return [one for one in self._allowed if one != self._source and _within(one, self._source)]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = any(c in mode for c in "wax+") if isinstance(mode, str) else flags & _WRITING
            if writes:
                self._checked(path)
        elif event in _EVENTS:
            if event == "os.mkdir" and Path(os.fsdecode(arguments[0])).is_dir():
                return  # Python reports it, and most scripts expect it
            for place in _EVENTS[event]:
                self._checked(arguments[place])

    def _checked(self, path: Any) -> None:
        if not self._inside and path != ":memory:":
            self._inside = True
            try:
                self.check(path)
            finally:
                self._inside = False

    _inside = False  # our own work on files is not checked


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
