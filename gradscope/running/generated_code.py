"""Finds the kernel that computed a tensor, in the code that inductor generates."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import torch

#: The function that runs a graph, and a name in its module.
_CALL, _KERNELS = "call", "extern_kernels"
_RUNS = re.compile(r"(?:cpp_|triton_|extern_kernels\.|torch\.ops\.)(?!gradscope)")
_INPUT = re.compile(r"primals_(\d+)")
_TENSOR = re.compile(r"(?:reinterpret_tensor\()?(\w+)")


def running_graph() -> FrameType | None:
    """Return the frame of the graph that calls a probe; None if its code was not generated."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name != _CALL or _KERNELS not in frame.f_globals):
        frame = frame.f_back
    return frame


def positions(graph: FrameType, parameters: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the positions of parameters among a forward graph's inputs, from 0."""
    inputs = {
        value.data_ptr(): int(found[1]) - 1
        for name, value in graph.f_locals.items()
        if (found := _INPUT.fullmatch(name)) and isinstance(value, torch.Tensor)
    }
    found_at = {name: inputs.get(one.data_ptr()) for name, one in parameters.items()}
    return {name: at for name, at in found_at.items() if at is not None}


def probed_kernel(file: str, number: int) -> str | None:
    """Return the kernel that computed a probe's tensor, as ``file:line``; None if unknown.

    Args:
        file: the generated code.
        number: the line that calls the probe, from 1.
    """
    lines = _lines(file)[:number]
    _, _, handed = lines[-1].partition("observe.default(") if lines else ("", "", "")
    given = _TENSOR.match(handed)
    return None if given is None else _place(file, _kernel(lines[:-1], given[1]))


def gradient_kernel(file: str, number: int, position: int) -> str | None:
    """Return the kernel that computed the gradient of a graph's input, as ``file:line``; None if
    unknown.

    Args:
        file: the generated backward.
        number: a line in it, from 1.
        position: the position of the input.
    """
    lines = _lines(file)
    starts = (n for n in range(number, len(lines)) if lines[n].strip().startswith("return ("))
    end = next(starts, None)
    if end is None:
        return None
    results = _parts(lines[end].strip().removeprefix("return (").removesuffix(")"))
    if position >= len(results):
        return None
    given = _TENSOR.match(results[position].strip())
    return None if given is None else _place(file, _kernel(lines[:end], given[1]))


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _place(file: str, at: int | None) -> str | None:
    return None if at is None else f"{file}:{at + 1}"


def _kernel(lines: Sequence[str], buffer: str) -> int | None:
    """Return the first kernel that gets a buffer after its allocation: that one writes it."""
    named, found = re.compile(rf"\b{buffer}\b"), None
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at].strip()
        if not named.search(line):
            continue
        if _RUNS.search(line):
            found = at
        if line.startswith(f"{buffer} = "):
            source = _TENSOR.match(line.partition(" = ")[2])
            if found is None and source is not None:  # another name of a buffer, or a part of it
                return _kernel(lines[:at], source[1])
            return found
    return None  # an input of the graph


def _parts(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
