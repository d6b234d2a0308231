"""Finds the first NaN or Inf of a script without gradscope.

A dispatch mode sees every operation, of backward too; autograd's anomaly mode keeps the line of
forward that each node of the graph comes from; hooks on optimizers count the steps.
"""

from __future__ import annotations

import io
import math
import re
import runpy
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: These fill with what they are reported to, or with whatever lay in memory.
_FILL = ("fill", "full", "empty", "new_", "scalar_tensor", "lift", "_to_copy", "copy", "set_")


@dataclass(frozen=True, slots=True)
class Seen:
    """An operation that made NaN and Inf of finite numbers."""

    step: int
    op: str
    line: str
    in_backward: bool


@dataclass(frozen=True, slots=True)
class NonFiniteStep:
    """First step of a script with NaN or Inf, if any, and its origins."""

    step: int | None
    loss: bool
    non_finite: tuple[Seen, ...]


class _Watch(TorchDispatchMode):
    def __init__(self, script: Path, first: int) -> None:
        super().__init__()
        self.first = first
        self.script, self.source = str(script), script.read_text(encoding="utf-8").splitlines()
        self.non_finite: list[Seen] = []
        self.steps = 0
        self.bad: int | None = None
        self.bad_loss = False
        self.busy = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.busy or self.bad is not None or self.steps + 1 < self.first:
            return function(*args, **(kwargs or {}))
        self.busy = True
        before = level((args, kwargs))  # some write their result over what they were given
        try:
            result = function(*args, **(kwargs or {}))
            name = function._schema.name.removeprefix("aten::")
            filled = any(part in name for part in _FILL)
            if not filled and level(result) > before:
                self.non_finite.append(self._seen(name))
        finally:
            self.busy = False
        return result

    def _seen(self, name: str) -> Seen:
        node = torch._C._current_autograd_node()
        if node is None:
            frame = sys._getframe(2)
            while frame is not None and frame.f_code.co_filename != self.script:
                frame = frame.f_back
            line = self.source[frame.f_lineno - 1].strip() if frame else ""
            return Seen(self.steps + 1, name, line, False)
        trace = "".join(node.metadata.get("traceback_", ()))
        found = re.findall(re.escape(self.script) + r'", line (\d+)', trace)
        line = self.source[int(found[-1]) - 1].strip() if found else ""
        return Seen(self.steps + 1, node.name(), line, True)

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        gradients = [p.grad for g in optimizer.param_groups for p in g["params"]]
        self.busy = True
        if self.bad is None and level([g for g in gradients if g is not None]):
            self.bad = self.steps + 1
        self.busy = False
        if self.bad is not None:
            raise _Enough

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps += 1


def level(values: Any) -> int:
    """0 where all is finite, 1 where an infinity is among them, 2 where a NaN is."""
    found = 0
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value = value.detach()
            found = max(found, 2 * bool(value.isnan().any()), int(bool(value.isinf().any())))
        elif isinstance(value, float):
            found = max(found, 2 * math.isnan(value), int(math.isinf(value)))
    return found


class _Enough(BaseException):
    """The first bad step has ended; what follows is only its consequence."""


def first_non_finite(
    script: Path, arguments: Sequence[str], *, located: int | None
) -> NonFiniteStep:
    """Run the script in this process, whose state it changes: call this in one of its own.

    Whether a step is NaN or Inf is seen in each, and the operations only from step ``located`` on.
    """
    watch = _Watch(script, located or 0)
    watching = nullcontext() if located is None else watch
    plain = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        watch.busy = True
        if watch.bad is None and level(tensors):
            watch.bad, watch.bad_loss = watch.steps + 1, True
        watch.busy = False
        plain(tensors, *args, **kwargs)

    register_optimizer_step_pre_hook(watch.before_step)
    register_optimizer_step_post_hook(watch.after_step)
    torch.autograd.backward = backward
    sys.argv = [str(script), *arguments]
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        with (
            torch.autograd.set_detect_anomaly(located is not None, check_nan=False),
            watching,
            suppress(_Enough),
        ):
            runpy.run_path(str(script), run_name="__main__")
    origins = tuple(seen for seen in watch.non_finite if seen.step == watch.bad)
    return NonFiniteStep(watch.bad, watch.bad_loss, origins)
