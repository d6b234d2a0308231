"""Tests whether the gradients of micro-batches add up to the full batch's; if not, finds the layers
and the cause.

To find a cause, it removes it: batch norms and modules that draw random numbers run in eval mode,
and it solves for the weights with which the micro-batches' gradients do add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradscope.capture.hooks import hookable_modules, hooked
from gradscope.capture.names import module_names, named_modules
from gradscope.loading.workload import Workload, in_float64
from gradscope.records.full_samples import AccumulatedLayer, Accumulation, AccumulationCause
from gradscope.running.rerun import rerun
from gradscope.running.state import random_states
from gradscope.running.step import Step, repeated, zero_gradients

#: A layer's gradients, of all its parameters as one vector, by the layer's name.
_Vectors = dict[str, torch.Tensor]


def accumulation(workload: Workload, number: int) -> Accumulation:
    """Return the verdict on one step of a run that accumulates; the model's state is restored."""
    try:
        return _verdict(in_float64(workload), number)
    except Exception:
        # A model that cannot be copied, or not run in float64, runs in its own dtype.
        return _verdict(workload, number)


def _verdict(workload: Workload, number: int) -> Accumulation:
    with rerun(workload, number) as step:
        return _Comparison(step).verdict()


@dataclass
class _Gradients:
    """Gradients of the full batch, and of each micro-batch before its loss is divided."""

    full: _Vectors
    parts: list[_Vectors]


@dataclass
class _Comparison:
    """One step in one batch and in micro-batches, with and without each possible cause."""

    step: Step
    sizes: list[int] = field(default_factory=list)

    def verdict(self) -> Accumulation:
        """Compare the gradients; search for causes only if they differ."""
        count = self.step.workload.accumulate
        found = self._gradients([])
        first = next(iter(found.full.values()), torch.empty(0, device="cpu"))
        self.tolerance = math.sqrt(torch.finfo(first.dtype).eps)
        errors = self._errors(found, [1 / count] * count)
        causes, by_layer = self._causes(found, errors) if self._differ(errors) else ([], {})
        return Accumulation(
            equal=not self._differ(errors),
            sizes=tuple(self.sizes),
            dtype=str(first.dtype).removeprefix("torch."),
            tolerance=self.tolerance,
            error=max(errors.values(), default=0.0),
            layers=tuple(
                AccumulatedLayer(name, found.full[name].numel(), error, by_layer.get(name, ()))
                for name, error in errors.items()
            ),
            causes=tuple(causes),
        )

    # ---------------------------------------------------------------- running

    def _gradients(self, evaluated: Sequence[nn.Module]) -> _Gradients:
        """Return the gradients of the full batch and the parts, with some modules in evaluation
        mode."""
        full = replace(self.step.workload, accumulate=1)
        with repeated(replace(self.step, workload=full), weights=True) as step:
            with _in_evaluation(evaluated):
                step.compute_gradients()
            everything = _vectors(step.workload.model, None)
        parts, count = [], self.step.workload.accumulate
        self.sizes = []
        with repeated(self.step, weights=True) as step, _in_evaluation(evaluated):
            for part in step.parts():
                zero_gradients(step.workload.model)
                part.compute_gradients()
                parts.append(_vectors(step.workload.model, everything, factor=count))
                assert part.part is not None
                self.sizes.append(part.part.stop - part.part.start)
        return _Gradients(everything, parts)

    def _drawing(self) -> list[nn.Module]:
        """Return the modules whose own code draws random numbers in a training forward of the full
        batch."""
        drew: list[nn.Module] = []
        running: list[tuple[torch.Tensor, bool]] = []

        def states() -> torch.Tensor:
            return torch.cat([one.state for one in random_states()])

        def before(*_: Any) -> None:
            running.append((states(), False))

        def after(module: nn.Module, *_: Any) -> None:
            state, inner = running.pop()
            moved = not torch.equal(state, states())
            if moved and not inner:
                drew.append(module)
            if moved and running:
                running[-1] = (running[-1][0], True)

        full = replace(self.step.workload, accumulate=1)
        hookable = hookable_modules(full.model)
        plain = repeated(replace(self.step, workload=full), weights=True)
        with plain as step, hooked(hookable, before, after):
            step.forward()
        return list(dict.fromkeys(drew))

    # ---------------------------------------------------------------- comparing

    def _errors(self, found: _Gradients, weights: Sequence[float]) -> dict[str, float]:
        """Return by layer the relative error of the weighted sum against the full batch's
        gradient.

        A gradient that is zero except for rounding, such as of a bias before a batch norm, is
        measured relative to the others.
        """
        total = math.hypot(*(float(v.norm()) for v in found.full.values()))
        least = min(1.0, 100 * self.tolerance) * total
        errors = {}
        for name, full in found.full.items():
            added = sum(w * part[name] for w, part in zip(weights, found.parts, strict=True))
            size = max(float(full.norm()), least)
            error = float((full - added).norm()) / size if size else 0.0
            errors[name] = error if math.isfinite(error) else math.inf
        return errors

    def _differ(self, errors: dict[str, float]) -> bool:
        return any(error > self.tolerance for error in errors.values())

    def _causes(
        self, found: _Gradients, errors: dict[str, float]
    ) -> tuple[list[AccumulationCause], dict[str, tuple[str, ...]]]:
        """Find the causes of the difference, and the causes in each layer."""
        names = module_names(self._model)
        modules = self._model.modules()
        norms: list[nn.Module] = [m for m in modules if isinstance(m, _BatchNorm) and m.training]
        drawing = [m for m in self._drawing() if m.training and m not in norms]
        calm = self._gradients([*norms, *drawing]) if norms or drawing else found
        even = [1 / len(calm.parts)] * len(calm.parts)
        uneven = self._differ(self._errors(calm, even))
        weights = _weights(calm) if uneven else even
        # A layer has a cause if it still differs after every other cause was removed.
        left = self._errors(calm, weights)
        trials: dict[str, tuple[list[nn.Module], list[nn.Module]]] = {
            "batch-statistics": (norms, drawing),
            "random-numbers": (drawing, norms),
        }
        by_kind = {
            kind: self._errors(self._gradients(others) if others else found, weights)
            for kind, (own, others) in trials.items()
            if own
        }
        if self._differ(left):  # the weights explain nothing
            by_kind["unknown"] = left
        elif uneven:
            by_kind["loss"] = self._errors(calm, even)
        active = {
            kind: {name for name, error in of.items() if error > self.tolerance}
            for kind, of in by_kind.items()
        }
        causes = [
            _cause(
                kind, tuple(names[m] for m in trials.get(kind, ([], []))[0]), weights, self.sizes
            )
            for kind, layers in active.items()
            for own, _ in [trials.get(kind, ([], []))]
            if layers
        ]
        by_layer = {
            name: tuple(kind for kind, layers in active.items() if name in layers)
            for name, error in errors.items()
            if error > self.tolerance
        }
        return causes, by_layer

    @property
    def _model(self) -> nn.Module:
        return self.step.workload.model


