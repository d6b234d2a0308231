"""The two modes by which a run is traced: as Python calls PyTorch, and as ATen is called.

Each hands a call to one handler, which runs it and gives its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(slots=True)
class TracedCall:
    """A call of a function or of an operator, which has not run yet."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Its result."""
        return self.function(*self.args, **self.kwargs)


Handler = Callable[[TracedCall], Any]


class _CalledOnce(TracedCall):
    """A call that runs once, however often it is asked to; ``error`` is what it raised."""

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
    """A handler to calls that are somebody else's: each runs once, whatever becomes of itself.

    Args:
        handler: gets the calls.
        ignores: whether a call is none of theirs.
        failed: takes an error of the handler's own.
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
    """What is between code that is not ours and what observes it."""

    def hook(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The hook, as one that may be set on the code's modules."""

    def handler(self, handler: Handler) -> Handler:
        """The handler, as one that may run the code's calls."""


class _Unguarded:
    """Of code that runs for nobody but us: an error of ours may end it."""

    def hook(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def handler(self, handler: Handler) -> Handler:
        return handler


unguarded: Guarding = _Unguarded()


class FunctionTracer(TorchFunctionMode):
    """The functions of PyTorch's that the user's code and ``torch.nn`` call; none of their own."""

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
    """The operators of ATen that a run comes to, those of backward and the optimizer included."""

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
