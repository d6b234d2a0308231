"""Where the parameters of a run of several processes are, and this one's norms of each group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from gradscope.capture.names import named_parameters
from gradscope.capture.shards import is_spread, local, placements_of
from gradscope.records.placements import DeviceMesh, GroupNorm, ParameterPlacement
from gradscope.training.models import Model
from gradscope.training.replicas import is_flat


class Placements:
    """Groups the parameters of each optimizer by how they and their gradients are placed.

    The norm of a group can be put together over processes from the norms of what each has of it;
    that of differently placed parameters together cannot. Nothing is communicated.
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
        """The norm of each group here, without the loss scale, and as the optimizer got it."""
        arrived: dict[int, list[float]] = {}
        got: dict[int, list[float]] = {}
        for parameter, norm in now.items():
            group = self._group(parameter, optimizer)
            got.setdefault(group, []).append(norm)
            arrived.setdefault(group, []).append(before.get(parameter, norm * scale) / scale)
        return tuple(
            (group, _finite(math.hypot(*arrived[group])), _finite(math.hypot(*got[group])))
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
        """Where all parameters are, where that is not known yet, or is another place now."""
        if not self._changed:
            return []
        self._changed = False
        placed = []
        for model in models:
            outer = model.outer()
            flat = outer is not None and is_flat(outer)
            for parameter, named in named_parameters(model.module).items():
                placed.append(self._placement(model.id, named.name, parameter, flat=flat))
        return [*(_mesh(number, mesh) for mesh, number in self._meshes.items()), *placed]

    def _placement(
        self, model: int, name: str, parameter: nn.Parameter, *, flat: bool
    ) -> ParameterPlacement:
        group, kinds = self._group_of.get(parameter, (None, ()))
        mesh = None
        if is_spread(parameter):
            found: Any = parameter.device_mesh  # type: ignore[attr-defined]
            mesh = self._meshes.setdefault(found, len(self._meshes))
        own = ("F",) if flat else _spelled(placements_of(parameter))
        return ParameterPlacement(
            model=model,
            name=name,
            shape=tuple(parameter.shape),
            local_shape=tuple(local(parameter).shape),
            mesh=mesh,
            placements=own,
            gradient_placements=_spelled(kinds) or own,
            norm_group=group,
        )


def _mesh(number: int, mesh: Any) -> DeviceMesh:
    """The record of a ``torch.distributed.DeviceMesh``."""
    ranks: torch.Tensor = mesh.mesh
    return DeviceMesh(
        id=number,
        names=tuple(mesh.mesh_dim_names or ()),
        shape=tuple(ranks.shape),
        ranks=tuple(ranks.flatten().tolist()),
        coordinate=tuple(mesh.get_coordinate() or ()),
    )


def _spelled(placements: Sequence[Any]) -> tuple[str, ...]:
    """As the run file has them: "S(0)", "R", "P"."""
    return tuple(
        "R" if one.is_replicate() else "P" if one.is_partial() else f"S({one.dim})"
        for one in placements
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
