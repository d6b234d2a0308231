"""Makes a copy of the working folder for an arm, which is deleted afterwards.

If writing were refused, most scripts would fail at their first checkpoint. If it were allowed, the
arm with learning rate × 100 could overwrite the user's best checkpoint. Small files are copied and
large ones are linked, so data sets need no space.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

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
    """Each folder above with the next name on the way down."""
    parents = [*folder.parents][::-1]
    return [(parent, next(iter(folder.relative_to(parent).parts))) for parent in parents]


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
