"""Traces a run: calls from Python to PyTorch, calls of ATen operators, and the module call and line
of each. A mode passes each call to a handler, which runs it and returns the result. The functions
at the end find tensors in arguments, and identify their memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch._ops import OpOverload
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradscope.capture import calls
from gradscope.capture.calls import ModuleCall, sequence_number
from gradscope.capture.graph import Span, owners
from gradscope.capture.hooks import hookable_modules, hooked, in_between
from gradscope.capture.names import module_names
from gradscope.explain.shared.frames import CallSite, nearest
from gradscope.nesting import find


@dataclass(slots=True)
class TracedCall:
    """A call of a function or an operator that has not run yet."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Run the call and return its result."""
        return self.function(*self.args, **self.kwargs)


in_between.add(TracedCall.run.__code__)

Handler = Callable[[TracedCall], Any]


class _CalledOnce(TracedCall):
    """A call that runs once, however often ``run`` is called; ``error`` is its exception."""

    def __init__(self, call: TracedCall) -> None:
        super().__init__(call.function, call.args, call.kwargs)
        self.error: BaseException | None = None
        self._result: tuple[Any] | None = None

    def run(self) -> Any:
        if self._result is None:
            try:
                self._result = (super().run(),)
            except BaseException as error:
                self.error = error
                raise
        return self._result[0]


def lent(
    handler: Handler, ignores: Callable[[], bool], failed: Callable[[Exception], None]
) -> Handler:
    """Wrap a handler for calls of the script's code: each call runs once, even if the handler
    fails.

    Args:
        handler: gets the calls.
        ignores: returns True for calls that do not belong to the script.
        failed: called with an error of the handler.
    """

    def handle(call: TracedCall) -> Any:
        if ignores():
            return call.run()
        once = _CalledOnce(call)
        try:
            return handler(once)
        except Exception as error:
            if error is once.error:
                raise
            failed(error)
            return once.run()

    return handle


class Guarding(Protocol):
    """Protects the script's code from errors in gradscope's hooks and handlers."""

    def hook(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook that is safe on the script's modules."""

    def handler(self, handler: Handler) -> Handler:
        """Return a handler that is safe for the script's calls."""


class _Unguarded:
    """A guard for gradscope's own runs of the model: its errors may end them."""

    def hook(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def handler(self, handler: Handler) -> Handler:
        return handler


unguarded: Guarding = _Unguarded()


@contextmanager
def functions_traced(
    model: nn.Module, calls: ModuleCalls, handler: Handler, guarding: Guarding = unguarded
) -> Iterator[None]:
    """Pass the function calls in the block to the handler, and follow the model's calls."""
    enter, leave = guarding.hook(calls.enter), guarding.hook(calls.leave)
    with hooked(hookable_modules(model), enter, leave), FunctionTracer(guarding.handler(handler)):
        yield


class FunctionTracer(TorchFunctionMode):
    """Traces the PyTorch functions that the user's code and ``torch.nn`` call, but not their inner
    calls."""

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._handler = handler

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Let the handler run the function."""
        return self._handler(TracedCall(func, args, kwargs or {}))


class OperatorTracer(TorchDispatchMode):
    """Traces ATen's operators in a run, also in backward and the optimizer."""

    supports_higher_order_operators = True

    def __init__(self, handler: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handler = handler

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Let the handler run the operator; one of a higher order has no schema, and just runs."""
        call = TracedCall(func, args, kwargs or {})
        return self._handler(call) if isinstance(func, OpOverload) else call.run()


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Yield every tensor in nested arguments or results, without wrappers."""
    return [bare(tensor) for _, tensor in find(tree, torch.Tensor)]


def bare(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside the wrappers of ``vmap`` and similar functions."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def memory_of(tensor: torch.Tensor) -> int:
    """Return an identifier of the tensor's memory; 0 if it has no storage."""
    if tensor.layout != torch.strided:
        return 0
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a wrapper without storage
        return 0


class ModuleCalls(calls.ModuleCalls):
    """Module calls with their lines; ``enter`` and ``leave`` are for ``hooked``.

    Args:
        model: names the modules.
        last: the code of the function that starts the run: the frames around it are not the user's.
        line: file and line for operations without a frame of the user.
    """

    def __init__(
        self, model: nn.Module, last: CodeType, line: tuple[str, int] | None = None
    ) -> None:
        super().__init__(module_names(model))
        self.last = last
        self._line = line or (None, None)
        self.called: set[nn.Module] = set()

    def begin(self, module: nn.Module) -> ModuleCall:
        """Note that a module's forward begins."""
        self.called.add(module)
        return super().begin(module)

    def site(self, frame: FrameType | None = None) -> CallSite:
        """Return the innermost module call, and the user's line nearest to ``frame`` (default: the
        current frame)."""
        call = self.innermost()
        name, number = (None, None) if call is None else (call.name, call.number)
        user = nearest(frame or sys._getframe(1), self.last)
        if user is None:
            return CallSite(name, number, *self._line)
        return CallSite(name, number, user.f_code.co_filename, user.f_lineno)

    def makers(self, nodes: Sequence[Node]) -> list[ModuleCall | None]:
        """Return the innermost call that made each node."""
        now = sequence_number()
        spans = [
            Span(call.start, now if call.end is None else call.end, call.parent)
            for call in self._calls
        ]
        return [self._calls[i] if i >= 0 else None for i in owners(nodes, spans)]
