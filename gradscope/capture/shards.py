"""Returns this process's part of tensors that are spread over processes, without communication.

Nearly every operation on a ``DTensor`` may communicate, even a comparison and ``item()``. A process
that communicates alone waits for the others forever. So neither this file nor any higher floor
computes with a ``DTensor``. The last functions say in words where parameters and gradients are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from gradscope.capture.names import named_parameters
from gradscope.records.run import DeviceMesh, ParameterPlacement

_UNCOUNTED = itertools.count(1)
#: The classes of tensors that override nothing.
PLAIN = (torch.Tensor, nn.Parameter)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part: the shard of a ``DTensor``, any other tensor itself.

    Waits for a communication that the script has already started.
    """
    if type(tensor) in PLAIN:
        return tensor
    # Not `to_local`, which makes a node of the graph.
    part: Any = getattr(tensor, "_local_tensor", tensor)
    if type(part).__name__ == "AsyncCollectiveTensor":
        waited: torch.Tensor = part.wait()
        return waited
    return part if isinstance(part, torch.Tensor) else tensor


def is_spread(tensor: torch.Tensor) -> bool:
    """Return True if it is a ``DTensor``."""
    return type(tensor) not in PLAIN and hasattr(tensor, "_local_tensor")


def is_plain_or_spread(tensor: torch.Tensor) -> bool:
    """Return True for a plain tensor or a ``DTensor``. Other subclasses, such as quantized tensors,
    may not support our operations."""
    return type(tensor) in PLAIN or hasattr(tensor, "_local_tensor")


def placements_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return PyTorch's placements of a ``DTensor``, one for each dimension of its mesh."""
    found: tuple[Any, ...] = getattr(tensor, "placements", ()) if is_spread(tensor) else ()
    return found


def version_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return a value that changes with each write to a tensor.

    For a ``DTensor``, and under a dispatch mode, PyTorch does not count all writes, such as those
    of ``clip_grad_norm_``; then each call returns a new value.
    """
    if type(tensor) in PLAIN and not torch._C._len_torch_dispatch_stack():
        return id(tensor), tensor._version
    return id(tensor), -next(_UNCOUNTED)


def versions_of(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Return ``version_of`` each tensor, without a Python call for each."""
    if torch._C._len_torch_dispatch_stack():
        return list(map(version_of, tensors))
    return [(id(t), t._version) if type(t) in PLAIN else version_of(t) for t in tensors]


def placements(model: nn.Module) -> list[DeviceMesh | ParameterPlacement]:
    """Return the placements of all parameters with their present gradients; the model's number is
    1."""
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
    """Return the placement of one parameter and its gradient; its mesh gets a number in
    ``meshes``."""
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
    """Make the record of a ``torch.distributed.DeviceMesh``."""
    ranks: torch.Tensor = mesh.mesh
    return DeviceMesh(
        id=number,
        names=tuple(mesh.mesh_dim_names or ()),
        shape=tuple(ranks.shape),
        ranks=tuple(ranks.flatten().tolist()),
        coordinate=tuple(mesh.get_coordinate() or ()),
    )


def _spelled(found: Sequence[Any]) -> tuple[str, ...]:
    """Return placements in the records' form: "S(0)", "R", "P"."""
    return tuple(
        "R" if one.is_replicate() else "P" if one.is_partial() else f"S({one.dim})" for one in found
    )
