"""The eight numbers of a tensor by one compiled read of its memory.

The installation compiles ``one_pass.c``. Where it found no compiler, ``numbers`` has no answer, and
``reductions.py`` computes the same with PyTorch. ``GRADSCOPE_COMPILED=0`` turns the library off.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import torch

#: The library has to answer this, or it is of another version's source.
_INTERFACE = 1
#: In the order of ``instruction_set.h``.
_KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
#: Elements that are worth two threads.
_LARGE = 1 << 21
#: A call for fewer elements is shorter than to wait for the interpreter's lock afterwards.
_SMALL = 1 << 14

_Numbers = ctypes.c_double * 8


class Library:
    """The compiled library.

    Args:
        file: where it is; its name ends in ``.so`` on every platform.

    Raises:
        OSError: it does not load, or it is of another version.
    """

    def __init__(self, file: Path) -> None:
        library, locked = ctypes.CDLL(str(file)), ctypes.PyDLL(str(file))
        if library.gradscope_interface() != _INTERFACE:
            raise OSError(f"{file} is of another version")
        library.gradscope_instruction_set.restype = ctypes.c_char_p
        #: The instruction set that it chose on this processor.
        self.instruction_set: str = library.gradscope_instruction_set().decode()
        self._row, self._axes = library.gradscope_row, library.gradscope_axes
        self._locked_row = locked.gradscope_row  # without letting go of the interpreter's lock
        first: list[Any] = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
        shape: list[Any] = [ctypes.c_double, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._row.argtypes = self._locked_row.argtypes = [*first, _Numbers]
        self._axes.argtypes = [*first, *shape, _Numbers]

    def numbers(self, tensor: torch.Tensor) -> list[float] | None:
        """norm mean std min max zeros nan inf over all elements, or None.

        It reads the memory of plain tensors on the CPU, whatever their strides, and copies none of
        it. Of the others PyTorch has to compute the numbers.
        """
        kind = _KINDS.get(tensor.dtype)
        if (
            kind is None
            or type(tensor) not in _PLAIN
            or not tensor.is_cpu
            or tensor.layout is not torch.strided
            or tensor.is_nested
            or tensor.is_neg()
        ):
            return None
        try:
            address = tensor.data_ptr()
        except RuntimeError:  # a wrapper of `torch.func` has no memory
            return None
        count = tensor.numel()
        if not address or not count:  # traced, or known to be zero
            return None
        threads = torch.get_num_threads() if count >= _LARGE else 1
        found = _Numbers()
        if tensor.is_contiguous():
            row = self._locked_row if count <= _SMALL else self._row
            done = row(address, count, kind, threads, found)
        else:
            copies, axes = _axes(tensor)
            array = ctypes.c_int64 * len(axes)
            sizes, strides = array(*(size for size, _ in axes)), array(*(step for _, step in axes))
            shape = copies, len(axes), sizes, strides
            done = self._axes(address, count // copies, kind, threads, *shape, found)
        return found[:] if done else None


def _axes(tensor: torch.Tensor) -> tuple[int, list[tuple[int, int]]]:
    """Return how often each element repeats, and the other axes as (size, stride).

    The innermost axis in memory is last, and contiguous axes are merged. The list is empty if all
    merge into one.
    """
    copies = 1
    axes: list[tuple[int, int]] = []
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True), reverse=True):
        if not step:
            copies *= size
        elif axes and axes[-1][1] == size * step:
            axes[-1] = axes[-1][0] * size, step
        elif size > 1:
            axes.append((size, step))
    return copies, [] if len(axes) == 1 and axes[0][1] == 1 else axes


def _installed() -> Library | str:
    """The library of this installation, or why it is not used."""
    file = Path(__file__).with_name("one_pass.so")
    if os.environ.get("GRADSCOPE_COMPILED") == "0":
        return "GRADSCOPE_COMPILED=0"
    if not file.is_file():
        return "installed without a C compiler"
    try:
        return Library(file)
    except (OSError, AttributeError) as error:
        return str(error)


_library = _installed()


def numbers(tensor: torch.Tensor) -> list[float] | None:
    """``Library.numbers`` of this installation's; None without one."""
    return None if isinstance(_library, str) else _library.numbers(tensor)


def is_compiled() -> bool:
    """Return True if ``numbers`` can measure plain tensors."""
    return not isinstance(_library, str)


def in_use() -> str:
    """Names the code that computes statistics on the CPU, for ``gradscope doctor``."""
    if isinstance(_library, str):
        return f"PyTorch operations ({_library})"
    return f"compiled ({_library.instruction_set})"
