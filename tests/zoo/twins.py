"""A report's numbers against the twin's, and where the twin rounds otherwise, plain hooks'."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from truth.cases import Case, weighted_sum
from truth.compare import Comparison, compare, number_differences, stats_differences
from truth.containers import rebuilt
from truth.reductions import statistics
from truth.reference import observe

import gradscope
from gradscope.errors import ModelError
from gradscope.records.json import to_data
from zoo.observing import ONE_STEP, SEED, Gradients, seed_all

#: Differences that rounding can make, unlike a null, a missing call or a wrong note.
ROUNDED = re.compile(r"\.(gradient|value)\.(norm|mean|std|min|max|zeros|values): |^loss: ")
#: What rounding in float64 leaves of terms that cancel, as a part of the largest gradient's norm.
NOISE = 1e-12
#: The same in float32, for a model that runs in nothing else.
SINGLE_NOISE = 1e-7
#: So many differences of a model are named.
_NAMED = 5


@dataclass
class Agreement:
    """Differences, the precision, and the number of tensors compared with the twin's."""

    differences: list[str]
    precision: str
    compared: int
    hidden: int


def gradient_rows(report: dict[str, Any], plain: Gradients) -> Iterator[str]:
    """Yield the differences between the report's parameter gradients and a plain step's."""
    rows = {row["name"]: row["gradient"] for row in report["parameters"]}
    for name in rows.keys() ^ plain.keys():
        yield f"{name}: parameter {'unknown' if name in rows else 'missing'}"
    for name in rows.keys() & plain.keys():
        yield from stats_differences(rows[name], plain[name], f"{name}.gradient (plain step)")


def against_twin(model: nn.Module, inputs: Any, report: dict[str, Any]) -> Agreement:
    """In float32; where rounding alone differs there, in float64, with the model made so.

    The twin's clones have other strides and meet in another order, so its float32 may round
    otherwise. Then the float32 report is compared with what plain hooks see of the model itself.
    """
    found, precision, said = _compared(model, inputs, report), "float32", []
    if found.differences and all(ROUNDED.search(text) for text in found.differences):
        said = list(_output_rows(report, hooked_outputs(model, inputs)))[:_NAMED]
        try:
            found, precision = _in_float64(copy.deepcopy(model), inputs), "float64"
        except ModelError:  # it makes float32 tensors of its own: only what cancels may differ
            found = _compared(model, inputs, report, noise=SINGLE_NOISE)
    more = len(found.differences) - _NAMED
    said += found.differences[:_NAMED]
    said += [f"and {more} more"] if more > 0 else []
    return Agreement(said, precision, found.compared, found.hidden)


def _in_float64(model: nn.Module, inputs: Any) -> Comparison:
    model, inputs = model.double(), rebuilt(inputs, "", _wide)
    if hasattr(model, "set_experts_implementation"):  # the grouped kernel has no float64
        model.set_experts_implementation("eager")
    report = to_data(gradscope.inspect(model, inputs, loss=weighted_sum, **ONE_STEP))
    return _compared(model, inputs, report, noise=NOISE)


def _wide(tensor: Tensor, path: str) -> Tensor:
    # torchvision's detectors refuse key points that are not float32.
    floating = tensor.is_floating_point() and not path.endswith(".keypoints")
    return tensor.double() if floating else tensor


def _compared(
    model: nn.Module, inputs: Any, report: dict[str, Any], noise: float = 0.0
) -> Comparison:
    args, kwargs = Case.arguments(copy.deepcopy(inputs))
    seed_all()
    truth = observe(model, args, kwargs, weighted_sum, seed=SEED)
    found = compare(report, truth, noise=noise)
    if any(": grad_fn " in text for text in found.differences):
        # The twin's tensors are clones: it cannot tell what a write through a view makes of one.
        said = hooked_outputs(model, inputs)
        for call in truth.calls:
            for slot in call.outputs:
                known = said.get((call.name, call.call, slot.path))
                slot.token.grad_fn = known.grad_fn if known else slot.token.grad_fn
        found = compare(report, truth, noise=noise)
    return found


@dataclass
class Output:
    """A tensor that a module returned, as a plain hook sees it."""

    statistics: dict[str, Any]
    grad_fn: str | None


def hooked_outputs(model: nn.Module, inputs: Any) -> dict[tuple[str, int, str], Output]:
    """Return PyTorch's outputs, by plain hooks on a copy: module, call and path → output."""
    model, inputs = copy.deepcopy(model), copy.deepcopy(inputs)
    counts: dict[str, int] = {}
    running: list[tuple[str, int]] = []
    seen: dict[tuple[str, int, str], Output] = {}

    def begin(name: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            running.append((name, counts.setdefault(name, 0)))
            counts[name] += 1

        return hook

    def end(module: nn.Module, args: Any, output: Any) -> None:
        name, number = running.pop()

        def note(tensor: Tensor, path: str) -> Tensor:
            fn = type(tensor.grad_fn).__name__ if tensor.grad_fn else None
            seen[name, number, path] = Output(statistics(tensor), fn)
            return tensor

        rebuilt(output, "", note)

    for name, module in model.named_modules():
        module.register_forward_pre_hook(begin(name))
        module.register_forward_hook(end)
    args, kwargs = Case.arguments(inputs)
    seed_all()
    model(*args, **kwargs)
    return seen


def _output_rows(report: dict[str, Any], seen: dict[tuple[str, int, str], Output]) -> Iterator[str]:
    """Yield the differences between the report's outputs and the plain hooks'."""
    for row in report["calls"]:
        for tensor in row["outputs"]:
            place = (row["name"], row["call"], tensor["path"])
            if place not in seen:
                yield f"{place}: no such output"
                continue
            at = f"{row['name']}#{row['call']}.outputs[{tensor['path']}].value (plain hooks)"
            yield from number_differences(tensor["activation"], seen[place].statistics, at)
