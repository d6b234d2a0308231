"""The two modes by which a run is watched: as Python calls PyTorch, and as ATen is called.

Each hands a call to one listener, which runs it and gives its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(slots=True)
class WatchedCall:
    """A call of a function or of an operator, which has not run yet."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Its result."""
        return self.function(*self.args, **self.kwargs)


Listener = Callable[[WatchedCall], Any]


class _CalledOnce(WatchedCall):
    """A call that runs once, however often it is asked to; ``error`` is what it raised."""

    def __init__(self, call: WatchedCall) -> None:
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
    listener: Listener, ignores: Callable[[], bool], failed: Callable[[Exception], None]
) -> Listener:
    """A listener to calls that are somebody else's: each runs once, whatever becomes of itself.

    Args:
        listener: gets the calls.
        ignores: whether a call is none of theirs.
        failed: takes an error of the listener's own.
    """

    def listen(call: WatchedCall) -> Any:
        if ignores():
            return call.run()
        once = _CalledOnce(call)
        try:
            return listener(once)
        except Exception as error:
            if error is once.error:
                raise
            failed(error)
            return once.run()

    return listen


class Guarding(Protocol):
    """What stands between code that is not ours and what observes it."""

    def hook(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The hook, as one that may be set on the code's modules."""

    def listener(self, listener: Listener) -> Listener:
        """The listener, as one that may run the code's calls."""


class _Unguarded:
    """Of code that runs for nobody but us: an error of ours may end it."""

    def hook(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def listener(self, listener: Listener) -> Listener:
        return listener


unguarded: Guarding = _Unguarded()


class FunctionWatch(TorchFunctionMode):
    """The functions of PyTorch's that the user's code and ``torch.nn`` call; none of their own."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Let the listener run the function."""
        return self._listener(WatchedCall(func, args, kwargs or {}))


class OperatorWatch(TorchDispatchMode):
    """The operators of ATen that a run comes to, those of backward and the optimizer included."""

    supports_higher_order_operators = True

    def __init__(self, listener: Listener) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listener = listener

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Let the listener run the operator; one of a higher order has no schema, and just runs."""
        call = WatchedCall(func, args, kwargs or {})
        return self._listener(call) if isinstance(func, OpOverload) else call.run()
