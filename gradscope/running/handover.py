"""A's weights and batch for B, so that what differs is what the two do with them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gradscope.capture.names import named_parameters
from gradscope.loading.batches import Batch
from gradscope.loading.workload import Workload
from gradscope.nesting import replaced
from gradscope.running.rerun import rerun


def hand_batch(a: Workload, b: Workload) -> None:
    """B is called with A's first batch, in its own dtype and on its own device."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        own = tensor.dtype == a.dtype and tensor.is_floating_point()
        dtype = b.dtype if own else tensor.dtype
        copy = tensor.detach().to(b.device, dtype, copy=True)
        return copy.requires_grad_(tensor.requires_grad)

    with rerun(a) as step:
        parts = step.clone.args, step.clone.kwargs, step.clone.target
        batch = Batch(*replaced(parts, torch.Tensor, moved))
    b.batches = lambda: iter([batch])


def equal_parameters(a: Workload, b: Workload, names: Mapping[str, str]) -> tuple[int, int]:
    """How many of B's parameters are A's already, and how many there are.

    Constants, as those of a norm at its beginning, say nothing and are not counted.
    """
    ours, theirs = _parameters(a), _parameters(b)
    equal = [
        torch.equal(theirs[name].detach(), ours[known].detach().to(theirs[name]))
        for name, known in names.items()
        if bool((theirs[name] != theirs[name].flatten()[:1]).any())
    ]
    return sum(equal), len(equal)


@torch.no_grad()
def hand_weights(a: Workload, b: Workload, names: Mapping[str, str]) -> None:
    """B's parameters and buffers become A's; ``names`` has A's parameters by B's."""
    ours, theirs = _parameters(a), _parameters(b)
    for name, known in names.items():
        theirs[name].copy_(ours[known])
    modules = {name.rpartition(".")[0]: known.rpartition(".")[0] for name, known in names.items()}
    buffers = dict(a.model.named_buffers())
    for name, buffer in b.model.named_buffers():
        module, _, own = name.rpartition(".")
        value = buffers.get(f"{modules.get(module, module)}.{own}".lstrip("."))
        if value is not None and value.shape == buffer.shape:
            buffer.copy_(value)


def _parameters(workload: Workload) -> dict[str, torch.nn.Parameter]:
    return {named.name: p for p, named in named_parameters(workload.model).items()}
