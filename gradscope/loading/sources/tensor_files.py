"""``file:`` — tensors from .npy, .npz, .pt, .pth and .safetensors, none of which may run code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradscope.errors import message_of
from gradscope.images import existing_file, shown
from gradscope.loading.sources import Build, Context
from gradscope.loading.sources.tensors import Modifiers, finish
from gradscope.loading.weight_files import read_tensors, require_values
from gradscope.nesting import find
from gradscope.output_files import expanded

SUFFIXES = (".npy", ".npz", ".pt", ".pth", ".safetensors")


def plan_file(spec: Mapping[str, Any], context: Context, key: str) -> Build:
    """One array gives a tensor; several, by name, a mapping; a saved list or tuple a list.

    Raises:
        ConfigError: missing, empty, damaged, of another kind, or holding more than plain arrays.
    """
    modifiers = Modifiers.read(spec, context, key)
    content = read(spec["file"], context, f"{key}.file")
    return lambda: _finish_all(content, modifiers, context, key)


def read(name: Any, context: Context, key: str) -> Any:
    """The file's tensors on the CPU: a tensor, a dict of them, or a list of them."""
    if not isinstance(name, str):
        raise context.error(key, f"`file` is {name!r}, not a path")
    path = context.directory / expanded(name)
    if path.suffix.lower() not in SUFFIXES:
        raise context.error(
            key, f"`{name}` is none of {', '.join(SUFFIXES)}", "a picture goes in `image:`"
        )
    existing_file(path, suffixes=SUFFIXES, place=context.place(key))
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
        raise ValueError("its suffix says .npy and its content does not")
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(native)


def _explain(path: Path, error: Exception) -> tuple[str, str]:
    text = message_of(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
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
        f"{shown(path)} cannot be read: {first}",
        "the file is damaged or not what its suffix says; make or fetch it again",
    )


def _only(content: Any, context: Context, key: str, name: str) -> Any:
    """Tensors in at most one list or mapping; a mapping of one is that one."""
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
