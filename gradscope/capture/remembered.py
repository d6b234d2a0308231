"""Remembers tensors by identity, without keeping them alive.

``torch.utils.swap_tensors``, which conversions of modules may use, refuses a tensor that has a weak
reference. So parameters and buffers are remembered by their place in a module, other tensors
weakly, and this reference is released while the tensor's content is swapped.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from gradscope.capture.hooks import replace


class RememberedTensor:
    """A tensor of the script's: the same Python object, even after its content was swapped.

    Attributes:
        swapped: True if its content is another tensor's since it was remembered.
    """

    __slots__ = ("__weakref__", "_reference", "swapped")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._reference: _Reference | None = _reference(tensor, self)
        self.swapped = False

    def __call__(self) -> torch.Tensor | None:
        """Return the tensor; None if the script has freed it."""
        if self._reference is None:  # a swap has failed
            _restore()
        return None if self._reference is None else self._reference()

    def is_still(self, tensor: torch.Tensor) -> bool:
        """Return True if this is the tensor, with the content that it had."""
        return not self.swapped and self() is tensor


class _Reference(weakref.ref[torch.Tensor]):
    """gradscope's own weak reference, which differs from the script's by its class."""

    __slots__ = ("holder",)
    holder: weakref.ref[RememberedTensor]


def _reference(tensor: torch.Tensor, holder: RememberedTensor) -> _Reference:
    made = _Reference(tensor)
    made.holder = weakref.ref(holder)
    return made


#: While ``torch.utils.swap_tensors`` runs: those whose reference is let go.
_swapping: list[tuple[RememberedTensor, torch.Tensor]] = []


def remembered(tensor: torch.Tensor) -> RememberedTensor:
    """Return the ``RememberedTensor`` of a tensor with its present content."""
    if weakref.getweakrefcount(tensor):
        for reference in weakref.getweakrefs(tensor):
            if type(reference) is _Reference:
                found = reference.holder()
                if found is not None and not found.swapped:
                    return found
    return RememberedTensor(tensor)


def _let_go(tensor: torch.Tensor) -> None:
    for reference in weakref.getweakrefs(tensor):
        if type(reference) is _Reference:
            found = reference.holder()
            if found is not None:
                found._reference, found.swapped = None, True
                _swapping.append((found, tensor))


def _restore() -> None:
    while _swapping:
        found, tensor = _swapping.pop()
        found._reference = _reference(tensor, found)


def observe_swaps(patches: ExitStack, graph_is_held: Callable[[], None]) -> None:
    """Release both tensors while ``torch.utils.swap_tensors`` runs, until the stack is closed.

    The function itself stays, for a script may have imported it: the ``weakref`` that it asks for a
    tensor's references is replaced.

    Args:
        graph_is_held: lets go of graphs. It is called for a tensor that is in one.
    """
    asked = types.ModuleType("weakref")
    vars(asked).update(vars(weakref))

    def getweakrefs(tensor: Any) -> list[Any]:
        _let_go(tensor)
        if isinstance(tensor, torch.Tensor) and _is_in_graph(tensor):
            graph_is_held()
        return weakref.getweakrefs(tensor)

    vars(asked)["getweakrefs"] = getweakrefs
    replace(patches, torch.utils, "weakref", lambda _: asked)
    replace(patches, torch._C, "_swap_tensor_impl", _restoring)
    patches.callback(_restore)


def _is_in_graph(tensor: torch.Tensor) -> bool:
    """Return True if more than its own ``AccumulateGrad`` refers to a tensor: it is not swapped."""
    count: int = tensor._use_count()  # type: ignore[attr-defined]
    return count > (2 if tensor.requires_grad and tensor.is_leaf else 1)


def _restoring(original: Callable[..., Any]) -> Callable[..., Any]:
    def swap_tensor_impl(*tensors: torch.Tensor) -> Any:
        result = original(*tensors)
        _restore()
        return result

    return swap_tensor_impl


class TensorPlace:
    """The place of a parameter or a buffer: a module that has it, and the name there."""

    __slots__ = ("_module", "name")

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module, self.name = weakref.ref(module), name

    def __call__(self) -> torch.Tensor | None:
        """Return the tensor that is there now; None without one, or without the module."""
        module = self._module()
        for held in () if module is None else (module._parameters, module._buffers):
            if self.name in held:
                return held[self.name]
        return None


def parameter_places(model: nn.Module) -> Iterator[TensorPlace]:
    """Yield the first place of each parameter."""
    return _places(model, "_parameters")


def buffer_places(model: nn.Module) -> Iterator[TensorPlace]:
    """Yield the first place of each buffer."""
    return _places(model, "_buffers")


def _places(model: nn.Module, kind: str) -> Iterator[TensorPlace]:
    seen = set()
    for module in model.modules():
        for name, tensor in getattr(module, kind).items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield TensorPlace(module, name)


T = TypeVar("T")


class TensorValues(Generic[T]):
    """Values of tensors, for as long as these are alive."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[RememberedTensor, T]] = {}

    def get(self, tensor: torch.Tensor) -> T | None:
        """Return the value of this tensor; None without one."""
        found = self._of.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def __setitem__(self, tensor: torch.Tensor, value: T) -> None:
        self._of[id(tensor)] = remembered(tensor), value
