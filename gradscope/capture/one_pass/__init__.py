"""The compiled library: computes the eight statistics of a tensor, the sums of an optimizer's step,
or the figures of attention and of a residual stream, in one read.

The installation compiles ``one_pass.c``. Without a compiler the functions return None, and
``reductions.py``, ``updates.py``, ``transformer/attention.py`` and ``transformer/residual.py``
compute the same with PyTorch. ``GRADSCOPE_COMPILED=0`` turns the library off.
"""

from __future__ import annotations

import ctypes
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gradscope.capture.shards import PLAIN

#: The library must return this number; otherwise it was compiled from another version's source.
_INTERFACE = 4
#: In the order of ``instruction_set.h``.
_KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
#: From this many elements on, two threads are faster.
_LARGE = 1 << 21
#: A call for fewer elements keeps the GIL: waiting for it afterwards would take longer.
_SMALL = 1 << 14

_Numbers = ctypes.c_double * 8


class Terms(NamedTuple):
    """The coefficients of an optimizer's update, in the order of ``struct formula``.

    −Δw = (slope · (sign · g + decay · w) + shift · m) / (scale · √v + eps), with w the weight
    before the step. For decoupled decay, ``decay`` is 0 and ``taken`` · w is added.
    """

    slope: float = 0.0
    shift: float = 0.0
    scale: float = 0.0
    eps: float = 1.0
    sign: float = 1.0
    decay: float = 0.0
    taken: float = 0.0


class StepSums(NamedTuple):
    """Sums over the elements of one parameter's step, in the order of ``one_pass.c``.

    Sums of a missing tensor are 0; ``rest`` is 0 if ``taken`` is.
    """

    was: float  # squares of the weight before the step
    moved: float  # squares of Δw
    changed: float  # elements that changed
    along: float  # −Δw times the gradient
    gradient: float  # its squares
    rest: float  # squares of the part of Δw that is not ``taken`` · w
    first: float  # squares of the first moment
    second: float  # the second moment
    second_squares: float
    unrounded: float  # squares of Δw before the weight's dtype rounds it


class _Formula(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in Terms._fields]


class _Step(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "gradient", "first", "second", "before")),
        ("all", ctypes.c_int64),
        ("formula", _Formula),
    ]


_Sums = ctypes.c_double * len(StepSums._fields)


class _Attention(ctypes.Structure):
    _fields_ = [
        ("logits", ctypes.c_void_p),
        ("keys", ctypes.c_int64),
        ("places", ctypes.c_void_p),
        ("queries", ctypes.c_int64),
        ("masked", ctypes.c_double),
        ("causal", ctypes.c_int64),
    ]


class _Heads(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("samples", "heads", "queries")),
        ("masked", ctypes.c_double),
        ("uneven", ctypes.c_double),
        ("safe", ctypes.c_int64),
    ]


#: In the order of ``one_pass.c``.
_ATTENTION_FIGURES, _HEAD_FIGURES, _RESIDUAL_FIGURES = 6, 8, 4


