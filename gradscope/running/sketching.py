"""Repeats a step to make sketches of its tensors, and with changed last bits to measure their
noise.

A sketch's numbers are the same on every machine, device and memory layout.
"""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from gradscope.capture.names import named_parameters
from gradscope.loading.workload import Workload
from gradscope.records.full_samples import SKETCH_BITS, SKETCH_WIDTH, Sketch
from gradscope.records.tensors import finite_or_none
from gradscope.running.compared_runs import DRAWS, harmless_step, last_bit
from gradscope.running.probed_step import ProbeKey, StepProbe, moved, probed_step
from gradscope.running.rerun import plain_step

_CHUNK = 1 << 18  # elements that are held in float64 at a time
_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Projection:
    """The numbers of a sketch, in float64 on the CPU, and the norm of the finite elements."""

    numbers: torch.Tensor
    norm: float
    nonfinite: int

    def __add__(self, other: Projection) -> Projection:
        """Return the projection of the sum of two tensors; its norm comes from the sketch."""
        numbers = self.numbers + other.numbers
        norm = float(torch.linalg.vector_norm(numbers))
        return Projection(numbers, norm, self.nonfinite + other.nonfinite)


@torch.no_grad()
def projected(tensor: torch.Tensor) -> Projection:
    """Return the projection of a tensor of any shape and dtype; both parts of complex numbers
    count."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    numbers = torch.zeros(SKETCH_WIDTH, dtype=torch.float64, device="cpu")
    norm, nonfinite = torch.zeros((), dtype=torch.float64, device="cpu"), 0
    for n, chunk in enumerate(torch.split(tensor.reshape(-1), _CHUNK)):
        values = chunk.cpu().double()
        size = torch.linalg.vector_norm(values)
        if not bool(size.isfinite()):
            finite = values.isfinite()
            nonfinite += int((~finite).sum())
            values = values.where(finite, 0.0)
            size = torch.linalg.vector_norm(values)
        sums = torch.bincount(_places(n)[: len(values)], values, minlength=2 * SKETCH_WIDTH)
        numbers += sums[:SKETCH_WIDTH] - sums[SKETCH_WIDTH:]
        norm = torch.hypot(norm, size)
    return Projection(numbers, float(norm), nonfinite)


@functools.lru_cache(maxsize=64)
def _places(chunk: int) -> torch.Tensor:
    """Return the sketch's number to which each element of a chunk is added; ``SKETCH_WIDTH`` more
    means subtracted."""
    x = torch.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK, device="cpu")
    # T. Mueller's integer hash, whose products fit into int64.
    x = (x ^ (x >> 32)) & _LOW
    for _ in range(2):
        x = (((x >> 16) ^ x) * 0x45D9F3B) & _LOW
    x = (x >> 16) ^ x
    return (x % SKETCH_WIDTH + SKETCH_WIDTH * ((x >> 20) & 1)).to(torch.uint8)


#: For a tensor with a norm below this, or above its inverse, float32 loses more than the last bit.
_SMALL = 1e-28


@dataclass(kw_only=True)
class _Projections(StepProbe):
    """Projects everything that the probes of a step see.

    With ``noise``, each tensor passed on is moved by this share of itself.
    """

    modules: Collection[str]
    values: dict[ProbeKey, Projection] = field(default_factory=dict)
    gradients: dict[ProbeKey, Projection] = field(default_factory=dict)
    _moved: int = 0

    def value(self, key: ProbeKey, tensor: torch.Tensor) -> torch.Tensor:
        """Project the tensor."""
        if key.name in self.modules:
            self.values[key] = projected(tensor)
        copy = torch.empty_like(tensor, requires_grad=False)
        return copy.copy_(self._next(tensor.detach()))

    def gradient(self, key: ProbeKey, gradient: torch.Tensor) -> torch.Tensor:
        """Project the gradient; gradients of several backwards add up."""
        if key.name in self.modules:
            found, before = projected(gradient), self.gradients.get(key)
            self.gradients[key] = found if before is None else before + found
        return self._next(gradient)

    def _next(self, tensor: torch.Tensor) -> torch.Tensor:
        self._moved += 1
        return moved(tensor, self.noise, seed=self._moved)


def sketches(
    workload: Workload, modules: Collection[str], number: int = 0
) -> tuple[tuple[Sketch, ...], list[str]]:
    """Sketch the inputs and outputs of some modules' calls, and their parameters.

    Args:
        workload: the workload to run; its state is restored.
        modules: the modules' names.
        number: the number of the step.

    Returns:
        The sketches in the order of forward, parameters last; and notices.
    """
    plain = plain_step(workload, number)
    found, unprobed, remarks = harmless_step(
        workload, plain, lambda: _Projections(modules=modules), "the model", number
    )
    step = SKETCH_BITS * last_bit(workload)
    draws = [_Projections(modules=modules, noise=step, draw=n) for n in range(DRAWS)]
    for one in draws:
        probed_step(workload, one, unprobed, number)
    # float32 is enough for a sketch if the tensor's noise is larger than float32's last bit.
    form = "<f4" if step > torch.finfo(torch.float32).eps else "<f8"
    made = (*_of_calls(found, draws, form), *_of_parameters(workload, found, draws, form, step))
    return made, remarks


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
    """Return the largest relative difference of the other sketches from a sketch; None if
    unknown."""
    known = [other for other in others if other and other.nonfinite == one.nonfinite]
    if len(known) < len(others) or not one.norm:
        return None
    differences = (float(torch.linalg.vector_norm(other.numbers - one.numbers)) for other in known)
    share = max(differences) / one.norm
    return finite_or_none(share)


def _text(projection: Projection, form: str) -> str:
    """Return the numbers in their saved form; those beyond float32 are kept in float64."""
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
