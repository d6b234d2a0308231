"""The memory and processors of the machine, or of the container of this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: Memory limit of a container.
_OF_A_CONTAINER: Final = Path("/sys/fs/cgroup/memory.max")


def machine_memory() -> int | None:
    """Return the machine's memory in bytes; None if unknown."""
    limits = []
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if _OF_A_CONTAINER.is_file():
        text = _OF_A_CONTAINER.read_text().strip()
        limits += [int(text)] if text.isdigit() else []
    return min(limits, default=None)
