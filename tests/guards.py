"""Guards against state that gradscope leaves behind; conftest.py makes fixtures of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

import gradscope

PACKAGE = str(Path(gradscope.__file__).parent)


@contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Assert that the block leaves the model and the random state as they are."""
    modules = [(m, m.training, _hook_ids(m)) for m in model.modules()]
    parameters = [(p, p.requires_grad, p.grad, _copy(p.grad), _copy(p)) for p in model.parameters()]
    buffers = [(b, _copy(b)) for b in model.buffers()]
    torch_state, python_state, numpy_state = _random_state()
    yield
    for module, training, hooks in modules:
        assert module.training is training
        assert _hook_ids(module) == hooks, f"hooks of {type(module).__name__} differ"
    for parameter, requires_grad, grad, grad_copy, value in parameters:
        assert parameter.requires_grad is requires_grad
        assert parameter.grad is grad, "another .grad"
        assert _same(parameter.grad, grad_copy), ".grad has other values"
        assert _same(parameter, value), "a parameter moved"
    for buffer, value in buffers:
        assert _same(buffer, value), "a buffer moved"
    after = _random_state()
    assert torch.equal(after[0], torch_state), "torch's random state moved"
    assert after[1] == python_state, "random's state moved"
    assert str(after[2]) == str(numpy_state), "numpy's random state moved"


def set_by_gradscope() -> bool:
    """Return True if gradscope's code, or torch's wrapper for it, made the handle."""
    frame = sys._getframe(2)
    for _ in range(3):
        if frame is None:
            return False
        if frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def still_set(handle: RemovableHandle) -> bool:
    """Return True if the hook is there: neither removed nor gone with its tensor."""
    hooks = handle.hooks_dict_ref()
    return hooks is not None and handle.id in hooks


def switches() -> dict[str, object]:
    """The process-wide settings of torch that a run could turn."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "threads": torch.get_num_threads(),
        "global hooks": _hook_ids(torch.nn.modules.module),
    }


def _hook_ids(owner: object) -> dict[str, list[int]]:
    return {name: list(value) for name, value in vars(owner).items() if name.endswith("_hooks")}


def _random_state() -> tuple[torch.Tensor, object, object]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _same(tensor: torch.Tensor | None, copy: torch.Tensor | None) -> bool:
    if tensor is None or copy is None:
        return tensor is copy
    return tensor.shape == copy.shape and torch.equal(
        torch.nan_to_num(tensor), torch.nan_to_num(copy)
    )
