"""The operation that raised: its operands as the user wrote them, and the layer that ran it.

Read off the traceback: the frames still hold what they worked on. Nothing is run again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

from gradscope.explain.shared.expressions import Expression
from gradscope.explain.shared.frames import in_library, is_hidden, is_ours
from gradscope.explain.shared.operations import Trait, by_function

_NN = "torch.nn.modules."
_CALLS = nn.Module.__call__.__code__.co_filename  # the code around each forward
#: A loss's arguments, as they are called in a sentence.
_ROLES = {"input": "the output", "target": "the target", "weight": "the loss's weight"}
_COUNTED = 1 << 24  # no more ids than this are looked through for their range


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that took part: what the user calls it, and what it is."""

    text: str | None
    shape: tuple[int, ...]
    dtype: str
    device: str
    low: int | None = None  # of integers
    high: int | None = None
    maker: str | None = None  # the module that made it
    computed: bool = False  # whether it has a graph

    @property
    def label(self) -> str:
        """``x [2, 3]``, the name in backticks; the shape alone without one."""
        return f"`{self.text}` {list(self.shape)}" if self.text else f"{list(self.shape)}"

    @property
    def held(self) -> bool:
        """Whether it is written as an attribute: a parameter, a buffer or a plain one."""
        return re.fullmatch(r"\w+(\.\w+)+", self.text or "") is not None


@dataclass(frozen=True, slots=True)
class FailedOperation:
    """An operation that raised.

    Attributes:
        function: its name.
        layer: the module of ``torch.nn`` that ran it, where one did, and ``layer_name`` its name.
        called: what the user's call is of, and ``arguments`` what it was given, as text.
        local_shapes: of the tensors that the user's function has at hand.
        constants: what the call took beside tensors, as the shape of a view.
        complete: whether a function of PyTorch's tells all operands.
        direct: whether the user's call is of the layer itself.
    """

    function: str = ""
    operands: tuple[Operand, ...] = ()
    layer: nn.Module | None = None
    layer_name: str | None = None
    called: str = ""
    arguments: tuple[str, ...] = ()
    local_shapes: Mapping[str, tuple[int, ...]] | None = None
    constants: tuple[Any, ...] = ()
    complete: bool = False
    direct: bool = False

    @property
    def argument(self) -> str | None:
        """What the user gave the layer first, as text, where the call is the user's own."""
        return self.arguments[0] if self.direct and self.arguments else None

    @property
    def layer_title(self) -> str:
        """The layer's name, or its class where it has none."""
        return self.layer_name if self.layer_name is not None else type(self.layer).__name__

    @property
    def sides(self) -> tuple[Operand, Operand] | None:
        """Its first two operands, where it is no layer's and has as many."""
        if self.layer is not None or len(self.operands) < 2:
            return None
        return self.operands[0], self.operands[1]

    def title_of(self, operand: Operand) -> str:
        """An operand by its role in a layer or a loss, else as the user wrote it."""
        text = operand.text or ""
        if text in _ROLES and by_function(self.function).has(Trait.LOSS):
            return _ROLES[text]
        if self.layer is not None and operand is self.operands[0]:
            return f"the input `{self.argument}`" if self.argument else "the input"
        if self.layer is not None and text == "hx":
            return "the hidden state"
        return f"`{text}`" if text else f"a tensor {list(operand.shape)}"


#: No operation with tensors was seen to fail.
NOTHING = FailedOperation()


class ModelNames:
    """What the user calls the tensors of a model: parameters and buffers by ``id``."""

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model
        self.tensors: dict[int, str] = {}
        self.modules: dict[int, str] = {}
        if model is not None:
            self.tensors = {id(t): name for name, t in model.named_buffers()}
            self.tensors |= {id(t): name for name, t in model.named_parameters()}
            self.modules = {id(module): name for name, module in model.named_modules()}

    def attribute(self, tensor: torch.Tensor) -> tuple[str, type | None] | None:
        """The plain attribute of a module that holds it, and of what type, if that is no tensor."""
        for module in self.model.modules() if self.model is not None else ():
            for name, value in module.__dict__.items():
                if not name.startswith("_") and any(t is tensor for t in _within(value)):
                    return name, None if value is tensor else type(value)
        return None


