"""Resolves the config's ``device``, ``dtype``, ``autocast`` and ``seed`` to torch's objects."""

from __future__ import annotations

import random
import re
import sys

import torch

from gradscope.errors import ConfigError, OptionError, Place, did_you_mean

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_SHORT = {"float": "float32", "double": "float64", "half": "float16"}
_SHORT |= {"fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16"}
WORDS = ("auto", "cpu", "cuda", "mps", "meta")


def resolve_device(text: str, place: Place | None = None) -> torch.device:
    """Resolve a device; ``auto`` is CUDA if there is one, else the CPU.

    Raises:
        OptionError: the device does not exist; the help lists the devices.
    """
    word, colon, number = text.strip().lower().partition(":")
    if word not in WORDS or (colon and not re.fullmatch(r"\d+", number)):
        raise OptionError(
            f"unknown device `{text}`",
            place=place,
            help=did_you_mean({"gpu": "cuda"}.get(word, word), WORDS)
            or f"one of auto, cpu, cuda, cuda:N, mps, meta; here there is {available()}",
        )
    if word == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if word == "cuda":
        _require_cuda(text, int(number or 0), place)
        return torch.device("cuda", int(number or 0)) if colon else torch.device("cuda")
    if word == "mps" and not torch.backends.mps.is_available():
        built = torch.backends.mps.is_built()
        why = "no GPU that Metal can use" if built else "a torch that is built without MPS"
        raise OptionError(
            f"device `{text}` is not there: this machine has {why}",
            place=place,
            help=f"here there is {available()}; leave `device` out to take the best",
        )
    return torch.device(word)


def _require_cuda(text: str, number: int, place: Place | None) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number < count:
        return
    if count:
        why = (
            f"CUDA devices here are numbered 0 to {count - 1}" if count > 1 else "the one is cuda:0"
        )
    elif torch.version.cuda is None and torch.version.hip is None:
        why = f"torch {torch.__version__} is built without CUDA"
    else:
        why = "torch finds no CUDA GPU, or no driver for it"
    raise OptionError(
        f"device `{text}` is not there: {why}",
        place=place,
        help=f"here there is {available()}; leave `device` out to take the best",
    )


def available() -> str:
    """Return the devices of this machine, for a sentence."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found += [
            f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())
        ]
    if torch.backends.mps.is_available():
        found.append("mps")
    return ", ".join([*found, "meta"])


def resolve_dtype(text: str, place: Place | None = None) -> torch.dtype:
    """Resolve a floating dtype by its name.

    Raises:
        ConfigError: the name is unknown, or parameters cannot have that dtype here.
    """
    word = text.strip().lower().removeprefix("torch.")
    word = _SHORT.get(word, word)
    if word not in DTYPES:
        raise ConfigError(
            f"unknown dtype `{text}`",
            place=place,
            help=did_you_mean(word, DTYPES) or f"one of {', '.join(DTYPES)}",
        )
    return DTYPES[word]


def resolve_autocast(text: str | None, place: Place | None = None) -> torch.dtype | None:
    """Resolve the dtype of autocast; None without autocast.

    Raises:
        ConfigError: it is neither bfloat16 nor float16.
    """
    if text is None:
        return None
    dtype = resolve_dtype(text, place)
    if dtype not in (torch.bfloat16, torch.float16):
        raise ConfigError(
            f"autocast to `{text}` does nothing",
            place=place,
            help="take bfloat16 or float16; the key `dtype` sets the dtype of the parameters",
        )
    return dtype


def check_pair(device: torch.device, dtype: torch.dtype, place: Place | None = None) -> None:
    """Refuse a dtype that the device does not support.

    Raises:
        ConfigError: float64 on mps.
    """
    if device.type == "mps" and dtype == torch.float64:
        message = "mps has no float64"
        raise ConfigError(message, place=place, help="take `device: cpu`, or `dtype: float32`")


def seed_everything(seed: int) -> None:
    """Seed torch (CPU, CUDA, MPS), ``random`` and numpy's global generator.

    Libraries take seeds of 64 (torch) and 32 (numpy) bits; a larger one is cut to that.
    """
    torch.manual_seed(seed % 2**64)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
