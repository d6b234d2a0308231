"""What operations are, as far as data and gradients flow through them, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

#: Give a tensor that has the data of another and no gradient path to it.
DETACHING = frozenset(
    [
        "detach",
        "grad",
        "detach_",
        ".data",
        "tensor",
        "as_tensor",
        "asarray",
        "new_tensor",
        "scalar_tensor",
        "from_numpy",
        "item",
        "tolist",
        "numpy",
        "__array__",
        "__float__",
        "__int__",
        "__index__",
        "__complex__",
    ]
)
#: Give Python or NumPy what a tensor held.
ESCAPES = frozenset(
    ["item", "tolist", "numpy", "__array__", "__float__", "__int__", "__index__", "__complex__"]
)
#: Make a tensor of Python's or NumPy's data.
ENTRIES = frozenset(
    [
        "tensor",
        "as_tensor",
        "asarray",
        "new_tensor",
        "scalar_tensor",
        "full",
        "new_full",
        "from_numpy",
    ]
)
#: Move no data: they ask, mark, or run something else.
_ASIDE = frozenset(
    [
        "requires_grad_",
        ".requires_grad",
        "retain_grad",
        "register_hook",
        "backward",
        ".grad",
        "._grad",
        ".grad_fn",
        "__repr__",
        "__format__",
        "__str__",
        "__bool__",
        "__len__",
        "size",
        "dim",
        "numel",
        "stride",
        "is_floating_point",
        "is_contiguous",
        "_set_grad_enabled",
        "register_post_accumulate_grad_hook",
        "zeros_like",
        "ones_like",
        "empty_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_empty",
        "__hash__",
        "new_empty_strided",
        "._base",
        ".is_leaf",
        ".shape",
        ".dtype",
        ".device",
        "share_memory_",
    ]
)
#: Take only the shape, the dtype or the fill of the first argument, or of the others.
_FIRST_ONLY = frozenset(
    ["expand_as", "view_as", "reshape_as", "type_as", "to", "resize_as_", "resize_as"]
)
_OTHERS_ONLY = frozenset(["full_like", "new_full", "new_tensor"])
#: Replace all that the tensor they write to held.
OVERWRITING = frozenset(
    [
        "copy_",
        "zero_",
        "fill_",
        "normal_",
        "uniform_",
        "bernoulli_",
        "random_",
        "exponential_",
        "trunc_normal_",
        "constant_",
        "xavier_uniform_",
        "xavier_normal_",
        "kaiming_uniform_",
        "kaiming_normal_",
        "ones_",
        "zeros_",
        "orthogonal_",
        "set_",
        ".data",
    ]
)


class Number(float):
    """A float that came out of a tensor, and what was computed from it, with the values' numbers.

    It is a float to everything else; the functions of ``math`` give a plain one.
    """

    sources: frozenset[int]

    def __new__(cls, value: float, sources: frozenset[int]) -> Number:
        made = super().__new__(cls, value)
        made.sources = sources
        return made

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


def _traced(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: Number, *others: Any) -> Any:
        result = plain(self, *others)
        if type(result) is not float:
            return result
        sources = self.sources
        for other in others:
            if isinstance(other, Number):
                sources |= other.sources
        return Number(result, sources)

    method.__name__ = name
    return method


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "radd",
    "rsub",
    "rmul",
    "rtruediv",
    "rfloordiv",
    "rmod",
    "rpow",
    "neg",
    "pos",
    "abs",
]:
    setattr(Number, f"__{_name}__", _traced(f"__{_name}__"))


def operation(func: Callable[..., Any]) -> str:
    """The name of what a mode was called with: ``linear``, ``add_``, ``.data``."""
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__"):
        return "." + str(getattr(getattr(func, "__self__", None), "__name__", name))
    return name


def moves_data(name: str) -> bool:
    """Whether an operation of this name hands on what its arguments hold."""
    return name not in _ASIDE


def carrying(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Those of the arguments whose data end up in the result."""
    if name in _FIRST_ONLY:
        return args[:1]
    if name in _OTHERS_ONLY:
        return (args[1:], kwargs)
    return (args, kwargs)


def leaves(tree: Any) -> Iterator[torch.Tensor | Number]:
    """Tensors and traced numbers in nested lists, tuples, mappings and dataclasses."""
    stack = [tree]
    seen: set[int] = set()
    while stack:
        item = stack.pop()
        if isinstance(item, torch.Tensor | Number):
            yield item
        elif isinstance(item, list | tuple | Mapping) or (
            is_dataclass(item) and not isinstance(item, type)
        ):
            if id(item) in seen:
                continue
            seen.add(id(item))
            if isinstance(item, Mapping):
                parts = list(item.values())
            elif isinstance(item, list | tuple):
                parts = list(item)
            else:
                parts = [getattr(item, f.name, None) for f in fields(item)]
            stack.extend(reversed(parts))
