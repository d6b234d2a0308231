"""PyTorch's process-wide settings: the caller's again after a run, whatever the model set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _determinism() -> tuple[bool, bool]:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warn_only


def _set_determinism(setting: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(setting[0], warn_only=setting[1])


def _cudnn() -> tuple[bool, bool, bool]:
    cudnn: Any = torch.backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic


def _set_cudnn(setting: tuple[bool, bool, bool]) -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = setting


def _autocast() -> list[bool]:
    return [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]


def _set_autocast(setting: list[bool]) -> None:
    for device, on in zip(("cpu", "cuda"), setting, strict=True):
        torch.set_autocast_enabled(device, on)


def _modes() -> list[int]:
    """How many function modes and how many dispatch modes are on."""
    return [len(stack()) for stack, _ in _STACKS]


def _leave_modes(before: list[int]) -> None:
    """Leave what the model's code entered and never left."""
    for (stack, pop), count in zip(_STACKS, before, strict=True):
        for _ in range(len(stack()) - count):
            pop()


_functions: Any = torch.overrides
_dispatch: Any = torch.utils._python_dispatch
#: What lists the modes that are on, and what leaves the innermost.
_STACKS: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
    (_functions._get_current_function_mode_stack, _functions._pop_mode),
    (_dispatch._get_current_dispatch_mode_stack, _dispatch._pop_mode),
]
#: How a setting is read, and how it is put back. Modes first: they see what the others call.
_SWITCHES: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (_modes, _leave_modes),
    (_anomaly, lambda setting: torch.autograd.set_detect_anomaly(*setting)),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (_determinism, _set_determinism),
    (_cudnn, _set_cudnn),
    (_autocast, _set_autocast),
]


@contextmanager
def switches_restored() -> Iterator[None]:
    """PyTorch's settings are after the block as they were; inside it, gradients are recorded.

    Also where the caller has switched them off: who asks for gradients wants them.
    """
    found = [read() for read, _ in _SWITCHES]
    with ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        try:
            yield
        finally:
            for (read, put_back), setting in zip(_SWITCHES, found, strict=True):
                if read() != setting:
                    put_back(setting)
