"""Saves and restores the random state of a generator, also as a tensor for a file."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from gradscope.errors import ConfigError, Place
from gradscope.images.files import shown
from gradscope.loading.sources.tensor_files import read

#: Generators by name; a GPU's has the name of its device.
TORCH, PYTHON, NUMPY, _GPU = "torch", "python", "numpy", "cuda:"
#: The integers in the states of ``random`` and of NumPy's global generator, a Mersenne Twister
#: both. PyTorch's and a GPU's state is opaque.
_SIZES: Final = {PYTHON: 628, NUMPY: 627}
_TWISTER: Final = "MT19937"


@dataclass(frozen=True, slots=True)
class RandomState:
    """The state of one generator. A call restores it.

    Attributes:
        generator: "torch" (on the CPU), "python", "numpy" (the global ones), or a GPU's device such
            as "cuda:0".
        state: the state as the generator's own functions take it.
    """

    generator: str
    state: Any

    def __call__(self) -> None:
        if self.generator == TORCH:
            torch.default_generator.set_state(self.state)
        elif self.generator == PYTHON:
            random.setstate(self.state)
        elif self.generator == NUMPY:
            if "numpy" in sys.modules:  # else nothing draws from it
                sys.modules["numpy"].random.set_state(self.state)
        else:
            torch.cuda.set_rng_state(self.state, self.generator)

    def tensor(self) -> torch.Tensor | None:
        """Return the state as a tensor: of PyTorch uint8, of the others int64.

        None if NumPy's global generator is not its usual one.
        """
        if isinstance(self.state, torch.Tensor):
            return self.state.cpu()
        if self.generator == PYTHON:
            version, words, normal = self.state
            numbers = [version, *words, normal is not None, _bits(normal or 0.0)]
            return torch.tensor(numbers, device="cpu")
        if self.state["bit_generator"] != _TWISTER:
            return None
        words, position = self.state["state"]["key"], self.state["state"]["pos"]
        rest = position, self.state["has_gauss"], _bits(self.state["gauss"])
        return torch.tensor([*map(int, words), *rest], device="cpu")


def torch_state() -> RandomState:
    """Return the state of PyTorch's generator on the CPU."""
    return RandomState(TORCH, torch.default_generator.get_state())


def python_state() -> RandomState:
    """Return the state of Python's ``random``."""
    return RandomState(PYTHON, random.getstate())


def numpy_state() -> RandomState | None:
    """Return the state of NumPy's global generator; None if NumPy was not imported."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else RandomState(NUMPY, numpy.random.get_state(legacy=False))


def all_states(devices: Sequence[torch.device] = ()) -> list[RandomState]:
    """Return the states of PyTorch's generators, on the CPU and on these GPUs, of Python's, and of
    NumPy's if it was imported."""
    drawn = numpy_state()
    return [torch_state(), *gpu_states(devices), python_state(), *([drawn] if drawn else [])]


def gpu_states(devices: Sequence[torch.device]) -> list[RandomState]:
    """Return the states of the GPUs' generators."""
    return [RandomState(str(device), torch.cuda.get_rng_state(device)) for device in devices]


def read_states(
    path: Path, device: torch.device, place: Place | None = None
) -> tuple[tuple[RandomState, ...], list[str]]:
    """Return the random states in a file, as ``spike --as-config`` writes it, and notices.

    The state of a GPU is for the run's device; without a GPU it is left out, and a notice says so.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    content = read(path, place)
    found = [_of_tensor(*item) for item in content.items()] if isinstance(content, Mapping) else []
    states = [one for one in found if one is not None]
    if not states or len(states) < len(found):
        raise ConfigError(
            f"{shown(path)} has something other than random states",
            place=place,
            help="`gradscope spike --as-config` writes such a file",
        )
    gpus = [one for one in states if one.generator.startswith(_GPU)]
    states = [one for one in states if one not in gpus]
    if len(gpus) == 1 and device.type == "cuda":
        return (*states, RandomState(str(device), gpus[0].state)), []
    notices = [
        f"random_state: the state of {one.generator} is not used; the model runs on {device}"
        for one in gpus
    ]
    return tuple(states), notices


def _of_tensor(name: Any, tensor: Any) -> RandomState | None:
    """Return the state of a generator, from ``RandomState.tensor``; None if it is not a state."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 1:
        return None
    if name in _SIZES:
        if tensor.dtype != torch.int64 or tensor.numel() != _SIZES[name]:
            return None
        values = tensor.tolist()
        if name == PYTHON:
            normal = _float(values[-1]) if values[-2] else None
            return RandomState(name, (values[0], tuple(values[1:-2]), normal))
        *words, position, has_normal, bits = values
        twister = {"key": words, "pos": position}
        rest = {"has_gauss": has_normal, "gauss": _float(bits)}
        return RandomState(name, {"bit_generator": _TWISTER, "state": twister, **rest})
    if tensor.dtype != torch.uint8:
        return None
    if name == TORCH:
        sound = tensor.numel() == torch.default_generator.get_state().numel()
        return RandomState(name, tensor) if sound else None
    return RandomState(name, tensor) if str(name).startswith(_GPU) else None


def _bits(value: float) -> int:
    """Return the bits of a float64 as an integer, to keep the next normal number exactly."""
    (found,) = struct.unpack("<q", struct.pack("<d", value))
    return int(found)


def _float(bits: int) -> float:
    (found,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(found)
