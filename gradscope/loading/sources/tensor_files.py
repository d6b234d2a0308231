"""Reads files of tensors and weights without running code; plans ``file:`` in an input."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from gradscope.errors import ConfigError, Place, first_line, message_of
from gradscope.images.files import existing_file, shown
from gradscope.loading.sources import Build, Context
from gradscope.loading.sources.tensors import Modifiers, finish
from gradscope.nesting import find
from gradscope.output_files import expanded

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


def read(path: Path, place: Place | None = None) -> Any:
    """Read a file onto the CPU. Pickles are always read with ``weights_only=True``.

    Raises:
        ConfigError: the file is missing, empty, truncated, of an unknown kind, or holds more than
            weights.
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
        raise ConfigError(
            f"{shown(path)} cannot be read: {first_line(error)}",
            place=place,
            help="the file is truncated, or its suffix is wrong; make or fetch it again",
        ) from error


def read_tensors(path: Path) -> Any:
    """Read a safetensors file or a pickle with its library, which may raise; no code runs."""
    if path.suffix.lower() == ".safetensors":
        return safetensors.torch.load_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the pickle's protocol, before it is refused
        return torch.load(path, map_location="cpu", weights_only=True)


def require_values(tensors: Iterable[Any], path: Path, place: Place | None) -> None:
    """Refuse tensors of the meta device, which have shapes only.

    Raises:
        ConfigError: there is one.
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
    """Return the error for a pickle that holds more than tensors."""
    if "TorchScript" in reason:
        return ConfigError(
            f"{shown(path)} is a TorchScript archive, not a file of weights",
            place=place,
            help="in the program that wrote it: torch.save(model.state_dict(), 'weights.pt')",
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
    """Return the access to the module in a pickle: ``""``, ``[KEY]`` in a dict; None without one.

    Reads the opcodes and runs nothing.
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
    """Return the object's pickle in a file of torch.save, in today's format or the older one
    without an archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            name = next(one for one in archive.namelist() if one.endswith("/data.pkl"))
            return archive.read(name)
    content = io.BytesIO(path.read_bytes())
    for _ in range(3):  # torch.save's magic number, protocol and machine
        list(pickletools.genops(content))
    return content.read()


def _is_pickle(path: Path) -> bool:
    """Return True for a bare pickle, a format that torch.save no longer writes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(2)
    return start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05")


_SOURCES = (".npy", ".npz", ".pt", ".pth", ".safetensors")


def plan_file(spec: Mapping[str, Any], context: Context, key: str) -> Build:
    """Plan a file: one array gives a tensor, several arrays a mapping by name, and a list or tuple
    a list.

    Raises:
        ConfigError: the file is missing, empty, damaged, of another kind, or holds more than
            plain arrays.
    """
    modifiers = Modifiers.read(spec, context, key)
    content = read_source(spec["file"], context, f"{key}.file")
    return lambda: _finish_all(content, modifiers, context, key)


def read_source(name: Any, context: Context, key: str) -> Any:
    """Read the file's tensors on the CPU: a tensor, a dict of tensors, or a list of tensors."""
    if not isinstance(name, str):
        raise context.error(key, f"`file` is {name!r}, not a path")
    path = context.directory / expanded(name)
    if path.suffix.lower() not in _SOURCES:
        raise context.error(
            key, f"`{name}` is none of {', '.join(_SOURCES)}", "a picture goes in `image:`"
        )
    existing_file(path, suffixes=_SOURCES, place=context.place(key))
    try:
        content = _read(path)
    except Exception as error:  # readers raise anything at all on broken or hostile bytes
        raise context.error(key, *_explain(path, error)) from error
    tensors = _only(content, context, key, shown(path))
    if context.device.type != "meta":
        require_values((t for _, t in find(tensors, Tensor)), path, context.place(key))
    return tensors


def _read(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        with path.open("rb") as file:  # numpy leaves a broken archive open
            content = np.load(file, allow_pickle=False)
            if suffix == ".npy":
                return _from_array(content)
            with content as archive:
                return {name: _from_array(archive[name]) for name in archive.files}
    return read_tensors(path)


def _from_array(array: Any) -> Tensor:
    if not isinstance(array, np.ndarray):
        raise ValueError("its suffix is .npy, but its content has another format")
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(native)


def _explain(path: Path, error: Exception) -> tuple[str, str]:
    text = message_of(error)
    if path.suffix in (".pt", ".pth") and "weights_only" in text.lower():
        return (
            f"{shown(path)} holds more than tensors and is not loaded: it could run code",
            "save plain tensors, lists or dicts of them: `torch.save(tensor, path)`",
        )
    if "allow_pickle" in text:
        return (
            f"{shown(path)} holds Python objects and is not loaded: they could run code",
            "save a plain numeric array: `numpy.save(path, array.astype('float32'))`",
        )
    return (
        f"{shown(path)} cannot be read: {first_line(error)}",
        "the file is damaged, or its suffix is wrong; make or fetch it again",
    )


def _only(content: Any, context: Context, key: str, name: str) -> Any:
    """Return tensors in at most one list or mapping; a mapping of one tensor gives the tensor."""
    if isinstance(content, Tensor):
        return content
    if isinstance(content, (list, tuple)) and content:
        if all(isinstance(item, Tensor) for item in content):
            return list(content)
    elif isinstance(content, Mapping) and content:
        named = all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())
        if named:
            return next(iter(content.values())) if len(content) == 1 else dict(content)
    raise context.error(
        key,
        f"{name} holds {_describe(content)}, not tensors",
        "save a tensor, a list of tensors, or a dict of tensors by name",
    )


def _describe(content: Any) -> str:
    if isinstance(content, (list, tuple, Mapping)):
        return f"a {type(content).__name__} of {len(content)} entries that are not all tensors"
    return f"a {type(content).__name__}"


def _finish_all(content: Any, modifiers: Modifiers, context: Context, key: str) -> Any:
    if isinstance(content, Tensor):
        return finish(content, modifiers, context, key)
    if isinstance(content, dict):
        return {k: finish(v, modifiers, context, key) for k, v in content.items()}
    return [finish(item, modifiers, context, key) for item in content]
