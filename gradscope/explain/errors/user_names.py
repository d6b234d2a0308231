"""The user's names of the tensors of an operation that runs now, from its frames."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from gradscope.explain.errors.failed_operation import FailedOperation, Operand
from gradscope.explain.errors.read_traceback import local_tensors, look_up
from gradscope.explain.shared.expressions import Expression
from gradscope.explain.shared.frames import in_library, is_hidden, nearest, outwards
from gradscope.explain.shared.tensors import memory_of


def local(tensor: torch.Tensor, last: CodeType) -> str | None:
    """The local variable of the user's function that holds the tensor.

    Args:
        tensor: what it is about.
        last: the code of the function that started the run.
    """
    here = local_tensors(nearest(sys._getframe(1), last))
    return next((name for name, t in here.items() if t is tensor), None)


def first_held(tensor: torch.Tensor, last: CodeType) -> tuple[str | None, FrameType | None]:
    """The name that the tensor has in the outermost function of the user's, and its frame.

    Where it was made it has its own name; deeper down it goes by an argument's.
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


def whole_of(tensor: torch.Tensor, last: CodeType) -> tuple[str | None, tuple[int, ...]]:
    """The local variable that holds the tensor, or the largest in its memory, and its shape."""
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
    """The operation with its operands as the user wrote them.

    Args:
        name: of the operation.
        tensors: what it took.
        args: the same with whatever is no tensor.
        named: makes an operand of a tensor and its text; gives it another name where it has none.
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
    """Whether PyTorch's own modules run between the user's frame and the operation."""
    inner = outwards(sys._getframe(1), frame.f_code)
    return any(isinstance(f.f_locals.get("self"), nn.Module) for f in inner)
