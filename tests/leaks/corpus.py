"""Planted leaks with mended twins (``programs/``) and honest look-alikes (``honest/``).

A program has ``Leaky`` and ``Mended``, ``inputs()``, and ``OPTIONS``: what a user must say.
What is wrong with it:

- ``AXIS``: one of ``AXES``; ``ALSO``: other axes that leak too.
- ``CALL``: the innermost module whose own forward first lets the information through.
- ``# leak`` on a line: the fault, or the operation by which the information passes. Where the two
  are lines apart (a wrong mask, and the softmax under it) both are marked, and either is right.

``OPTIONS["axis"]["order"]`` is the dimension of a set's members. ``labels`` of a sequence may be
seen after their position, never at it (teacher forcing). Here ``mask`` is what a model should
predict unseen (``bool_masked_pos``, True where hidden); an ``attention_mask`` that is ignored is
``padding``, and an instrument may say ``mask`` as well. Padding is added on the side that has it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

HERE = Path(__file__).parent
AXES = frozenset({"time", "batch", "documents", "padding", "mask", "label", "order", "cache"})


@dataclass(frozen=True)
class Program:
    """A model that leaks on ``axis``, and perhaps on those of ``also``, and one that does not."""

    name: str
    path: Path
    bug: str
    leaky: type[nn.Module]
    mended: type[nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    options: dict[str, object]
    axis: str
    also: frozenset[str]
    call: str
    lines: frozenset[int]


@dataclass(frozen=True)
class Honest:
    """A model that looks as if it leaked."""

    name: str
    path: Path
    why: str
    model: type[nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    options: dict[str, object]


@cache
def programs() -> tuple[Program, ...]:
    return tuple(_program(path) for path in sorted((HERE / "programs").glob("*.py")))


@cache
def honest() -> tuple[Honest, ...]:
    return tuple(_honest(path) for path in sorted((HERE / "honest").glob("*.py")))


def built(kind: type[nn.Module]) -> nn.Module:
    """The model in eval mode, with the same weights each time; the random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind().eval()


def _program(path: Path) -> Program:
    module = _imported(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    return Program(
        name=path.stem,
        path=path,
        bug=module.__doc__ or "",
        leaky=module.Leaky,
        mended=module.Mended,
        inputs=module.inputs,
        options=module.OPTIONS,
        axis=module.AXIS,
        also=frozenset(getattr(module, "ALSO", ())),
        call=module.CALL,
        lines=frozenset(n for n, line in enumerate(lines, 1) if line.endswith("  # leak")),
    )


def _honest(path: Path) -> Honest:
    module = _imported(path)
    return Honest(
        path.stem, path, module.__doc__ or "", module.Model, module.inputs, module.OPTIONS
    )


def _imported(path: Path) -> ModuleType:
    """Under its own name; in ``sys.modules``, where the source of a class is looked for."""
    name = f"leaks_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
