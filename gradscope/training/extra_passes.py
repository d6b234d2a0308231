"""Decides whether a script's model can run extra passes without effect on the script."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gradscope.capture.hooks import is_own
from gradscope.training.cause_tracer import foreign_modes
from gradscope.training.models import Model
from gradscope.training.nan_detector.no_collectives import NoCollectives


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
