"""Saved bytes against what ``saved_tensors_hooks`` sees in its own forward.

The hooks say what autograd keeps while each call runs; nothing runs backward under them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from truth.cases import ALL, Case, weighted_sum
from truth.steps import report_of

pytestmark = pytest.mark.slow

#: Without checkpoints: there every look into a node would recompute its block.
CASES = (
    "resnet18",
    "densenet121",
    "googlenet",
    "swin",
    "lstm",
    "repeated-cell",
    "tied-transformer",
    "in-place",
    "shared-input",
    "pass-through",
    "called-twice",
    "plain",
    "autocast",
)


def kept(case: Case) -> dict[tuple[str, int], int]:
    """Bytes of distinct storages that autograd saved while each call ran, parameters excluded."""
    model, inputs = case.build()
    args, kwargs = case.arguments(inputs)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    names = {id(module): name for name, module in model.named_modules()}
    running: list[dict[int, int]] = []
    calls: dict[tuple[str, int], dict[int, int]] = {}
    alive: list[Tensor] = []  # or an address would come to stand for two storages

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        alive.append(tensor)
        if storage.data_ptr() not in own:
            for call in running:
                call[storage.data_ptr()] = storage.nbytes()
        return tensor

    @contextmanager
    def counted(module: nn.Module) -> Iterator[None]:
        name = names[id(module)]
        number = sum(other == name for other, _ in calls)
        running.append(calls.setdefault((name, number), {}))
        yield
        running.pop()

    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with counted(module):
            return original(module, *args, **kwargs)

    autocast = torch.autocast("cpu", case.autocast or torch.bfloat16, enabled=bool(case.autocast))
    nn.Module.__call__ = call
    try:
        torch.manual_seed(0)
        with autocast, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            weighted_sum(model(*args, **kwargs))
    finally:
        nn.Module.__call__ = original
    return {key: sum(storages.values()) for key, storages in calls.items()}


@pytest.mark.parametrize(
    "case", [case for case in ALL if case.name in CASES], ids=lambda case: case.name
)
def test_saved_bytes_are_what_autograd_keeps(case: Case) -> None:
    report = report_of(case)
    found = {(row["name"], row["call"]): row["saved_bytes"] for row in report["calls"]}
    true = kept(case)
    assert found.keys() == true.keys()
    different = {key: (found[key], size) for key, size in true.items() if found[key] != size}
    assert not different, f"{len(different)} of {len(true)}: {list(different.items())[:10]}"
