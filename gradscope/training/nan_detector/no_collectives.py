"""Makes code that one process runs alone raise an error, instead of waiting for the other processes
forever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: PyTorch's namespaces of collectives and of point-to-point communication.
_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})


class NeedsOtherRanks(RuntimeError):
    """An operation would have waited for other processes."""


class NoCollectives(TorchDispatchMode):
    """A mode in which operations raise ``NeedsOtherRanks`` instead of communicating.

    Attributes:
        refused: whether an operation raised.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # its own operations come first, and then this is asked again
        if func.namespace in _NAMESPACES and "wait_tensor" not in func.name():
            self.refused = True
            raise NeedsOtherRanks(f"{func.name()} waits for other processes")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_collectives() -> Iterator[NoCollectives | None]:
    """Return ``NoCollectives`` if there are several processes; else a context that does nothing."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        yield None
        return
    with NoCollectives() as mode:
        yield mode
