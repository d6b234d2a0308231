"""The eight statistics of a tensor on a CUDA device, in one read, without waiting for the device.

``on_cuda.cu`` is compiled at the first use, by NVRTC, which comes with PyTorch: about 0.3 s in a
process. If that is impossible, ``numbers`` returns None, and ``capture/reductions.py`` computes the
same with PyTorch's operations. ``GRADSCOPE_COMPILED=0`` turns it off.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch

from gradscope.capture.shards import PLAIN

_THREADS, _QUANTITIES = 256, 8  # as in ``on_cuda.cu``
#: Elements of 16 bytes that a thread reads before another block is worth its start.
_READS = 4
#: Blocks that run at the same time on one multiprocessor.
_BLOCKS = 8
#: In the order of the kernels.
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Kernels:
    """The compiled kernels on one device.

    Args:
        device: its index.

    Raises:
        OSError: NVRTC or the driver cannot be loaded.
        RuntimeError: the source cannot be compiled, or the driver refuses it.
    """

    def __init__(self, device: int) -> None:
        facts = torch.cuda.get_device_properties(device)
        self._most = facts.multi_processor_count * _BLOCKS
        windows = sys.platform == "win32"
        self._driver = ctypes.CDLL("nvcuda.dll" if windows else "libcuda.so.1")
        code = compiled(f"sm_{facts.major}{facts.minor}")
        module = ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream().query()  # a new thread may have no context yet
            self._check(self._driver.cuModuleLoadData(ctypes.byref(module), code))
            self._functions = {dtype: self._of(module, dtype) for dtype in DTYPES}

    def _of(self, module: ctypes.c_void_p, dtype: torch.dtype) -> list[ctypes.c_void_p]:
        functions = []
        for kernel in ("measure", "finish"):
            function = ctypes.c_void_p()
            name = f"{kernel}_{str(dtype).removeprefix('torch.')}".encode()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), module, name))
            functions.append(function)
        return functions

    def _check(self, result: int) -> None:
        if result:
            raise RuntimeError(f"the CUDA driver returned error {result}")

    def numbers(self, tensor: torch.Tensor, copies: int) -> torch.Tensor:
        """Return norm, mean, std, min, max, zeros, nan, inf, in float64, on the device.

        Args:
            tensor: contiguous, with at least one element, of a dtype in ``DTYPES``.
            copies: the number of times that each element counts.

        Raises:
            RuntimeError: a kernel was not started.
        """
        count = tensor.numel()
        work = _THREADS * _READS * 16 // tensor.element_size()
        blocks = min(math.ceil(count / work), self._most)
        found = tensor.new_empty(8 + blocks * _QUANTITIES, dtype=torch.float64)
        data, numbers = tensor.data_ptr(), found.data_ptr()
        partial = ctypes.c_void_p(numbers + 8 * found.element_size())
        first = ctypes.c_void_p(data), ctypes.c_double(count)
        measure, finish = self._functions[tensor.dtype]
        stream = ctypes.c_void_p(torch.cuda.current_stream(tensor.device).cuda_stream)
        self._start(measure, blocks, stream, *first, partial)
        rest = ctypes.c_double(copies), ctypes.c_double(blocks), partial, ctypes.c_void_p(numbers)
        self._start(finish, 1, stream, *first, *rest)
        return found[:8]

    def _start(self, function: ctypes.c_void_p, blocks: int, stream: Any, *given: Any) -> None:
        pointers = (ctypes.c_void_p * len(given))(*(ctypes.addressof(one) for one in given))
        grid, threads, shared = (blocks, 1, 1), (_THREADS, 1, 1), 0
        self._check(
            self._driver.cuLaunchKernel(function, *grid, *threads, shared, stream, pointers, None)
        )


def compiled(architecture: str) -> ctypes.Array[ctypes.c_char]:
    """Return the binary of ``on_cuda.cu`` for a device.

    Raises:
        OSError: there is no NVRTC.
        RuntimeError: it refuses the source, with its own words.
    """
    major = str(torch.version.cuda).partition(".")[0]
    name = f"nvrtc64_{major}0_0.dll" if sys.platform == "win32" else f"libnvrtc.so.{major}"
    nvrtc = ctypes.CDLL(name)  # PyTorch has loaded it
    source = Path(__file__).with_name("on_cuda.cu").read_bytes()
    program = ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"on_cuda.cu", 0, None, None):
        raise RuntimeError("NVRTC did not compile the source")
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
        given = (ctypes.c_char_p * len(options))(*options)
        size = ctypes.c_size_t()
        if nvrtc.nvrtcCompileProgram(program, len(options), given):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"NVRTC: {log.value.decode(errors='replace').strip()}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, code)
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


#: By device, its kernels, or the reason why there are none.
_kernels: dict[int, Kernels | str] = {}


def _of_device(index: int) -> Kernels | str:
    found = _kernels.get(index)
    if found is None:
        found = _kernels[index] = _loaded(index)
    return found


def _loaded(index: int) -> Kernels | str:
    if os.environ.get("GRADSCOPE_COMPILED") == "0":
        return "GRADSCOPE_COMPILED=0"
    if torch.version.cuda is None:
        return "not a CUDA build of PyTorch"
    try:
        return Kernels(index)
    except (OSError, AttributeError, RuntimeError) as error:
        return str(error)


def numbers(tensor: torch.Tensor, copies: int = 1) -> torch.Tensor | None:
    """Return the eight numbers of a plain CUDA tensor, in float64, on its device; None for all
    other tensors, and if the kernels cannot be used.

    Args:
        tensor: a tensor of any strides; it is copied only if its memory has gaps.
        copies: the number of times that each element counts.
    """
    if (
        not tensor.is_cuda
        or tensor.dtype not in DTYPES
        or type(tensor) not in PLAIN
        or tensor.layout is not torch.strided
        or not tensor.numel()
    ):
        return None
    index = tensor.device.index
    if index not in _kernels and torch.cuda.is_current_stream_capturing():
        return None  # a module cannot be loaded into a graph
    kernels = _of_device(index)
    if isinstance(kernels, str):
        return None
    tensor = tensor.detach().contiguous()
    try:
        if not tensor.data_ptr():
            return None
    except RuntimeError:  # a wrapper of `torch.func` has no memory
        return None
    try:
        if torch.cuda.current_device() == index:
            return kernels.numbers(tensor, copies)
        with torch.cuda.device(index):
            return kernels.numbers(tensor, copies)
    except RuntimeError as error:
        _kernels[index] = str(error)
        return None


def in_use(index: int = 0) -> str:
    """Name the code that computes statistics on a CUDA device, for ``gradscope doctor``."""
    kernels = _of_device(index)
    return f"PyTorch operations ({kernels})" if isinstance(kernels, str) else "compiled (NVRTC)"
