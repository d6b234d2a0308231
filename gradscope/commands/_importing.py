"""Torch's import: without the garbage collector, and what keeps it from being done."""

from __future__ import annotations

import atexit
import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gradscope import progress
from gradscope.errors import OptionError, is_out_of_memory, message_of
from gradscope.typeset.numbers import size

#: Address space that a run needs beside what the import takes.
_REST: Final = 512 << 20
_TRIAL: Final = f"""
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (max(soft - {_REST}, 0), hard))
import numpy, torch
torch.ones(2).sum()
"""


@contextmanager
def importing_torch() -> Iterator[None]:
    """Import within this what needs torch, without the garbage collector walking through it.

    What torch's import makes stays until the process ends. Searching it for garbage, again and
    again while it grows and again at the end, takes a sixth of the time that the import takes.

    Raises:
        OptionError: torch cannot be imported, or there is too little memory for it.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    progress.begin("importing torch")
    _check_room()
    gc.disable()
    try:
        yield
        gc.freeze()
        atexit.register(_unfreeze)
    except (ImportError, OSError, MemoryError, RuntimeError) as error:
        problem = _problem(error)
        if problem is None:
            raise
        raise problem from error
    finally:
        gc.enable()


def _unfreeze() -> None:
    """Triton, which torchvision imports, calls all that is not freed at the end a leak."""
    if "triton" in sys.modules:
        gc.unfreeze()


def _check_room() -> None:
    """Refuse to import torch where the limit of address space does not allow it.

    Where there is a limit, another process tries first: a library that finds no room for its
    threads ends the process that it is in.

    Raises:
        OptionError: it does not.
    """
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    words = [sys.executable, "-P", "-c", _TRIAL]
    try:
        trial = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except (OSError, MemoryError):  # no room for a process either
        trial = subprocess.CompletedProcess(words, -1, b"", b"")
    # What else is wrong with torch, its import says.
    said = OSError(trial.stderr.decode(errors="replace"))
    if trial.returncode < 0 or (trial.returncode and is_out_of_memory(said)):
        raise OptionError(
            f"torch cannot be imported within {size(limit)} of address space",
            help="raise the limit: `ulimit -v unlimited`; with CUDA torch takes some 4 GB",
        )


def _problem(error: BaseException) -> OptionError | None:
    """What keeps torch from being imported; None where something else failed."""
    lines = message_of(error).strip().splitlines() or [type(error).__name__]
    if is_out_of_memory(error):
        line = next((line for line in lines if "map segment" in line), lines[0])
        return OptionError(
            f"there is not enough memory to import torch: {line}",
            help="close other programs, or give the container more",
        )
    ours = isinstance(error, ImportError) and (error.name or "").startswith("gradscope")
    if ours or "torch" in sys.modules:
        return None
    return OptionError(
        f"torch cannot be imported: {type(error).__name__}: {lines[0]}",
        help="reinstall it: pip install --force-reinstall torch torchvision",
    )
