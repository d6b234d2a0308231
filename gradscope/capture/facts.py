"""Facts about each module for the rules: type, calls, writes, settings."""

from __future__ import annotations

import ast
import difflib
import dis
import functools
import inspect
import math
import os
import re
import sys
import sysconfig
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from tokenize import TokenError
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.capture.measurements import version
from gradscope.capture.names import module_names, modules_of, named_modules, written_class
from gradscope.capture.stats import Measured, flags, resolve
from gradscope.nesting import find
from gradscope.records.modules import ModuleFacts, Unregistered

#: Plain numbers and switches of torch.nn's modules that a rule may read.
SETTINGS = (
    "p",
    "dropout",
    "inplace",
    "momentum",
    "eps",
    "affine",
    "track_running_stats",
    "negative_slope",
    "batch_first",
    "num_groups",
    "padding_idx",
)
#: The same settings of other libraries' dropout: torchvision's stochastic depth, timm's drop path.
_DROPOUT = ("p", "drop_prob")

#: Attributes in which a module keeps its own state.
_REGISTERS = ("_parameters", "_buffers", "_modules")

#: The ending of a flag's name that means "gradient", and the word before it.
_FLAG = re.compile(r"([a-z]+?)_*(?:grads?|gradients?|gradd|gard|garad|grd)_*")


def module_facts(
    model: nn.Module,
    calls: Mapping[nn.Module, int],
) -> tuple[ModuleFacts, ...]:
    """Return facts on every module of the model, also those that never ran.

    Args:
        model: the model.
        calls: the number of calls of each module.
    """
    facts = []
    by_kind: dict[type[nn.Module], tuple[tuple[str, ...], str | None, tuple[str, ...]]] = {}
    for module, named in named_modules(model).items():
        kind = written_class(module)
        if kind not in by_kind:
            by_kind[kind] = _kinds(kind), _library(kind), _tables(kind)
        kinds, library, tables = by_kind[kind]
        own = module.named_parameters(recurse=False)
        facts.append(
            ModuleFacts(
                name=named.name,
                type=kind.__name__,
                kinds=kinds,
                training=module.training,
                calls=calls.get(module, 0),
                aliases=named.aliases,
                parameters=tuple(_joined(named.name, name) for name, _ in own),
                settings=_settings(module, SETTINGS if kinds else _DROPOUT),
                misspelt=_misspelt_of_module(module),
                library=library,
                rows=_rows(module, tables) if tables else None,
            )
        )
    return tuple(facts)


def _tables(kind: type[nn.Module]) -> tuple[str, ...]:
    """Return the attributes of which a class's forward takes as many rows as its input has."""
    forward = inspect.getattr_static(kind, "forward", None)
    return _row_tables(forward.__code__) if isinstance(forward, FunctionType) else ()


def _rows(module: nn.Module, tables: Iterable[str]) -> str | None:
    """Return the first of these tables that is a tensor of [L, 1, D]: forward adds its row i to
    part i of its input's first axis."""
    for name in tables:
        table = module._buffers.get(name, module._parameters.get(name))
        if isinstance(table, torch.Tensor) and table.dim() == 3 and table.shape[1] == 1:
            return name
    return None


@functools.cache
def _row_tables(forward: CodeType) -> tuple[str, ...]:
    """Return the attributes of which forward takes as many rows as its input's first axis has, as
    in ``x + self.pe[:x.size(0)]``."""
    if not {"size", "shape", "len"} & {*forward.co_names}:
        return ()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    except (OSError, TypeError, SyntaxError, TokenError, ValueError, RecursionError):
        return ()  # without a text, as at a prompt, or with another one: the file was edited
    found = []
    for node in ast.walk(tree):
        match node:
            case (
                ast.BinOp(op=ast.Add(), left=ast.Name(id=given), right=table)
                | ast.AugAssign(op=ast.Add(), target=ast.Name(id=given), value=table)
            ):
                found += _sliced(table, given)
    return tuple(found)


def _sliced(table: ast.expr, given: str) -> list[str]:
    """Return the attribute in ``self.pe[:x.size(0)]``, where ``given`` is ``x``."""
    match table:
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id="self"), attr=name),
            slice=ast.Slice(lower=None, upper=ast.expr() as size, step=None)
            | ast.Tuple(elts=[ast.Slice(lower=None, upper=ast.expr() as size, step=None), *_]),
        ) if ast.unparse(size) in (f"{given}.size(0)", f"{given}.shape[0]", f"len({given})"):
            return [name]
    return []


def _library(kind: type[nn.Module]) -> str | None:
    """Return the installed package of a class; None for PyTorch, gradscope and the user's code."""
    package = kind.__module__.partition(".")[0]
    if package in ("torch", "gradscope"):
        return None
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return package if file.startswith(_installed()) else None


def of_library(model: nn.Module, parameter: str) -> bool:
    """Return True if an installed library's code decides about a parameter's gradient.

    The nearest class around it that is not PyTorch's own decides.
    """
    around = [model]
    for part in parameter.split(".")[:-1]:
        around.append(around[-1]._modules.get(part) or around[-1])
    for module in reversed(around):
        if type(module).__module__.partition(".")[0] != "torch":
            return _library(type(module)) is not None
    return False


@functools.cache
def _installed() -> tuple[str, ...]:
    return tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))


def misspelt_flags(parameter: nn.Parameter) -> tuple[str, ...]:
    """Return plain attributes with a name like ``requires_grad`` whose value differs from
    ``requires_grad``."""
    wanted = not parameter.requires_grad
    return tuple(name for name, value in _flags(parameter) if value is wanted)


