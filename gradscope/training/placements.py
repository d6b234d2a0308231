"""The placement of a run's parameters on processes: this process's norms of each group, and the
parameters that DDP missed when it raised.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace
from tokenize import TokenError
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from gradscope.capture.names import named_parameters
from gradscope.capture.shards import is_spread, mesh_record, placement, placements_of
from gradscope.explain.shared.frames import shown
from gradscope.records.run import DeviceMesh, GroupNorm, ParameterPlacement
from gradscope.records.tensors import finite_or_none
from gradscope.training.models import Model
from gradscope.training.replicas import ddp_around, is_flat

#: For FSDP1's flat shards, which do not show their placement.
_FLAT = ("F",)


class Placements:
    """Groups the parameters of each optimizer by how they and their gradients are placed.

    From the processes' norms of their parts, a global norm can be computed for such a group, but
    not for parameters with different placements. Nothing is communicated.
    """

    def __init__(self) -> None:
        self._meshes: dict[Any, int] = {}
        self._groups: dict[object, int] = {}
        #: Weak: a script may make its models anew.
        self._group_of: MutableMapping[nn.Parameter, tuple[int, tuple[Any, ...]]]
        self._group_of = WeakIdKeyDictionary()
        self._changed = False

    def norms(
        self,
        optimizer: str,
        before: Mapping[nn.Parameter, float],
        now: Mapping[nn.Parameter, float],
        scale: float,
    ) -> tuple[GroupNorm, ...]:
        """Return this process's norm of each group, without the loss scale and as the optimizer got
        it."""
        arrived: dict[int, list[float]] = {}
        got: dict[int, list[float]] = {}
        for parameter, norm in now.items():
            group = self._group(parameter, optimizer)
            got.setdefault(group, []).append(norm)
            arrived.setdefault(group, []).append(before.get(parameter, norm * scale) / scale)
        return tuple(
            (
                group,
                finite_or_none(math.hypot(*arrived[group])),
                finite_or_none(math.hypot(*got[group])),
            )
            for group in sorted(got)
        )

    def _group(self, parameter: nn.Parameter, optimizer: str) -> int:
        gradient = parameter.grad
        kinds = () if gradient is None else placements_of(gradient)
        known = self._group_of.get(parameter)
        if known is not None and known[1] == kinds:
            return known[0]
        mesh = getattr(parameter, "device_mesh", None) if is_spread(parameter) else None
        alike = optimizer, mesh, placements_of(parameter), kinds
        group = self._groups.setdefault(alike, len(self._groups))
        self._group_of[parameter] = group, kinds
        self._changed = True
        return group

    def records(self, models: Iterable[Model]) -> list[DeviceMesh | ParameterPlacement]:
        """Return the placement of all parameters if it is new or has changed."""
        if not self._changed:
            return []
        self._changed = False
        placed = []
        for model in models:
            outer = model.outer()
            flat = outer is not None and is_flat(outer)
            for parameter, named in named_parameters(model.module).items():
                group, kinds = self._group_of.get(parameter, (None, ()))
                one = placement(model.id, named.name, parameter, self._meshes, kinds, group)
                if flat:
                    gradient = one.gradient_placements or _FLAT
                    one = replace(one, placements=_FLAT, gradient_placements=gradient)
                placed.append(one)
        return [*(mesh_record(number, mesh) for mesh, number in self._meshes.items()), *placed]


_GAVE_UP = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+:([\d ]+)")


def unused_parameters(error: BaseException, models: Iterable[Model]) -> dict[str, Any] | None:
    """Return the details of the event ``unused-parameters``; None for any other error.

    DDP counts the parameters that it manages: those that require a gradient, in their order.
    """
    text = str(error)
    indices = _INDICES.search(text)
    if _GAVE_UP not in text or indices is None:
        return None
    missed = [int(number) for number in indices[1].split()]
    for model in models:
        outer = model.outer()
        ddp = None if outer is None else ddp_around(outer)
        if ddp is None:
            continue
        ignored = ddp.parameters_to_ignore
        managed = [
            name
            for name, parameter in ddp.module.named_parameters()
            if parameter.requires_grad and name not in ignored
        ]
        if missed and missed[-1] < len(managed):
            names = [managed[i] for i in missed]
            module, location = _skipped(ddp.module, names)
            return {
                "model": model.id,
                "parameters": names,
                "module": module,
                "location": location,
            }
    return None


def _skipped(root: nn.Module, names: list[str]) -> tuple[str | None, str | None]:
    """Return the outermost module whose parameters were all unused, and the line that would call
    it."""
    lost = set(names)
    for name, module in root.named_modules():
        own = {f"{name}.{one}" for one, _ in module.named_parameters()}
        if name and own and own <= lost:
            return name, _line_of(root, name)
    return None, _line_of(root, names[0])


def _line_of(root: nn.Module, name: str) -> str | None:
    """Return the line in which a parent's forward names the attribute that holds the module."""
    parts = name.split(".")
    for depth in reversed(range(len(parts))):
        around = root.get_submodule(".".join(parts[:depth]))
        location = _mention(type(around).forward, parts[depth])
        if location is not None:
            return location
    return None


def _mention(function: Any, attribute: str) -> str | None:
    """Return the first line of a function with ``self.attribute``, as ``file:line``."""
    try:
        lines, start = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, TokenError):  # its source is not there
        return None
    found = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == attribute
    ]
    return f"{shown(file)}:{start + min(found) - 1}" if found and file else None
