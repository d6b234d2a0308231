"""The placement of parameters and gradients on processes, in words."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from gradscope.capture.names import named_parameters
from gradscope.capture.shards import is_spread, local, placements_of
from gradscope.records.parallel import DeviceMesh, ParameterPlacement


def placements(model: nn.Module) -> list[DeviceMesh | ParameterPlacement]:
    """Of all parameters with their gradients as they are now; the model's number is 1."""
    meshes: dict[Any, int] = {}
    placed = [
        placement(1, named.name, p, meshes, () if p.grad is None else placements_of(p.grad))
        for p, named in named_parameters(model).items()
    ]
    return [*(mesh_record(number, mesh) for mesh, number in meshes.items()), *placed]


def placement(
    model: int,
    name: str,
    parameter: nn.Parameter,
    meshes: MutableMapping[Any, int],
    gradient: Sequence[Any],
    group: int | None = None,
) -> ParameterPlacement:
    """Of one, with PyTorch's placements of its gradient; its mesh gets a number in ``meshes``."""
    mesh = None
    if is_spread(parameter):
        found: Any = parameter.device_mesh  # type: ignore[attr-defined]
        mesh = meshes.setdefault(found, len(meshes))
    own = _spelled(placements_of(parameter))
    return ParameterPlacement(
        model=model,
        name=name,
        shape=tuple(parameter.shape),
        local_shape=tuple(local(parameter).shape),
        mesh=mesh,
        placements=own,
        gradient_placements=_spelled(gradient) or own,
        norm_group=group,
    )


def mesh_record(number: int, mesh: Any) -> DeviceMesh:
    """The record of a ``torch.distributed.DeviceMesh``."""
    ranks: torch.Tensor = mesh.mesh
    return DeviceMesh(
        id=number,
        names=tuple(mesh.mesh_dim_names or ()),
        shape=tuple(ranks.shape),
        ranks=tuple(ranks.flatten().tolist()),
        coordinate=tuple(mesh.get_coordinate() or ()),
    )


def _spelled(found: Sequence[Any]) -> tuple[str, ...]:
    """As the records have them: "S(0)", "R", "P"."""
    return tuple(
        "R" if one.is_replicate() else "P" if one.is_partial() else f"S({one.dim})" for one in found
    )
