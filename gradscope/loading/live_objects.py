"""Takes live objects instead of a config: a module, tensors, a loss function, an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradscope.config.checks import checked_interventions
from gradscope.config.targets import LOSSES
from gradscope.errors import OptionError, did_you_mean, nowhere
from gradscope.loading import devices, losses, surgery
from gradscope.loading.batches import check_given, step_method
from gradscope.loading.inputs import given, make_batches
from gradscope.loading.losses import Criterion
from gradscope.loading.optimizers import default_optimizer, optimizer_maker
from gradscope.loading.sources import Context
from gradscope.loading.specs import ModelKind
from gradscope.loading.surgery import compiled_of, unwrapped
from gradscope.loading.targets import Targets
from gradscope.loading.workload import Workload, tensor_of
from gradscope.nesting import replaced

Settings = Mapping[str, Any]


def adopt(model: nn.Module, settings: Settings, *, inputs: Any, target: Any) -> Workload:
    """Return a workload around the caller's own module, which is neither moved nor converted.

    Args:
        model: the module; its first parameter gives device and dtype. Wrappers of torch
            (``DataParallel``, a compiled module) are removed.
        settings: ``call``, ``loss``, ``optimizer``, ``mode``, ``steps``, ``seed``, ``autocast``,
            ``backward.gradient``, ``backward.repeats``, ``backward.retain_graph``,
            ``interventions``, ``accumulate``, each optional.
        inputs: a tensor, a tuple or list of positional arguments, a mapping of keyword arguments,
            or None to infer.
        target: a tensor, a list of class ids or values, or None.
    """
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise OptionError(
            "the model has lazy modules, which their first call changes permanently",
            help="call it once on a batch, `model(inputs)`, before inspecting it",
        )
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise OptionError(
            "the model was made under `torch.inference_mode()`: its parameters take no gradient",
            help="make it outside of the block",
        )
    _check(settings)
    compiled = compiled_of(model)
    model, wrappers = unwrapped(model)
    first = next(model.parameters(), torch.empty(0, device="cpu"))
    seed = settings.get("seed", 0)
    targets = Targets(Path.cwd())
    kind = ModelKind("python", type(model).__name__)
    context = Context(
        *(model, kind, Path.cwd(), nowhere, first.device, first.dtype, targets.instantiate)
    )
    notices: list[str] = []
    own_target = settings.get("loss") not in (None, "output")
    method = step_method(model, settings.get("call"), own_target=own_target)
    check_given(method, inputs, target, None)
    if inputs is None:
        batches, notices, target = make_batches(
            None, target, replace(context, notices=[]), seed=seed
        )
    else:
        batches = given(inputs, as_one=method is not None and method.as_one)
    target = _tensor(target, first.device)
    if method is not None:
        batches, target = method.batches(batches, target), target if method.own_target else None
    gradient = settings.get("backward.gradient")
    wish = settings.get("loss")
    spec = wish if callable(wish) else losses.resolve(wish, targets.instantiate)
    mode = settings.get("mode") or ("train" if model.training else "eval")
    steps = settings.get("steps", 1)
    interventions = surgery.resolve(
        checked_interventions(settings.get("interventions", ())),
        model,
        lambda value, key: tensor_of(value, context, key),
    )
    return Workload(
        model=model,
        name=type(model).__name__,
        batches=batches,
        criterion=Criterion(spec, target, seed=seed, external_gradient=gradient is not None),
        make_optimizer=_optimizer(settings.get("optimizer"), steps, targets, model),
        device=first.device,
        dtype=first.dtype,
        autocast=devices.resolve_autocast(settings.get("autocast"), None),
        mode=mode,
        seed=seed,
        steps=steps,
        accumulate=settings.get("accumulate", 1),
        repeats=settings.get("backward.repeats", 1),
        retain_graph=settings.get("backward.retain_graph", False),
        gradient=gradient,
        interventions=interventions,
        notices=[
            *wrappers,
            *(method.notices if method else []),
            *notices,
            *surgery.notices(interventions),
        ],
        config={"model": type(model).__qualname__, "mode": mode, "steps": steps, "seed": seed},
        method=method,
        compiled=compiled,
        live=True,
    )


def _check(settings: Settings) -> None:
    """Refuse at once settings that fail later or would be misread silently."""
    for key, (fits, wanted, help) in _WANTED.items():
        wish = settings.get(key)
        if wish is None or fits(wish):
            continue
        close = did_you_mean(wish, _MODES) if key == "mode" and isinstance(wish, str) else None
        name = key.rpartition(".")[2]
        raise OptionError(f"`{name}` is {wish!r}, and must be {wanted}", help=close or help)


def _integer(low: int, high: float = math.inf) -> Callable[[Any], bool]:
    return lambda wish: isinstance(wish, int) and not isinstance(wish, bool) and low <= wish < high


_MODES = ("train", "eval")
_WANTED: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "mode": (
        lambda wish: wish in _MODES,
        "`train` or `eval`",
        "leave it out to keep the model's own modes",
    ),
    "seed": (
        _integer(0, 2**32),
        "an integer from 0 to 4294967295",
        "leave it out to take 0",
    ),
    "loss": (
        lambda wish: callable(wish) or isinstance(wish, str | Mapping),
        "a built-in's name or something to call",
        f"one of {', '.join(LOSSES)}, or `loss=lambda output: output.sum()`",
    ),
    "optimizer": (
        lambda wish: callable(wish) or isinstance(wish, Mapping | Optimizer),
        "a function from the parameters to an optimizer",
        "write `optimizer=lambda params: torch.optim.SGD(params, lr=0.01)`",
    ),
    "autocast": (
        lambda wish: isinstance(wish, str),
        "`bfloat16` or `float16`",
        "name the dtype, as in `autocast='bfloat16'`",
    ),
    "steps": (_integer(1), "an integer from 1", "leave it out for one forward and backward"),
    "accumulate": (_integer(1), "an integer from 1", "leave it out to take the batch at once"),
    "backward.repeats": (_integer(1), "an integer from 1", "leave it out for one backward"),
    "backward.retain_graph": (
        lambda wish: isinstance(wish, bool),
        "True or False",
        "leave it out to free the graph after backward",
    ),
}


def _tensor(target: Any, device: torch.device) -> Any:
    """Return numbers as a tensor, and anything else (``random``, a nesting for the user's loss) as
    it is.

    Tensors made under ``torch.inference_mode()`` are copied, because a graph cannot hold them.
    """
    if isinstance(target, bool | int | float):
        return torch.tensor([target], device=device)
    if isinstance(target, list) and target and not isinstance(target[0], torch.Tensor | dict):
        return torch.tensor(target, device=device)
    return replaced(target, torch.Tensor, lambda t: t.clone() if t.is_inference() else t)


def _optimizer(
    wish: Any, steps: int, targets: Targets, model: nn.Module
) -> Callable[[nn.Module], Optimizer] | None:
    if isinstance(wish, Optimizer):
        raise OptionError(
            "`optimizer` is already made, and a step would change its state",
            help="give a function that makes one: "
            "`optimizer=lambda params: torch.optim.SGD(params, lr=0.01)`",
        )
    if isinstance(wish, Mapping):
        return optimizer_maker(wish, targets, model)
    if callable(wish):
        return lambda module: wish(module.parameters())
    return default_optimizer if steps > 1 else None
