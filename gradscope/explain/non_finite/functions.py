"""What the user called: a mode that knows the function under way, as it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.overrides import TorchFunctionMode

from gradscope.explain.shared.operations import operation

_SAME = {
    "rdiv": "div",
    "rtruediv": "div",
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "itruediv": "div_",
    "rsub": "sub",
    "subtract": "sub",
    "rmul": "mul",
    "multiply": "mul",
    "radd": "add",
    "rpow": "pow",
    "rmatmul": "matmul",
}


class Names(TorchFunctionMode):
    """The outermost of PyTorch's functions under way: ``softmax`` for all that it is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.name: str | None = None
        self.serial = 0  # of the latest call
        self.asleep = False  # while something of ours computes

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the function under its name."""
        if self.asleep:
            return func(*args, **(kwargs or {}))
        self.serial += 1
        name = operation(func)
        # Backward is many operations of the engine's, none of them written by the user.
        self.name = None if name in ("backward", "grad", "_set_grad_enabled") else written(name)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.name = None


def written(name: str) -> str:
    """A function's name without Python's underscores: ``div`` for ``__truediv__``."""
    bare = name[2:-2] if name.startswith("__") and name.endswith("__") else name
    return _SAME.get(bare, bare)
