"""Reads the operation that raised from the frames, which still hold its operands: from a traceback,
from a running operation, or from a recursion without end.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

from gradscope.capture.names import buffer_names, first_names
from gradscope.explain.errors.explanation import Expression, FailedOperation, Operand, operand
from gradscope.explain.shared.frames import in_library, is_hidden, is_ours, nearest, outwards, shown
from gradscope.explain.shared.tracing_modes import memory_of
from gradscope.records.run import Frame

_NN = "torch.nn.modules."
_CALLS = nn.Module.__call__.__code__.co_filename  # the code around each forward


class ModelNames:
    """Names of a model's parameters, buffers (by ``id`` of the tensor) and modules."""

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model
        self.tensors: dict[int, str] = {}
        self.modules: dict[int, str] = {}
        if model is not None:
            self.tensors = {id(t): name for name, t in buffer_names(model)}
            self.tensors |= {id(t): name for name, t in first_names(model)}
            self.modules = {id(module): name for name, module in model.named_modules()}

    def attribute(self, tensor: torch.Tensor) -> tuple[str, type | None] | None:
        """Return the module's plain attribute that holds the tensor, and its type if that is no
        tensor."""
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
    """Return the operation in the innermost frame of a traceback; None if no tensor took part.

    ``maker`` returns the module that made a tensor, if known.
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
    """Return the tensors among a frame's local variables."""
    if frame is None:
        return {}
    return {name: v for name, v in frame.f_locals.items() if isinstance(v, torch.Tensor)}


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not is_hidden(file) and not in_library(file)


def _layer(frames: Iterable[tuple[FrameType, int]]) -> nn.Module | None:
    """Return the innermost layer of ``torch.nn`` whose own code raised.

    Containers do not count; for a loss, the function that it calls counts.
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
    """Return True for a function of ``torch.nn.functional`` or the like with tensor arguments."""
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
    """Return the object of ``x`` or ``self.a.b``, if it can be found without running code."""
    first, *rest = text.split(".")
    value = known.get(first)
    for name in rest:
        held = getattr(value, "__dict__", {})
        value = held.get(name)
        for register in ("_parameters", "_buffers", "_modules"):
            if value is None:
                value = held.get(register, {}).get(name)
    return value


_OFTEN = 20  # as often a function is nested in itself only by calling itself


@dataclass(frozen=True, slots=True)
class Recursion:
    """The line that called a function repeatedly, and the function's module."""

    location: str
    module: nn.Module | None
    details: tuple[str, ...]


def recursion(failure: BaseException) -> Recursion | None:
    """Return the user's function that recurses without end; None if no line repeats often."""
    if not isinstance(failure, RecursionError):
        return None
    frames = _users(failure.__traceback__)
    often = Counter((frame.f_code, line) for frame, line in frames).most_common(1)
    if not often or often[0][1] < _OFTEN:
        return None
    (code, line), count = often[0]
    frame = next(frame for frame, _ in frames if frame.f_code is code)
    owner = frame.f_locals.get("self")
    location = f"{shown(code.co_filename)}:{line}"
    fact = (
        f"`{code.co_qualname}` reached {location} {count} times, each call inside the one before."
    )
    return Recursion(location, owner if isinstance(owner, nn.Module) else None, (fact,))


def once(frames: list[Frame]) -> list[Frame]:
    """Return each line once, at its first place."""
    return list(dict.fromkeys(frames))


def _users(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    found = [(f, n) for f, n in traceback.walk_tb(trace) if not is_hidden(f.f_code.co_filename)]
    own = [(f, n) for f, n in found if not in_library(f.f_code.co_filename)]
    return own or found


def local(tensor: torch.Tensor, last: CodeType) -> str | None:
    """Return the local variable of the user's function that holds the tensor.

    Args:
        tensor: the tensor.
        last: the code of the function that started the run.
    """
    here = local_tensors(nearest(sys._getframe(1), last))
    return next((name for name, t in here.items() if t is tensor), None)


def first_held(tensor: torch.Tensor, last: CodeType) -> tuple[str | None, FrameType | None]:
    """Return the tensor's name in the user's outermost function that holds it, and the frame.

    There it has its own name; inner functions know it by an argument's name.
    """
    found: tuple[str | None, FrameType | None] = None, None
    for frame in outwards(sys._getframe(1), last):
        file = frame.f_code.co_filename
        if is_hidden(file) or in_library(file):
            continue
        for name, held in local_tensors(frame).items():
            if held is tensor:
                found = name, frame
                break
    return found


def base_of(tensor: torch.Tensor, last: CodeType) -> tuple[str | None, tuple[int, ...]]:
    """Return the local variable that holds the tensor, or the largest tensor in the same memory,
    with its shape."""
    here, memory = local_tensors(nearest(sys._getframe(1), last)), memory_of(tensor)
    own = next((name for name, t in here.items() if t is tensor), None)
    if own is not None or not memory:
        return own, tuple(tensor.shape)
    around = [(t.numel(), name) for name, t in here.items() if memory_of(t) == memory]
    name = max(around)[1] if around else None
    return name, tuple((tensor if name is None else here[name]).shape)


def as_called(
    name: str,
    tensors: list[torch.Tensor],
    args: tuple[Any, ...],
    named: Callable[[torch.Tensor, str | None], Operand],
    last: CodeType,
) -> FailedOperation:
    """Return the operation with its operands as the user wrote them.

    Args:
        name: the operation's name.
        tensors: its tensors.
        args: all of its arguments.
        named: makes an operand from a tensor and its text; chooses a name if there is none.
        last: the code of the function that started the run.
    """
    frame = nearest(sys._getframe(1), last)
    call = Expression() if frame is None else Expression.of(frame.f_code, frame.f_lasti)
    known = {} if frame is None else frame.f_locals
    here = local_tensors(frame)
    texts = {id(look_up(text, known)): text for text in call.operands}
    texts |= {id(t): text for text, t in here.items() if id(t) not in texts}
    # In a layer's own code the operands are not those of the user's call.
    outside = frame is not None and not _runs_layer(frame)
    in_order = outside and len(call.operands) == len(tensors)
    return FailedOperation(
        name,
        tuple(
            named(t, texts.get(id(t)) or (call.operands[i] if in_order else None))
            for i, t in enumerate(tensors)
        ),
        called=call.name,
        arguments=call.operands,
        local_shapes={text: tuple(t.shape) for text, t in here.items()},
        constants=tuple(a for a in args if not isinstance(a, torch.Tensor)),
    )


def _runs_layer(frame: FrameType) -> bool:
    """Return True if a module of PyTorch runs between the user's frame and the operation."""
    inner = outwards(sys._getframe(1), frame.f_code)
    return any(isinstance(f.f_locals.get("self"), nn.Module) for f in inner)
