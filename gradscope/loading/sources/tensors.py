"""Makes tensors that the config describes (``shape``, ``values``); has the options of all
sources."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from gradscope.config.words import shorten
from gradscope.errors import did_you_mean, first_line, message_of
from gradscope.loading.sources import Build, Context

FILLS = ("randn", "rand", "zeros", "ones", "arange", "randint(N)", "randint(LOW, HIGH)")
#: The largest integer that a tensor holds, and that a size or a batch can have.
LARGEST = 2**63 - 1
_BEYOND = "is beyond the numbers that a tensor holds"
_RANDINT = re.compile(r"randint\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?\)")


@dataclass(frozen=True)
class Modifiers:
    """The options of all sources of tensors."""

    dtype: torch.dtype | None = None
    requires_grad: bool = False
    batch: int | None = None

    @classmethod
    def read(cls, spec: Mapping[str, Any], context: Context, key: str) -> Modifiers:
        """Read the options of one source.

        Raises:
            ConfigError: the dtype does not exist, or the batch is not a positive number.
        """
        name, batch, leaf = spec.get("dtype"), spec.get("batch"), spec.get("requires_grad", False)
        if batch is not None and not (_is_int(batch) and 1 <= batch <= LARGEST):
            raise context.error(
                f"{key}.batch", f"`batch` is {batch!r}, not a number from 1 to {LARGEST}"
            )
        if not isinstance(leaf, bool):
            raise context.error(
                f"{key}.requires_grad", f"`requires_grad` is {leaf!r}, not true or false"
            )
        dtype = None if name is None else read_dtype(name, context, f"{key}.dtype")
        return cls(dtype, leaf, batch)


def read_dtype(name: Any, context: Context, key: str) -> torch.dtype:
    """Return the torch dtype of that name, with or without ``torch.`` before it."""
    short = str(name).removeprefix("torch.")
    dtype = getattr(torch, short, None)
    if isinstance(dtype, torch.dtype):
        return dtype
    names = [n for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype)]
    help = did_you_mean(short, names) or "for example float32, float64, int64, bool"
    raise context.error(key, f"`{name}` is not a dtype of torch", help)


def finish(tensor: Tensor, modifiers: Modifiers, context: Context, key: str) -> Tensor:
    """Return a new leaf on the run's device; floating tensors get the run's dtype, unless ``dtype``
    is set."""
    if modifiers.batch is not None:
        tensor = _rows(tensor, modifiers.batch, context, key)
    keep = context.dtype if tensor.is_floating_point() else tensor.dtype
    leaf = tensor.detach().to(context.device, modifiers.dtype or keep, copy=True)
    if modifiers.requires_grad:
        if not (leaf.is_floating_point() or leaf.is_complex()):
            raise context.error(
                f"{key}.requires_grad",
                f"a tensor of {str(leaf.dtype).removeprefix('torch.')} cannot require a gradient",
                "add `dtype: float32`, or leave `requires_grad` out",
            )
        leaf.requires_grad_()
    return leaf


def _rows(tensor: Tensor, count: int, context: Context, key: str) -> Tensor:
    if tensor.ndim == 0 or len(tensor) == 0:
        raise context.error(
            f"{key}.batch", f"a tensor of shape {list(tensor.shape)} has no rows to repeat"
        )
    try:
        return tensor[torch.arange(count, device="cpu") % len(tensor)]
    except RuntimeError as error:
        reason = _reason(error, [count, *tensor.shape[1:]])
        raise context.error(f"{key}.batch", f"`batch: {count}` cannot be made: {reason}") from error


def plan_shape(spec: Mapping[str, Any], context: Context, key: str) -> Build:
    """Plan ``shape: [2, 3]`` with ``fill``. Numbers are drawn on the CPU in float32, so every
    device and dtype starts from the same numbers."""
    shape = spec["shape"]
    shape = [shape] if _is_int(shape) else shape
    if not isinstance(shape, list) or not all(_is_int(n) and 0 <= n <= LARGEST for n in shape):
        raise context.error(
            f"{key}.shape",
            f"`shape` is {shape!r}, not a list of sizes from 0 to {LARGEST}",
            "for example [2, 3, 8, 8]",
        )
    modifiers = Modifiers.read(spec, context, key)
    if modifiers.batch is not None:
        if not shape:
            raise context.error(f"{key}.batch", "`shape: []` is one number and has no batch")
        shape = [modifiers.batch, *shape[1:]]
    final = Modifiers(modifiers.dtype, modifiers.requires_grad)
    draw = _plan_fill(spec.get("fill"), modifiers.dtype, context, key)

    def build() -> Tensor:
        try:
            if context.device.type == "meta":
                kind = draw([0] * len(shape)).dtype
                return finish(torch.empty(shape, dtype=kind, device="meta"), final, context, key)
            return finish(draw(shape), final, context, key)
        except RuntimeError as error:
            raise context.error(
                f"{key}.shape",
                f"a tensor of shape {shape} cannot be made: {_reason(error, shape)}",
                "`--device meta` shows shapes without memory",
            ) from error

    return build


def _reason(error: RuntimeError, shape: list[int]) -> str:
    if "allocate" in message_of(error) or isinstance(error, torch.OutOfMemoryError):
        return f"there is no memory for {math.prod(shape):,} numbers"
    return first_line(error)


def _plan_fill(
    fill: Any, dtype: torch.dtype | None, context: Context, key: str
) -> Callable[[list[int]], Tensor]:
    place, integral = f"{key}.fill", dtype is not None and not _is_real_or_complex(dtype)
    if fill is None and dtype is torch.bool:
        fill = "randint(2)"
    if integral and fill in (None, "randn", "rand"):
        name = str(dtype).removeprefix("torch.")
        raise context.error(
            place if fill else f"{key}.dtype",
            f"`{fill or 'randn'}` draws no numbers of {name}",
            "say which integers: `fill: randint(100)`, zeros, ones, arange or a number",
        )
    if isinstance(fill, (bool, int, float)):
        if integral and isinstance(fill, float) and not fill.is_integer():
            raise context.error(place, f"`fill: {fill}` is not an integer, as `dtype` requires")
        # Full precision here: finish() rounds to the run's dtype, once.
        kind = dtype if integral else torch.float64
        value = _number(fill, place, context, integral=integral)
        return lambda shape: torch.full(shape, value, dtype=kind, device="cpu")
    if fill in (None, "randn"):
        if dtype is not None and dtype.is_complex:
            return lambda shape: torch.randn(shape, dtype=torch.complex64, device="cpu")
        return lambda shape: torch.randn(shape, dtype=torch.float32, device="cpu")
    if fill == "rand":
        return lambda shape: torch.rand(shape, dtype=torch.float32, device="cpu")
    if fill in ("zeros", "ones"):
        value = float(fill == "ones")
        return lambda shape: torch.full(shape, value, dtype=torch.float32, device="cpu")
    if fill == "arange":
        kind = dtype if integral else torch.float64
        return lambda shape: torch.arange(math.prod(shape), dtype=kind, device="cpu").reshape(shape)
    match = _RANDINT.fullmatch(str(fill))
    if match is None:
        help = did_you_mean(str(fill), FILLS) or f"one of {', '.join(FILLS)}, or a number"
        raise context.error(place, f"unknown fill `{fill}`", help)
    first, second = match.groups()
    if any(len(bound or "") > len(str(-LARGEST)) for bound in match.groups()):
        raise context.error(place, f"`{shorten(str(fill))}` {_BEYOND}")
    low, high = (0, int(first)) if second is None else (int(first), int(second))
    if not -LARGEST <= low <= high <= LARGEST:
        raise context.error(place, f"`{fill}` {_BEYOND}")
    if low >= high:
        raise context.error(place, f"`{fill}` leaves no number to draw: {low} to {high - 1}")
    return lambda shape: torch.randint(low, high, shape, device="cpu")


def _number(fill: float, place: str, context: Context, *, integral: bool) -> float:
    """Return the number to fill with: an integer within int64, or any other number within
    float64."""
    try:
        number = fill if integral else float(fill)
    except OverflowError:
        number = LARGEST + 1
        integral = True
    if integral and not -LARGEST <= number <= LARGEST:
        raise context.error(place, f"`fill: {shorten(str(fill), 30)}` {_BEYOND}")
    return number


def plan_values(spec: Mapping[str, Any], context: Context, key: str) -> Build:
    """Plan ``values: [[1, 2], [3, 4]]``: integers become int64, true and false bool."""
    modifiers = Modifiers.read(spec, context, key)
    tensor = to_tensor(spec["values"], context, f"{key}.values")
    return lambda: finish(tensor, modifiers, context, key)


def to_tensor(values: Any, context: Context, key: str) -> Tensor:
    """Convert nested lists of numbers to a tensor; fractions become float64, so that they are
    rounded only once.

    Raises:
        ConfigError: an item is not a number, rows have unequal lengths, or a number is beyond
            int64.
    """
    flat, stack = [], [values]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, (bool, int, float)):
            flat.append(item)
        else:
            raise context.error(
                key, f"{item!r} is not a number", "values are numbers or nested lists of numbers"
            )
    fraction = not flat or any(isinstance(item, float) for item in flat)
    try:
        return torch.tensor(values, dtype=torch.float64 if fraction else None, device="cpu")
    except (ValueError, RuntimeError, OverflowError, TypeError) as error:
        raise context.error(
            key,
            f"these values make no tensor: {message_of(error)}",
            "give every row the same length",
        ) from error


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real_or_complex(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def mover(context: Context, key: str) -> Callable[[Any], Any]:
    """Return a function that moves a nested value: arrays become tensors, floating ones get the
    run's dtype, ``requires_grad`` is kept. A tensor at two places stays one tensor, because the
    model may compare arguments by identity."""
    moved: dict[int, tuple[Any, Tensor]] = {}

    def tensor(value: Tensor) -> Tensor:
        if id(value) not in moved:
            leaf = finish(value, Modifiers(requires_grad=value.requires_grad), context, key)
            moved[id(value)] = value, leaf  # the original too, or its id could come again
        return moved[id(value)][1]

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return tensor(value)
        if isinstance(value, (np.ndarray, np.generic)):
            return tensor(torch.from_numpy(np.array(value)))
        if isinstance(value, PackedSequence):
            packed: Any = value
            integral = not packed.data.is_floating_point()
            return packed.to(context.device, packed.data.dtype if integral else context.dtype)
        if isinstance(value, Mapping):
            return {name: move(item) for name, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(move, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(move, value))
        return value.to(context.device) if callable(getattr(value, "to", None)) else value

    return move