class Library:
    """The compiled library.

    Args:
        file: its path; the name ends in ``.so`` on every platform.

    Raises:
        OSError: it cannot be loaded, or has another version.
    """

    def __init__(self, file: Path) -> None:
        library, locked = ctypes.CDLL(str(file)), ctypes.PyDLL(str(file))
        if library.gradscope_interface() != _INTERFACE:
            raise OSError(f"{file} is of another version")
        library.gradscope_instruction_set.restype = ctypes.c_char_p
        #: The instruction set that it chose on this processor.
        self.instruction_set: str = library.gradscope_instruction_set().decode()
        self._row, self._axes = library.gradscope_row, library.gradscope_axes
        self._locked_row = locked.gradscope_row  # keeps the GIL
        first: list[Any] = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
        shape: list[Any] = [ctypes.c_double, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._row.argtypes = self._locked_row.argtypes = [*first, _Numbers]
        self._axes.argtypes = [*first, *shape, _Numbers]
        self._step, self._locked_step = library.gradscope_step, locked.gradscope_step
        for step in (self._step, self._locked_step):
            step.argtypes, step.restype = [ctypes.POINTER(_Step), ctypes.c_int64, _Sums], None
        self._attention = library.gradscope_attention
        self._locked_attention = locked.gradscope_attention
        rows: list[Any] = [ctypes.POINTER(_Attention), ctypes.c_int64, ctypes.c_void_p]
        for attention in (self._attention, self._locked_attention):
            attention.argtypes, attention.restype = rows, None
        self._heads = locked.gradscope_heads
        self._heads.argtypes, self._heads.restype = [ctypes.POINTER(_Heads), ctypes.c_void_p], None
        self._residual = library.gradscope_residual
        memory: list[Any] = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        self._residual.argtypes, self._residual.restype = memory, None

    def numbers(self, tensor: torch.Tensor) -> list[float] | None:
        """Return norm, mean, std, min, max, zeros, nan, inf over all elements, or None.

        It reads the memory of plain CPU tensors of any strides, without a copy. For all other
        tensors it returns None, and PyTorch computes the numbers.
        """
        kind = _KINDS.get(tensor.dtype)
        if (
            kind is None
            or type(tensor) not in PLAIN
            or not tensor.is_cpu
            or tensor.layout is not torch.strided
            or tensor.is_nested
            or tensor.is_neg()
        ):
            return None
        address, count = _address(tensor), tensor.numel()
        if not address or not count or not _lies_in_its_storage(tensor):
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

    def step(
        self,
        weight: torch.Tensor,
        terms: Terms,
        *,
        gradient: torch.Tensor | None = None,
        first: torch.Tensor | None = None,
        second: torch.Tensor | None = None,
        before: torch.Tensor | None = None,
        every: bool = True,
    ) -> StepSums | None:
        """Return the sums over a step. None unless all are plain float32 CPU tensors with the same
        memory order, and all sums are finite.

        Args:
            weight: the weight after the step.
            terms: the coefficients of the update. With ``before`` all but ``taken`` may be left
                out; then there is no ``unrounded``.
            gradient, first, second: with as many elements as the weight; None counts as zero.
            before: the weight before the step; None: computed from ``terms``.
            every: False: only ``unrounded`` is needed.
        """
        tensors = (weight, gradient, first, second, before)
        if not _are_alike([one for one in tensors if one is not None]):
            return None
        places = [None if one is None else _address(one) for one in tensors]
        if [one is None for one in tensors] != [not place for place in places]:
            return None
        asked, found = _Step(*places, every, _Formula(*terms)), _Sums()
        count = weight.numel()
        (self._locked_step if count <= _SMALL else self._step)(asked, count, found)
        return StepSums(*found) if all(map(math.isfinite, found)) else None

    def attention(
        self, logits: torch.Tensor, places: torch.Tensor, *, masked: float, causal: bool
    ) -> torch.Tensor | None:
        """Return figures [6, ..., rows]: visible keys, largest logit, largest weight, entropy,
        weight of the first key, weight of the keys after the row's position. None unless all are
        plain, contiguous CPU tensors.

        Args:
            logits: [..., rows, keys], float64.
            places: [rows], int64: the position of each row.
            masked: a logit that is not larger than this is masked.
            causal: a row sees the keys up to its own position; the others are not read.
        """
        if not (_is_row(logits, torch.float64) and _is_row(places, torch.int64)):
            return None
        *leading, keys = logits.shape
        found = logits.new_empty(_ATTENTION_FIGURES, *leading)
        asked = _Attention(
            logits.data_ptr(), keys, places.data_ptr(), places.numel(), masked, causal
        )
        attention = self._locked_attention if logits.numel() <= _SMALL else self._attention
        attention(asked, math.prod(leading), found.data_ptr())
        return found

    def heads(
        self, rows: torch.Tensor, *, masked: float, uneven: float, safe: bool
    ) -> torch.Tensor | None:
        """Return figures [8, heads]: largest logit, mean of the entropy, least entropy, mean of the
        entropy's share of the largest possible, mean weight of the first key, mean weight of later
        keys, share of rows without a visible key, share of lost rows. NaN means unknown. None
        unless the rows are a plain, contiguous CPU tensor.

        Args:
            rows: [6, samples, heads, rows], as ``attention`` returns them.
            masked: a logit that is not larger than this is masked.
            uneven: weights differ if the largest times the number of keys is larger than this.
            safe: a row without a visible key has zeros instead of NaN.
        """
        if not _is_row(rows, torch.float64):
            return None
        _, samples, heads, queries = rows.shape
        found = rows.new_empty(_HEAD_FIGURES, heads)
        asked = _Heads(rows.data_ptr(), samples, heads, queries, masked, uneven, safe)
        self._heads(asked, found.data_ptr())
        return found

    def residual(self, made: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor | None:
        """Return root mean square, kurtosis, ‖made − given‖ / ‖made‖, and the cosine of the two;
        NaN without ``given``. None unless they are plain, contiguous float64 CPU tensors.

        Args:
            made: rows of a block's output.
            given: the same rows of its input; None if they are unknown.
        """
        if not all(_is_row(one, torch.float64) for one in (made, given) if one is not None):
            return None
        found = made.new_empty(_RESIDUAL_FIGURES)
        before = None if given is None else given.data_ptr()
        self._residual(made.data_ptr(), before, made.numel(), found.data_ptr())
        return found


def _address(tensor: torch.Tensor) -> int | None:
    """Return the address of the elements; None or 0 without memory, as for a traced tensor or a
    tensor of zeros."""
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a wrapper of `torch.func` has no memory
        return None


def _is_row(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return True for a plain, contiguous CPU tensor with elements of this dtype."""
    return (
        type(tensor) in PLAIN
        and tensor.dtype == dtype
        and tensor.is_cpu
        and tensor.is_contiguous()
        and bool(_address(tensor))
    )


def _are_alike(tensors: list[torch.Tensor]) -> bool:
    """Return True for plain float32 CPU tensors with the same memory order."""
    count, contiguous = tensors[0].numel(), True
    for one in tensors:  # for each parameter of a sample: no frame of Python's
        if (
            type(one) not in PLAIN
            or one.dtype != torch.float32
            or not one.is_cpu
            or one.layout is not torch.strided
            or one.is_neg()
            or not one.numel() == count > 0
        ):
            return False
        contiguous = contiguous and one.is_contiguous()
    return contiguous or all(
        one.dim() == 4
        and one.shape == tensors[0].shape
        and one.is_contiguous(memory_format=torch.channels_last)
        for one in tensors
    )


def _lies_in_its_storage(tensor: torch.Tensor) -> bool:
    """Return False if the script made the storage smaller than the tensor, with ``resize_``.

    PyTorch's operations raise an error then; the library would read other memory.
    """
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * step for size, step in steps)
    return bool((last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes())


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
    """Return the library of this installation, or the reason why it is not used."""
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
    """Call ``Library.numbers`` of this installation; None without a library."""
    return None if isinstance(_library, str) else _library.numbers(tensor)


def step(weight: torch.Tensor, terms: Terms, **more: Any) -> StepSums | None:
    """Call ``Library.step`` of this installation; None without a library."""
    return None if isinstance(_library, str) else _library.step(weight, terms, **more)


def attention(logits: torch.Tensor, places: torch.Tensor, **more: Any) -> torch.Tensor | None:
    """Call ``Library.attention`` of this installation; None without a library."""
    if isinstance(_library, str):
        return None
    return _library.attention(logits, places, **more)


def heads(rows: torch.Tensor, **more: Any) -> torch.Tensor | None:
    """Call ``Library.heads`` of this installation; None without a library."""
    return None if isinstance(_library, str) else _library.heads(rows, **more)


def residual(made: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor | None:
    """Call ``Library.residual`` of this installation; None without a library."""
    return None if isinstance(_library, str) else _library.residual(made, given)


def is_compiled() -> bool:
    """Return True if ``numbers`` can measure plain tensors."""
    return not isinstance(_library, str)


def in_use() -> str:
    """Name the code that computes statistics on the CPU, for ``gradscope doctor``."""
    if isinstance(_library, str):
        return f"PyTorch operations ({_library})"
    return f"compiled ({_library.instruction_set})"
