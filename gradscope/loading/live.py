"""Live objects instead of a config's words: a module, tensors, a loss function, an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradscope.errors import OptionError
from gradscope.loading import devices, losses, optimizers
from gradscope.loading.batches import Batch
from gradscope.loading.inputs import make_batches
from gradscope.loading.kinds import ModelKind
from gradscope.loading.losses import Criterion
from gradscope.loading.targets import Targets
from gradscope.loading.workload import Workload

Settings = Mapping[str, Any]


def adopt(model: nn.Module, settings: Settings, *, inputs: Any, target: Any) -> Workload:
    """A workload around the caller's own module, which is neither moved nor converted.

    Args:
        model: the module; its first parameter says device and dtype.
        settings: ``loss``, ``optimizer``, ``gradient``, ``mode``, ``steps``, ``seed``,
            ``autocast``, ``backward.repeats``, ``backward.retain_graph``, each optional.
        inputs: a tensor, a tuple or list of positional arguments, a mapping of keyword arguments,
            or None to infer.
        target: a tensor, a list of class ids or values, or None.
    """
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise OptionError(
            "the model has lazy modules, which a first call changes for good",
            help="call it once on a batch, `model(inputs)`, before inspecting it",
        )
    first = next(model.parameters(), torch.empty(0))
    seed = settings.get("seed", 0)
    targets = Targets(Path.cwd(), (), lambda key: None)
    notices: list[str] = []
    if inputs is None:
        name = type(model).__name__
        batches, notices, target = make_batches(
            None,
            target,
            model=model,
            model_kind=ModelKind("python", name),
            directory=Path.cwd(),
            place=lambda key: None,
            device=first.device,
            dtype=first.dtype,
            seed=seed,
            instantiate=targets.instantiate,
        )
    else:
        batches = given(inputs)
    gradient = settings.get("gradient")
    wish = settings.get("loss")
    spec = wish if callable(wish) else losses.resolve(wish, targets.instantiate)
    mode = settings.get("mode") or ("train" if model.training else "eval")
    steps = settings.get("steps", 1)
    return Workload(
        model=model,
        name=type(model).__name__,
        batches=batches,
        criterion=Criterion(
            spec, _tensor(target, first.device), seed=seed, external_gradient=gradient is not None
        ),
        make_optimizer=_optimizer(settings.get("optimizer"), steps, targets, model),
        device=first.device,
        dtype=first.dtype,
        autocast=devices.resolve_autocast(settings.get("autocast"), None),
        mode=mode,
        seed=seed,
        steps=steps,
        repeats=settings.get("backward.repeats", 1),
        retain_graph=settings.get("backward.retain_graph", False),
        gradient=gradient,
        notices=notices,
        config={"model": type(model).__qualname__, "mode": mode, "steps": steps, "seed": seed},
    )


def given(inputs: Any) -> Callable[[], Iterator[Batch]]:
    """The caller's own tensors as the one batch."""
    if isinstance(inputs, Mapping):
        batch = Batch((), dict(inputs))
    elif isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields"):
        batch = Batch(tuple(inputs), {})
    else:
        batch = Batch((inputs,), {})
    return lambda: iter([batch])


def _tensor(target: Any, device: torch.device) -> Any:
    """Numbers as a tensor; anything else (``random``, a nesting for the user's loss) as it is."""
    if isinstance(target, bool | int | float):
        return torch.tensor([target], device=device)
    if isinstance(target, list) and target and not isinstance(target[0], torch.Tensor | dict):
        return torch.tensor(target, device=device)
    return target


def _optimizer(
    wish: Any, steps: int, targets: Targets, model: nn.Module
) -> Callable[[nn.Module], Optimizer] | None:
    if isinstance(wish, Optimizer):
        raise OptionError(
            "`optimizer` is already made, and a step would change its state",
            help="give what makes one: `optimizer=lambda params: torch.optim.SGD(params, lr=0.01)`",
        )
    if isinstance(wish, Mapping):
        return optimizers.maker(wish, targets, model)
    if callable(wish):
        return lambda module: wish(module.parameters())
    return optimizers.default if steps > 1 else None
