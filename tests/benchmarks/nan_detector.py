"""Measures a plain step under observation that is neither sampled nor recorded.

Run: ``python -m tests.benchmarks.nan_detector``. The step of a small MLP with its optimizer is the
hardest case, for there the models compute next to nothing. Beside the plain step and the observed
one it times a step in which Python functions that do nothing are called at the same moments: before
and after the model, before backward, before and after the optimizer. "The least" does in one
function at each what cannot be done later: it keeps what the model was given with the random state,
and the gradient that arrives at its output; it reads the loss, and the norms of small gradients.

Blocks of steps alternate, in CPU time, so that a busy machine slows down all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gradscope.capture.hooks import hook_optimizers
from gradscope.training.observer import Observer
from gradscope.training.sample_schedule import Schedule

ROUNDS, BLOCKS, BLOCK = 20, 30, 10
#: Steps until what is learned of a model is known, and the budget has set the cadence.
WARM = 500


class Step:
    """One step of a training."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def __call__(self) -> None:
        x, y = torch.randn(64, 784), torch.randint(10, (64,))
        self.optimizer.zero_grad()
        F.cross_entropy(self.net(x), y).backward()
        self.optimizer.step()


@contextmanager
def hooks(step: Step, *, least: bool) -> Iterator[None]:
    """One function at each moment: it does nothing, or the least."""
    kept: list[Any] = []
    small = [p for p in step.net.parameters() if p.numel() < 4096]
    make = torch.autograd._make_grads  # type: ignore[attr-defined]

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        if least:
            kept.append((args, kwargs, torch.default_generator.get_state()))

    def after(module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        if least and output.grad_fn is not None:
            kept.append(output.grad_fn.register_prehook(kept.append))

    def begins(outputs: Any, *others: Any, **named: Any) -> Any:
        if least:
            assert math.isfinite(outputs[0].item())
        return make(outputs, *others, **named)

    def steps(optimizer: Any, args: Any, kwargs: Any) -> None:
        if least:
            norms = torch._foreach_norm([p.grad for p in small if p.grad is not None])
            assert math.isfinite(sum([norm.item() for norm in norms]))

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        kept.clear()

    with ExitStack() as stack:
        for handle in (
            step.net.register_forward_pre_hook(before, with_kwargs=True),
            step.net.register_forward_hook(after, with_kwargs=True),
            *hook_optimizers(steps, stepped),
        ):
            stack.callback(handle.remove)
        torch.autograd._make_grads = begins  # type: ignore[attr-defined]
        stack.callback(setattr, torch.autograd, "_make_grads", make)
        yield


@contextmanager
def observed(step: Step) -> Iterator[None]:
    """As ``gradscope run`` does, without the file."""

    def failed(error: BaseException) -> None:
        raise error

    observer = Observer(
        lambda *records: None, lambda *origins: None, Schedule(first=0), failed=failed
    )
    observer.watch([step.net], [step.optimizer])
    observer.start()
    try:
        yield
    finally:
        observer.stop()


def microseconds(step: Step) -> float:
    """The median over blocks, so that the sampled steps do not count."""
    for _ in range(WARM):
        step()
    times = []
    for _ in range(BLOCKS):
        began = time.process_time()
        for _ in range(BLOCK):
            step()
        times.append((time.process_time() - began) / BLOCK * 1e6)
    return median(times)


def main() -> None:
    """Print what each way adds to the plain step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = Step()
    ways: dict[str, Callable[[], Any]] = {
        "functions that do nothing": lambda: hooks(step, least=False),
        "the least": lambda: hooks(step, least=True),
        "gradscope": lambda: observed(step),
    }
    plain: list[float] = []
    added: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            plain.append(microseconds(step))
            with way():
                added[name].append(microseconds(step) - plain[-1])
    base = median(plain)
    print(f"plain: {base:.0f} µs a step")
    for name, several in added.items():
        low, middle, high = quantiles(several, n=4)
        print(f"{name}: {middle:+.0f} µs ({low:.0f}–{high:.0f}), {1 + middle / base:.3f}")


if __name__ == "__main__":
    main()