class Buffers:
    """The model's buffers before a forward, to find out which of them it writes to.

    Call ``compare`` right after the forward; the results can be read with the other numbers of the
    device.
    """

    def __init__(self, model: nn.Module) -> None:
        self._before = {
            module: [
                (name, buffer, version(buffer), _bits(buffer) if _is_statistic(buffer) else None)
                for name, buffer in module.named_buffers(recurse=False)
                if not is_lazy(buffer)
            ]
            if module._buffers
            else []
            for module in modules_of(model)
        }
        self._names = module_names(model)
        self._compared = False
        self._written: dict[nn.Module, set[str]] = {}
        self._unsure: list[tuple[list[tuple[nn.Module, str]], Measured]] = []

    def entered(self, facts: Iterable[ModuleFacts]) -> tuple[ModuleFacts, ...]:
        """Return facts about the same modules, with the names of buffers that the forward wrote
        to."""
        written = {self._names[module]: names for module, names in self.written().items()}
        return tuple(
            replace(f, written=tuple(_joined(f.name, name) for name in written[f.name]))
            if f.name in written
            else f
            for f in facts
        )

    def compare(self) -> None:
        """Find the buffers that changed."""
        self._compared = True
        unsure: dict[torch.device, list[tuple[nn.Module, str, torch.Tensor]]] = {}
        for module, buffers in self._before.items():
            now = dict(module.named_buffers(recurse=False)) if buffers else {}
            for name, buffer, before, bits in buffers:
                other = now.get(name) is not buffer or version(buffer) != before
                if other or (bits is not None and bits.shape != _bits(buffer).shape):
                    self._written.setdefault(module, set()).add(name)
                elif bits is not None:
                    # Kernels of batch norm write to running statistics without autograd's
                    # knowledge.
                    differs = (_bits(buffer) != bits).any()
                    unsure.setdefault(buffer.device, []).append((module, name, differs))
        for differing in unsure.values():
            places = [(module, name) for module, name, _ in differing]
            self._unsure.append(
                (places, flags(torch.stack([differs for *_, differs in differing])))
            )

    def written(self) -> dict[nn.Module, tuple[str, ...]]:
        """Return the names of each module's own buffers that changed."""
        if not self._compared:
            self.compare()
        done = resolve(answers for _, answers in self._unsure)
        for places, answers in self._unsure:
            for (module, name), differs in zip(places, done[id(answers)].values or (), strict=True):
                if differs:
                    self._written.setdefault(module, set()).add(name)
        return {module: tuple(sorted(names)) for module, names in self._written.items()}


def _is_statistic(buffer: torch.Tensor) -> bool:
    """Return True if the buffer has one axis; masks and tables, which can be large, are reported by
    their version."""
    plain = type(buffer) is torch.Tensor and buffer.layout == torch.strided
    there = buffer.device.type != "meta" and buffer.numel() > 0
    return plain and there and buffer.dim() == 1 and buffer.is_floating_point()


def _bits(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.detach().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def unregistered(model: nn.Module, leaves: Collection[torch.Tensor]) -> tuple[Unregistered, ...]:
    """Return leaf tensors in plain attributes of modules.

    Other leaves are inputs, or belong to the loss.
    """
    left = {id(leaf): leaf for leaf in leaves}
    kept = []
    for module, named in named_modules(model).items() if left else ():
        for attribute, value in list(module.__dict__.items()):
            if attribute in _REGISTERS:
                continue
            inside = [tensor for _, tensor in find(value, torch.Tensor)]
            inside += [p for _, one in find(value, nn.Module) for p in one.parameters()]
            shapes = tuple(
                tuple(one.shape) for one in inside if left.pop(id(one), None) is not None
            )
            if shapes:
                kept.append(Unregistered(named.name, attribute, shapes))
    return tuple(kept)


def _joined(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _kinds(kind: type[nn.Module]) -> tuple[str, ...]:
    """Return the ``torch.nn`` classes among a class and its ancestors, nearest first."""
    return tuple(
        one.__name__
        for one in kind.__mro__
        if one is not nn.Module
        and one.__module__.startswith("torch.nn.")
        and not one.__module__.startswith("torch.nn.utils.")
    )


def _settings(module: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    attributes = module.__dict__
    found = {}
    for name in names:
        value = attributes.get(name, attributes)  # None is a setting too: momentum has it
        if value is None or type(value) in (bool, int) or _finite(value):
            found[name] = value
    return found


def _finite(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _misspelt_of_module(module: nn.Module) -> tuple[str, ...]:
    """Return flags on a module that have no effect on its parameters, such as ``requires_grad``.

    PyTorch reads no such attribute. A flag that agrees with all parameters below, or that the
    module's own class reads, is left out.
    """
    flags = _flags(module)
    if not flags:
        return ()
    actual = {parameter.requires_grad for parameter in module.parameters()}
    return tuple(
        name
        for name, value in flags
        if (not value) in actual and name not in _read_by(type(module))
    )


def _read_by(kind: type[nn.Module]) -> frozenset[str]:
    """Return the names of all attributes that the methods of a class read."""
    codes = [
        value.__code__
        for one in kind.__mro__[: kind.__mro__.index(nn.Module)]
        for value in vars(one).values()
        if isinstance(value, FunctionType)
    ]
    for code in codes:  # grows while it is read
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return frozenset(
        str(step.argval)
        for code in codes
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD")
    )


def _flags(owner: nn.Module | nn.Parameter) -> list[tuple[str, bool]]:
    attributes = owner.__dict__
    return [(k, v) for k, v in attributes.items() if type(v) is bool and _meant_requires_grad(k)]


@functools.cache
def _meant_requires_grad(name: str) -> bool:
    """Return True if a name resembles ``requires_grad`` or equals it."""
    match = _FLAG.fullmatch(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    if match is None or name.startswith("_"):
        return False
    return difflib.SequenceMatcher(None, match[1], "requires").ratio() >= 0.7
