"""Modules that only wrap the user's own, which is run and named without them.

To add one, enter its class, the attribute that has the module, and the sentence that says so.
"""

from __future__ import annotations

from torch import nn

_ALONE = "runs as its `module`, on this process's batch alone, and names are that module's"
#: Class → the attribute, and what is reported. By name: to import them all would take seconds.
_WRAPPERS = {
    "OptimizedModule": (
        "_orig_mod",
        "torch.compile: the model is inspected through its eager module, as it was written",
    ),
    "DataParallel": ("module", f"DataParallel: {_ALONE}"),
    "DistributedDataParallel": (
        "module",
        f"DistributedDataParallel: {_ALONE}; gradients are this process's own, before averaging",
    ),
}


def unwrapped(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """The module inside of its wrappers, and a sentence for each wrapper."""
    messages: list[str] = []
    while (wrapper := _wrapper(model)) is not None:
        attribute, sentence = _WRAPPERS[wrapper]
        model = getattr(model, attribute)
        messages.append(sentence)
    return model, messages


def compiled_of(model: nn.Module) -> nn.Module | None:
    """The model as ``torch.compile`` gave it, where nothing else is around it."""
    return model if _wrapper(model) == "OptimizedModule" else None


def _wrapper(model: nn.Module) -> str | None:
    """Which of torch's wrappers it is, itself or a class derived from one."""
    for kind in type(model).__mro__:
        if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
            return kind.__name__
    return None
