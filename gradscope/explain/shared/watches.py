"""The two modes by which a run is watched: as Python calls PyTorch, and as ATen is called.

Each hands a call to one listener, which runs it and gives its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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
