"""Files of weights, read so that they cannot run code."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from gradscope.errors import ConfigError, Place, message_of
from gradscope.images import existing_file, shown

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


def read(path: Path, place: Place | None = None) -> Any:
    """What a file holds, on the CPU. Pickles are read with ``weights_only=True``, never otherwise.

    Raises:
        ConfigError: missing, empty, cut off, of an unknown kind, or holding more than weights.
    """
    existing_file(path, suffixes=SUFFIXES, place=place, what="checkpoint")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"{shown(path)} does not have the suffix of a checkpoint",
            place=place,
            help=f"the suffixes are {', '.join(SUFFIXES)}",
        )
    _refuse_pointer(path, place)
    try:
        return read_tensors(path)
    except pickle.UnpicklingError as error:
        raise refused(path, message_of(error), place) from error
    except Exception as error:  # readers raise anything at all on broken bytes
        if "weights_only" in message_of(error):
            raise refused(path, message_of(error), place) from error
        lines = message_of(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"{shown(path)} cannot be read: {lines[0]}",
            place=place,
            help="the file is cut off, or not what its suffix says; make or fetch it again",
        ) from error


def read_tensors(path: Path) -> Any:
    """A safetensors file or a pickle as the library reads it, errors included; no code runs."""
    if path.suffix.lower() == ".safetensors":
        return safetensors.torch.load_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the pickle's protocol, before it is refused
        return torch.load(path, map_location="cpu", weights_only=True)


def require_values(tensors: Iterable[Any], path: Path, place: Place | None) -> None:
    """Refuse tensors of the meta device, which a file holds as shapes alone.

    Raises:
        ConfigError: one of them is.
    """
    if any(isinstance(tensor, torch.Tensor) and tensor.is_meta for tensor in tensors):
        raise ConfigError(
            f"{shown(path)} holds shapes without values: it was saved from the meta device",
            place=place,
            help="save it from a model or a tensor that has values",
        )


def _refuse_pointer(path: Path, place: Place | None) -> None:
    with path.open("rb") as file:
        start = file.read(64)
    if start.startswith(b"version https://git-lfs"):
        raise ConfigError(
            f"{shown(path)} is a Git LFS pointer, not the weights themselves",
            place=place,
            help="fetch them: git lfs pull",
        )


def refused(path: Path, reason: str, place: Place | None) -> ConfigError:
    """The error for a pickle that wants more than tensors."""
    if "TorchScript" in reason:
        return ConfigError(
            f"{shown(path)} is a TorchScript archive, not a file of weights",
            place=place,
            help="where it was made: torch.save(model.state_dict(), 'weights.pt')",
        )
    found = _GLOBAL.search(reason)
    if found is None and not _is_pickle(path):
        return ConfigError(
            f"{shown(path)} cannot be read: it is cut off, or no PyTorch file",
            place=place,
            help="make or fetch it again",
        )
    what = f"it would run `{found[1]}`" if found else "it contains more than tensors"
    help = (
        "get the weights as .safetensors; or, only if you trust where the file comes from, "
        "convert it: torch.save(torch.load(FILE, weights_only=False)['state_dict'], 'weights.pt')"
    )
    held = _held_model(path)
    if held is not None:
        help = (
            "it holds a full model: save its weights instead, "
            "torch.save(model.state_dict(), 'weights.pt'); or, only if you trust where the file "
            "comes from and its classes can be imported, convert it: "
            f"torch.save(torch.load(FILE, weights_only=False){held}.state_dict(), 'weights.pt')"
        )
    return ConfigError(
        f"{shown(path)} is not loaded: {what}, and reading it could run any code",
        place=place,
        help=help,
        notes=["gradscope reads pickles with weights_only=True, without exception"],
    )


def _held_model(path: Path) -> str | None:
    """How code reaches the module in a pickle: ``""``, or ``[KEY]`` in a dict; None without one.

    The opcodes are read, nothing is run.
    """
    try:
        names = [(op.name, arg) for op, arg, _ in pickletools.genops(_object(path))]
    except Exception:  # broken bytes
        return None
    if not any(isinstance(arg, str) and arg.startswith("torch.nn.modules.") for _, arg in names):
        return None
    first = next((name for name, _ in names if name not in ("PROTO", "FRAME")), None)
    return "[KEY]" if first == "EMPTY_DICT" else ""


def _object(path: Path) -> bytes:
    """The pickle of the object in a file of torch.save's, of today or of before archives."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            name = next(one for one in archive.namelist() if one.endswith("/data.pkl"))
            return archive.read(name)
    content = io.BytesIO(path.read_bytes())
    for _ in range(3):  # torch.save's magic number, protocol and machine
        list(pickletools.genops(content))
    return content.read()


def _is_pickle(path: Path) -> bool:
    """Whether a file starts as its own pickle, which torch.save has not written in years."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(2)
    return start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05")
