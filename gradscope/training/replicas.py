"""Fingerprints of state that processes share: parameters, gradients, buffers, and the data that
each gets.

Nothing is communicated. Each rank writes its fingerprints and their shard; the reader of the files
knows which must be equal on which ranks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn

from gradscope.capture.differences import combined, fingerprints
from gradscope.capture.names import named_parameters
from gradscope.capture.shards import is_spread, local
from gradscope.nesting import find
from gradscope.records.training import Fingerprints

DDP, FSDP = "DistributedDataParallel", "FSDP"


def several_processes() -> bool:
    """Return True if this process belongs to a torch process group with others in it."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    return distributed.get_world_size() > 1


def wrapper_of(outer: nn.Module) -> str | None:
    """Return PyTorch's wrapper that spreads a model over processes; None without one."""
    if ddp_around(outer) is not None:
        return DDP
    return FSDP if any(map(_is_sharded, outer.modules())) else None


def batch_comes_first(module: nn.Module) -> bool:
    """Return True if the first axis is the batch's, as far as PyTorch's layers say."""
    return all(getattr(one, "batch_first", True) for one in module.modules())


def batch_size(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return the size of the first axis of a call's first tensor that has axes."""
    given = (tensor for _, tensor in find((args, kwargs), torch.Tensor))
    return next((tensor.shape[0] for tensor in given if tensor.dim()), None)


def input_digest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return one digest of all tensors in a call's arguments; None without tensors."""
    given = [tensor for _, tensor in find((args, kwargs), torch.Tensor)]
    return combined(fingerprints(given)) if given else None


def data_place(outer: nn.Module) -> str | None:
    """Return the rank's index among the ranks with different data; None if unknown.

    Ranks that hold parts of one layer (tensor parallelism) get the same data, as do the stages of a
    pipeline.
    """
    ddp = ddp_around(outer)
    if ddp is not None:
        return str(distributed.get_rank(ddp.process_group))
    if _in_stages():
        return None
    for module in outer.modules():
        if _is_sharded(module):
            return _place_in_mesh(module)
    if any(is_spread(p) for p in outer.parameters()):
        return None
    return str(distributed.get_rank())


def held_alike(
    model: int, outer: nn.Module, module: nn.Module, held: Collection[nn.Parameter]
) -> list[Fingerprints]:
    """Return the fingerprints of all state that other ranks hold too; the step has no number yet.

    Args:
        model: the model's id.
        outer: the model as the script calls it.
        module: the same without its wrappers.
        held: the parameters whose gradients are read: those of the optimizer that steps next.
    """
    found: list[Fingerprints] = []
    values = _copied(outer, module)
    gradients = {name: p.grad for name, p in values.items() if p in held and p.grad is not None}
    kinds: list[tuple[str, Mapping[str, torch.Tensor]]] = [
        ("parameter", values),
        ("gradient", gradients),
    ]
    ddp = ddp_around(outer)
    # Buffers that are broadcast before each forward may differ between ranks after it.
    if values and not (ddp is not None and _broadcasts_buffers(ddp)):
        kinds.append(("buffer", dict(module.named_buffers())))
    for kind, named in kinds:
        for part, some in _by_part(named).items():
            texts = fingerprints([local(tensor).detach() for tensor in some.values()])
            each = dict(zip(some, texts, strict=True))
            digest = combined([f"{name} {text}" for name, text in each.items()])
            found.append(Fingerprints(0, model, kind, part, digest, each))
    return found


def _copied(outer: nn.Module, module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters whose shard other ranks hold too, as far as known.

    FSDP's flat shards do not show their placement, and plain tensors next to sharded ones
    need not be equal.
    """
    named = {known.name: p for p, known in named_parameters(module).items()}
    ddp = ddp_around(outer)
    if ddp is not None:
        ignored = ddp.parameters_to_ignore
        return {name: p for name, p in named.items() if name not in ignored}
    if _in_stages() or is_flat(outer):
        return {}
    spread = {name: p for name, p in named.items() if is_spread(p)}
    return spread or named


def is_flat(outer: nn.Module) -> bool:
    """Return True if FSDP1 flattens its shards, which hides their placement."""
    return any(type(module).__name__ == "FullyShardedDataParallel" for module in outer.modules())


def _broadcasts_buffers(ddp: Any) -> bool:
    # The attribute's name since torch 2.14, and its earlier name.
    return bool(getattr(ddp, "forward_sync_buffers", None) or ddp.broadcast_buffers)


def _by_part(named: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Group the tensors by their shard; partial sums are left out."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in named.items():
        part = _part(tensor)
        if part is not None and tensor.layout == torch.strided:
            found.setdefault(part, {})[name] = tensor
    return found


def _part(tensor: Any) -> str | None:
    """Return the part of a split tensor: ``1:3`` is part 3 along the mesh's axis 1; "" is the full
    tensor."""
    if not is_spread(tensor):
        return ""
    if any(placement.is_partial() for placement in tensor.placements):
        return None
    places = tensor.device_mesh.get_coordinate()
    if places is None:  # this rank holds nothing of it
        return None
    split = enumerate(zip(tensor.placements, places, strict=True))
    return ",".join(f"{axis}:{at}" for axis, (one, at) in split if not one.is_replicate())


def ddp_around(outer: nn.Module) -> Any:
    """Return a model's DDP wrapper, also inside other wrappers; None if there is none."""
    module: Any = outer
    while isinstance(module, nn.Module):
        if type(module).__name__ == DDP:
            return module
        module = getattr(module, "_orig_mod", None) or getattr(module, "module", None)
    return None


def _is_sharded(module: nn.Module) -> bool:
    """Return True if ``fully_shard`` was called on the module, or FSDP1 wraps it."""
    kinds = {kind.__name__ for kind in type(module).__mro__}
    return bool(kinds & {"FSDPModule", "FullyShardedDataParallel"})


def _place_in_mesh(module: Any) -> str | None:
    # There is no public way to ask a module that was sharded for its mesh.
    with contextlib.suppress(AttributeError, IndexError):
        group = module._get_fsdp_state()._fsdp_param_group
        places = group.mesh_info.mesh.get_coordinate()
        return None if places is None else ",".join(map(str, places))
    return None


def _in_stages() -> bool:
    """Return True if the script has pipeline stages: equal names there are no copies."""
    return "torch.distributed.pipelining" in sys.modules