def failed_operation(
    trace: TracebackType | None,
    names: ModelNames,
    maker: Callable[[torch.Tensor], str | None] = lambda tensor: None,
) -> FailedOperation | None:
    """The operation in the innermost frame of a traceback; None where no tensor took part.

    ``maker`` tells the module that made a tensor, where that is known.
    """
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lasti))
        trace = trace.tb_next
    frames = [(f, at) for f, at in frames if not is_ours(f.f_code.co_filename)]
    if not frames:
        return None
    mine = next((i for i in range(len(frames) - 1, -1, -1) if _is_users(frames[i][0])), None)
    inner = frames[mine + 1 :] if mine is not None else frames
    user, instruction = frames[mine] if mine is not None else (None, 0)
    call = Expression.of(user.f_code, instruction) if user is not None else Expression()
    around = local_tensors(user)
    layer = _layer(inner)
    function = next((f for f, _ in inner if _takes_tensors(f)), None)
    if layer is not None:
        own = (f for f, _ in inner if f.f_code.co_filename != _CALLS)
        function = next(f for f in own if f.f_locals.get("self") is layer)
    if function is not None:
        operands = tuple(_arguments(function, names, maker))
        name = function.f_code.co_name
    elif user is not None:
        known = user.f_locals
        tensors = [(text, look_up(text, known)) for text in call.operands]
        operands = tuple(
            operand(value, text) for text, value in tensors if isinstance(value, torch.Tensor)
        )
        name = call.name
    else:
        return None
    return FailedOperation(
        name,
        operands,
        layer,
        None if layer is None else names.modules.get(id(layer)),
        call.name,
        call.operands,
        {name: tuple(t.shape) for name, t in around.items()},
        complete=function is not None,
        direct=layer is not None
        and user is not None
        and look_up(call.name, user.f_locals) is layer,
    )


def operand(tensor: torch.Tensor, text: str | None, maker: str | None = None) -> Operand:
    """A tensor as an operand; of integers also the range."""
    low = high = None
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if whole and tensor.device.type == "cpu" and 0 < tensor.numel() <= _COUNTED:
        with torch.no_grad():
            low, high = (int(bound) for bound in torch.aminmax(tensor.detach()))
    dtype = str(tensor.dtype).removeprefix("torch.")
    device, computed = str(tensor.device), tensor.grad_fn is not None
    return Operand(text, tuple(tensor.shape), dtype, device, low, high, maker, computed)


def local_tensors(frame: FrameType | None) -> dict[str, torch.Tensor]:
    """The tensors among a frame's local variables."""
    if frame is None:
        return {}
    return {name: v for name, v in frame.f_locals.items() if isinstance(v, torch.Tensor)}


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not is_hidden(file) and not in_library(file)


def _layer(frames: Iterable[tuple[FrameType, int]]) -> nn.Module | None:
    """The innermost layer of ``torch.nn`` whose own code raised.

    Containers are none, and losses go by the function that they call.
    """
    found = None
    for frame, _ in frames:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and frame.f_code.co_filename != _CALLS:
            kind = type(module).__mro__
            own = any(k.__module__.startswith(_NN) and k is not nn.Module for k in kind)
            held = isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict | _Loss)
            found = module if own and not held else found
    return found


def _takes_tensors(frame: FrameType) -> bool:
    """Whether this is a function of ``torch.nn.functional`` or the like with tensor arguments."""
    code = frame.f_code
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if "self" in given or not code.co_filename.endswith(
        ("functional.py", "functional/__init__.py")
    ):
        return False
    return any(isinstance(frame.f_locals.get(name), torch.Tensor) for name in given)


def _arguments(
    frame: FrameType, names: ModelNames, maker: Callable[[torch.Tensor], str | None]
) -> Iterator[Operand]:
    code = frame.f_code
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for name in given:
        value = frame.f_locals.get(name)
        if name != "self":
            for tensor in _within(value):
                yield operand(tensor, names.tensors.get(id(tensor), name), maker(tensor))


def _within(value: Any) -> Iterator[torch.Tensor]:
    stack = [value]
    for _ in range(1000):  # what holds itself ends too
        if not stack:
            return
        item = stack.pop()
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            stack.extend(reversed(item))
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))


def look_up(text: str, known: Mapping[str, Any]) -> Any:
    """The object behind ``x`` or ``self.a.b``, where no code runs to find it."""
    first, *rest = text.split(".")
    value = known.get(first)
    for name in rest:
        held = getattr(value, "__dict__", {})
        value = held.get(name)
        for register in ("_parameters", "_buffers", "_modules"):
            if value is None:
                value = held.get(register, {}).get(name)
    return value
