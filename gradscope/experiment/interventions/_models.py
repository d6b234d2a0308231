"""Finds the models that the script trains, and changes their calls."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.capture.calls import in_backward
from gradscope.capture.hooks import hook_calls, hook_optimizers, hookable_modules, replace
from gradscope.leaks.meaning import LABELS, role_named
from gradscope.nesting import find, replaced
from gradscope.training.discovery import outermost_modules

#: Changed arguments of a call: new (args, kwargs), or None for no change.
Change = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]


def on_models(patches: ExitStack, found: Callable[[nn.Module], None]) -> None:
    """Call ``found`` once with each outermost model that an optimizer may train.

    Models are searched when an optimizer is made.
    """
    known: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def search() -> None:
        for model in outermost_modules():
            if model not in known:
                known.add(model)
                found(model)

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def patch_step_function(self: Optimizer) -> None:
            original(self)
            search()

        return patch_step_function

    replace(patches, Optimizer, "_patch_step_function", made)


def on_calls(
    patches: ExitStack,
    notes: dict[str, Any],
    change: Change,
    returned: Callable[[Any], None] = lambda output: None,
) -> None:
    """Apply ``change`` to the inputs of each outermost call with gradients.

    A call is outermost if it is not inside another call; the script may also call a part of the
    model. ``notes`` counts "calls" and changed calls. It counts a call as "own_loss" if it returns
    a loss and no argument is named as labels: the targets may be among the inputs.
    """
    depth, labelled = 0, False
    notes.update(calls=0, changed=0, own_loss=0)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal depth, labelled
        depth += 1
        if depth > 1 or not torch.is_grad_enabled() or in_backward():
            return None
        notes["calls"] += 1
        with torch.no_grad():
            given = given_tensors(module, args, kwargs)
            labelled = any(role_named(name, tensor) == LABELS for name, tensor, _ in given)
            new = change(module, args, kwargs)
        notes["changed"] += new is not None
        return new

    def after(_: nn.Module, __: Any, ___: Any, output: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth or not torch.is_grad_enabled() or in_backward():
            return
        returned(output)
        if not labelled:
            tensors = [tensor for _, tensor in find(output, torch.Tensor)]
            notes["own_loss"] += any(one.dim() == 0 and one.requires_grad for one in tensors)

    def step_begins(*_: Any) -> None:
        nonlocal depth
        depth = 0  # a forward that raised has left its calls open

    def found(model: nn.Module) -> None:
        for module in hookable_modules(model):
            for hook in hook_calls(module, before, after):
                patches.callback(hook.remove)

    torch.compiler.set_stance("force_eager")  # a compiled call would not come here
    patches.callback(torch.compiler.set_stance, "default")
    for handle in hook_optimizers(step_begins, lambda *_: None):
        patches.callback(handle.remove)
    on_models(patches, found)


def is_data(tensor: torch.Tensor) -> bool:
    """Return True for a tensor of the script's data: not computed by a model, and not trained."""
    return tensor.grad_fn is None and not tensor.requires_grad and tensor.dim() > 0


class Given(NamedTuple):
    """A tensor of a call, with the argument's name, or its key in a mapping, and its place.

    The place contains the argument and the tensor's id, because one tensor may be both input and
    labels.
    """

    name: str
    tensor: torch.Tensor
    place: tuple[str, int]


def given_tensors(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Given]:
    """Yield the tensors of a call."""
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        names = []
    for path, tensor in find((args, kwargs), torch.Tensor):
        _, first, *rest = path.split(".")
        name = names[int(first)] if first.isdecimal() and int(first) < len(names) else first
        key = next((key for key in reversed(rest) if not key.isdecimal()), name)
        yield Given(key, tensor, (first, id(tensor)))


def with_tensors(
    args: tuple[Any, ...], kwargs: dict[str, Any], new: dict[tuple[str, int], torch.Tensor]
) -> Any:
    """Return the call with other tensors at these places; None if there is none."""
    if not new:
        return None

    def changed(argument: str, value: Any) -> Any:
        return replaced(value, torch.Tensor, lambda one: new.get((argument, id(one)), one))

    positional = tuple(changed(str(i), value) for i, value in enumerate(args))
    return positional, {name: changed(name, value) for name, value in kwargs.items()}