@contextmanager
def _in_evaluation(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put some modules, without their children, into evaluation mode. The caller restores them."""
    for module in modules:
        module.training = False
    yield


def _vectors(model: nn.Module, like: _Vectors | None, *, factor: float = 1.0) -> _Vectors:
    """Return the existing gradients times ``factor``; ``like`` has the wanted layers."""
    found: dict[str, list[torch.Tensor]] = {}
    for module, named in named_modules(model).items():
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad:
                gradient = parameter.grad
                if gradient is None:
                    gradient = torch.zeros_like(parameter)
                dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
                found.setdefault(named.name, []).append(factor * dense.detach().reshape(-1))
    wanted = found if like is None else {name: found[name] for name in like}
    return {name: torch.cat(parts) for name, parts in wanted.items()}


def _weights(found: _Gradients) -> list[float]:
    """Return the weights for which the micro-batches' gradients come closest to the full
    batch's."""
    rows = [torch.cat([part[name] for name in found.full]) for part in found.parts]
    full = torch.cat(list(found.full.values()))
    matrix = torch.stack(rows, dim=1).double().cpu()
    # By singular values, because the default driver finds no weights if a column is zero, such as
    # for a micro-batch without effect, or if columns depend on one another.
    solved = torch.linalg.lstsq(matrix, full.double().cpu().unsqueeze(1), driver="gelsd").solution
    return [float(weight) for weight in solved.flatten()]


def _cause(
    kind: str, names: tuple[str, ...], weights: Sequence[float], sizes: Sequence[int]
) -> AccumulationCause:
    count = len(sizes)
    if kind == "batch-statistics":
        message = "batch norm takes mean and variance over each micro-batch, not over the batch"
        advice = (
            "use a norm over single samples (GroupNorm, LayerNorm), or freeze the"
            " batch norms: `module.eval()`"
        )
        return AccumulationCause(kind, message, advice, names)
    if kind == "random-numbers":
        message = "each micro-batch draws new random numbers"
        advice = "nothing is wrong: the means over many draws agree; `mode=eval` removes it"
        return AccumulationCause(kind, message, advice, names)
    if kind == "unknown":
        message = "another operation mixes the samples of a batch, or is not a sum over them"
        advice = "search for operations over the first dimension: means, sorting, pairs"
        return AccumulationCause(kind, message, advice)
    if all(abs(weight - 1) < 1e-3 for weight in weights):
        message = f"the loss is a sum over the samples, but was divided by {count}"
        advice = f"do not divide a summed loss by {count}"
        return AccumulationCause(kind, message, advice, weights=tuple(weights))
    shares = [size / sum(sizes) for size in sizes]
    of = "samples" if _alike(weights, shares) else "elements (ignored targets, class weights)"
    shown = ", ".join(f"{weight:.4g}" for weight in weights)
    message = (
        f"the loss is a mean over unequal counts of {of}: their shares of the batch are {shown}, "
        f"but each counts as {1 / count:.4g} here"
    )
    advice = "sum each micro-batch's loss, and divide by the count of the full batch"
    return AccumulationCause(kind, message, advice, weights=tuple(weights))


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a - b) < 1e-3 for a, b in zip(one, other, strict=True))
