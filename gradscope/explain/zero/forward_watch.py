"""One forward, watched for zeros: which call made each node, the line, and what came out zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from gradscope.capture.calls import sequence_number
from gradscope.capture.graph import Span, owners
from gradscope.capture.hooks import hooked, named_modules, watchable
from gradscope.capture.recompute import in_backward
from gradscope.explain.shared.frames import locate
from gradscope.explain.zero.node_gradients import some


@dataclass(frozen=True, slots=True)
class Seen:
    """What an operation gave and took: whether its result is all zeros, its first input's range."""

    zero: bool
    low: float | None = None
    high: float | None = None
    dropped: bool = False  # by a dropout that leaves nothing


class Values(TorchFunctionMode):
    """Notes, of every operation with a gradient that Python calls, what ``Seen`` says."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[Node, Seen] = {}
        self.hooks = False  # whether a tensor got a hook of the user's

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation and look at its result."""
        given = _range(args)  # before: what works in place overwrites it
        result = func(*args, **(kwargs or {}))
        self.hooks = self.hooks or func is torch.Tensor.register_hook
        dropped = _drops_all(func, args, kwargs or {})
        several = result if isinstance(result, tuple | list) else (result,)
        for tensor in several:
            # What is wrapped (vmap) or was overtaken by a write in place has no numbers to show.
            with suppress(RuntimeError, NotImplementedError, TypeError):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    self._note(tensor, given, dropped)
        return result

    def _note(self, tensor: torch.Tensor, given: tuple[float, float] | None, dropped: bool) -> None:
        node = tensor.grad_fn
        if node is None or node in self.of:
            return
        low, high = given or (None, None)
        self.of[node] = Seen(not some(tensor.detach()), low, high, dropped)


def _drops_all(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    p = args[1] if len(args) > 1 else kwargs.get("p")
    return "dropout" in getattr(func, "__name__", "") and isinstance(p, int | float) and p == 1


def _range(args: tuple[Any, ...]) -> tuple[float, float] | None:
    """The smallest and the largest number of an operation's first argument."""
    given = args[0] if args else None
    with suppress(RuntimeError, NotImplementedError, TypeError):
        if isinstance(given, torch.Tensor) and given.requires_grad and given.numel():
            low, high = given.detach().aminmax()
            return float(low), float(high)
    return None


class Calls:
    """The module calls of a run, and which of them made a node."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: named.name for module, named in named_modules(model).items()}
        self._counts: dict[nn.Module, int] = {}
        self._calls: list[tuple[nn.Module, int, int, int, int]] = []
        self._open: list[int] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module's forward begins; one inside backward repeats an earlier call."""
        number = self._counts.get(module, 0)
        if in_backward():
            number = max(0, number - 1)
        else:
            self._counts[module] = number + 1
        parent = self._open[-1] if self._open else -1
        self._open.append(len(self._calls))
        self._calls.append((module, number, sequence_number(), -1, parent))

    def leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """A module's forward returned; those inside it that raised are left too."""
        if not any(self._calls[i][0] is module for i in self._open):
            return
        while self._open:
            index = self._open.pop()
            of, number, start, _, parent = self._calls[index]
            self._calls[index] = (of, number, start, sequence_number(), parent)
            if of is module:
                return

    def makers(self, nodes: Sequence[Node]) -> list[tuple[str, int] | None]:
        """Name and number of the innermost call that made each node."""
        now = sequence_number()
        spans = [
            Span(start, now if end < 0 else end, parent) for _, _, start, end, parent in self._calls
        ]
        found = []
        for index in owners(nodes, spans):
            module, number = self._calls[index][:2] if index >= 0 else (None, 0)
            found.append(None if module is None else (self._names.get(module, ""), number))
        return found


@contextmanager
def watching(model: nn.Module, calls: Calls) -> Iterator[None]:
    """Calls are noted, and every node remembers the stack that made it."""
    import warnings

    with hooked(watchable(model), calls.enter, calls.leave), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            yield


def with_hooks(model: nn.Module) -> bool:
    """Whether somebody reads gradients in backward, on a module or on a parameter."""
    modules = any(m._backward_hooks or m._backward_pre_hooks for m in model.modules())
    return modules or any(p._backward_hooks for p in model.parameters())


def location(node: Node) -> str | None:
    """The user's line that made a node, as ``net.py:31``; None inside a checkpoint's second run."""
    metadata: dict[str, Any] = node.metadata  # type: ignore[assignment]  # torch types a method
    stack = metadata.get("traceback_")
    if not stack:
        return None
    # The mode's own frame stands between the operation and the user's line.
    return locate([frame for frame in stack if __file__ not in frame])
