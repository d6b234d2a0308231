"""Repeats a step for sketches of its tensors; and with changed last bits, for their noise."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from gradscope.capture.names import named_parameters
from gradscope.capture.probes import ProbeKey
from gradscope.capture.sketches import Projection, projected
from gradscope.loading.workload import Workload
from gradscope.records.full_samples import SKETCH_BITS, Sketch
from gradscope.running.compared_runs import DRAWS, harmless_step, last_bit
from gradscope.running.plain_calls import Gradients, plain_step
from gradscope.running.probed_step import moved, probed_step

#: Of a tensor with a norm below this, or above its inverse, float32 loses more than a last bit.
_SMALL = 1e-28


@dataclass
class _Projections:
    """The projection of everything that the probes of a step see.

    Where there is ``noise``, what is given on is moved by this share of itself.
    """

    modules: Collection[str]
    noise: float = 0.0
    draw: int = 0
    values: dict[ProbeKey, Projection] = field(default_factory=dict)
    gradients: dict[ProbeKey, Projection] = field(default_factory=dict)
    arrived: Gradients = field(default_factory=dict)
    _moved: int = 0

    def forward(self, key: ProbeKey, tensor: torch.Tensor) -> torch.Tensor:
        """Project the tensor."""
        if key.name in self.modules:
            self.values[key] = projected(tensor)
        copy = torch.empty_like(tensor, requires_grad=False)
        return copy.copy_(self._next(tensor.detach()))

    def backward(self, key: ProbeKey, gradient: torch.Tensor) -> torch.Tensor:
        """The same of its gradient; those of several backwards add up."""
        if key.name in self.modules:
            found, before = projected(gradient), self.gradients.get(key)
            self.gradients[key] = found if before is None else before + found
        return self._next(gradient)

    def end(self, loss: torch.Tensor, parameters: Gradients) -> None:
        """Keep what arrived at the parameters."""
        self.arrived = parameters

    def _next(self, tensor: torch.Tensor) -> torch.Tensor:
        self._moved += 1
        return moved(tensor, self.noise, seed=self._moved)


def sketches(
    workload: Workload, modules: Collection[str], number: int = 0
) -> tuple[tuple[Sketch, ...], list[str]]:
    """Sketches of what the calls of some modules took and returned, and of their parameters.

    Args:
        workload: the workload to run; its state is restored.
        modules: their names.
        number: of the step.

    Returns:
        The sketches, in the order of forward, the parameters' last; and notices.
    """
    plain = plain_step(workload, number)
    found, unprobed, said = harmless_step(
        workload, plain, lambda: _Projections(modules), "the model", number
    )
    step = SKETCH_BITS * last_bit(workload)
    draws = [_Projections(modules, noise=step, draw=n) for n in range(DRAWS)]
    for one in draws:
        probed_step(workload, one, unprobed, number)
    # What float32 loses of a sketch is less than its last bit in the tensor.
    form = "<f4" if step > torch.finfo(torch.float32).eps else "<f8"
    made = (*_of_calls(found, draws, form), *_of_parameters(workload, found, draws, form, step))
    return made, said


def _of_calls(found: _Projections, draws: Sequence[_Projections], form: str) -> Iterator[Sketch]:
    for key, value in found.values.items():
        side = "output" if key.output else "input"
        pairs = (
            (side, value, [one.values.get(key) for one in draws]),
            (f"grad_{side}", found.gradients.get(key), [one.gradients.get(key) for one in draws]),
        )
        for kind, projection, others in pairs:
            if projection is not None and math.isfinite(projection.norm):
                noise = _noise(projection, others)
                text = _text(projection, form)
                yield _sketch(key.name, kind, key.path, projection, text, noise, key)


def _of_parameters(
    workload: Workload,
    found: _Projections,
    draws: Sequence[_Projections],
    form: str,
    step: float,
) -> Iterator[Sketch]:
    for parameter, named in named_parameters(workload.model).items():
        module = named.name.rpartition(".")[0]
        if module not in found.modules:
            continue
        value = projected(parameter)
        yield _sketch(module, "value", named.name, value, _text(value, form), step)
        gradient = found.arrived[named.name]
        if gradient is not None:
            others = [one.arrived[named.name] for one in draws]
            moved = [None if other is None else projected(other) for other in others]
            projection = projected(gradient)
            noise, text = _noise(projection, moved), _text(projection, form)
            yield _sketch(module, "gradient", named.name, projection, text, noise)


def _noise(one: Projection, others: Sequence[Projection | None]) -> float | None:
    """How far the others are from it at the most, as its share; None where there is no saying."""
    known = [other for other in others if other and other.nonfinite == one.nonfinite]
    if len(known) < len(others) or not one.norm:
        return None
    differences = (float(torch.linalg.vector_norm(other.numbers - one.numbers)) for other in known)
    share = max(differences) / one.norm
    return share if math.isfinite(share) else None


def _text(projection: Projection, form: str) -> str:
    """The numbers as they are saved; those beyond float32 are kept in float64."""
    size = projection.norm
    form = form if not size or _SMALL < size < 1 / _SMALL else "<f8"
    numbers = projection.numbers.numpy().astype(form).tobytes()
    return base64.b64encode(numbers).decode("ascii")


def _sketch(
    name: str,
    kind: str,
    path: str,
    projection: Projection,
    text: str,
    noise: float | None,
    key: ProbeKey | None = None,
) -> Sketch:
    return Sketch(
        name,
        kind,
        path,
        projection.norm,
        text,
        call=None if key is None else key.call,
        noise=noise,
        nonfinite=projection.nonfinite,
    )
