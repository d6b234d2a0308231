"""The operation that raised, read off the traceback: its frames still hold what they worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

from gradscope.capture.names import buffer_names, first_names
from gradscope.explain.errors.failed_operation import FailedOperation, Operand, operand
from gradscope.explain.shared.expressions import Expression
from gradscope.explain.shared.frames import in_library, is_hidden, is_ours

_NN = "torch.nn.modules."
_CALLS = nn.Module.__call__.__code__.co_filename  # the code around each forward


class ModelNames:
    """What the user calls the tensors of a model: parameters and buffers by ``id``."""

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model
        self.tensors: dict[int, str] = {}
        self.modules: dict[int, str] = {}
        if model is not None:
            self.tensors = {id(t): name for name, t in buffer_names(model)}
            self.tensors |= {id(t): name for name, t in first_names(model)}
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
    """The object of ``x`` or ``self.a.b``, where no code runs to find it."""
    first, *rest = text.split(".")
    value = known.get(first)
    for name in rest:
        held = getattr(value, "__dict__", {})
        value = held.get(name)
        for register in ("_parameters", "_buffers", "_modules"):
            if value is None:
                value = held.get(register, {}).get(name)
    return value
