"""Extra passes through a script's model: decides whether they have no effect on the script, and
makes them raise an error instead of waiting for other processes forever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from gradscope.capture.hooks import is_own
from gradscope.training.models import Model
from gradscope.training.traced_steps import foreign_modes

#: PyTorch's namespaces of collectives and of point-to-point communication.
_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})


class NeedsOtherRanks(RuntimeError):
    """An operation would have waited for other processes."""


class NoCollectives(TorchDispatchMode):
    """A mode in which operations raise ``NeedsOtherRanks`` instead of communicating.

    Attributes:
        refused: True if an operation raised.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # its own operations come first, and then this is asked again
        if func.namespace in _NAMESPACES and "wait_tensor" not in func.name():
            self.refused = True
            raise NeedsOtherRanks(f"{func.name()} waits for other processes")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_collectives() -> Iterator[NoCollectives | None]:
    """Return ``NoCollectives`` if there are several processes; else a context that does nothing."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        yield None
        return
    with NoCollectives() as mode:
        yield mode


def refusal(model: Model) -> str:
    """Return the reason why extra passes could affect the script, or be affected by it; "" if
    neither."""
    return "the model is compiled" if model.compiled else notices(model.module)


def notices(module: nn.Module) -> str:
    """Return the same reason for a model whose compiled parts may run again."""
    modes = _get_current_dispatch_mode_stack()
    if foreign_modes() or any(not isinstance(one, NoCollectives) for one in modes):
        return "the script has a mode active that sees every operation"
    if torch._C._autograd._profiler_enabled():
        return "the script profiles"
    everywhere = nn.modules.module
    hooks = [*everywhere._global_forward_hooks.values()]
    hooks += everywhere._global_forward_pre_hooks.values()
    for one in module.modules():
        name = type(one).__name__
        if isinstance(one, torch.jit.ScriptModule):
            return f"`{name}` is scripted"
        hooks += (*one._forward_hooks.values(), *one._forward_pre_hooks.values())
        if name == "OptimizedModule":  # its forward is the compiler's
            continue
        replacement = one.__dict__.get("forward")
        if replacement is not None and getattr(replacement, "__self__", None) is not one:
            return f"the `forward` of `{name}` was replaced"
        if isinstance(replacement, MethodType) and replacement.__func__.__closure__:
            return f"the `forward` of `{name}` was replaced"
    if any(not (is_own(hook) or _is_torchs(hook)) for hook in hooks):
        return "the script has forward hooks on the model, which would see the extra passes"
    return ""


def _is_torchs(hook: Any) -> bool:
    origin = getattr(hook, "__module__", None) or type(hook).__module__
    return str(origin).split(".")[0] == "torch"
