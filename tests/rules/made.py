"""Records by hand, for tables of what a rule must and must not say. No torch."""

from __future__ import annotations

import math
from typing import Any

from gradscope.records.modules import Link, ModuleCall, ModuleFacts, ParameterStats
from gradscope.records.report import Report
from gradscope.records.run import RunInfo, StepParameter, StepRecord
from gradscope.records.tensors import TensorRecord, TensorStats


def stats(shape: tuple[int, ...] = (4, 4), rms: float = 1.0, **more: Any) -> TensorStats:
    """Statistics of a tensor with this root mean square."""
    numel = math.prod(shape)
    values = {"norm": rms * math.sqrt(numel), "mean": 0.0, "std": rms, "min": -rms, "max": rms}
    values |= {"zeros": numel if rms == 0 else 0, "nan": 0, "inf": 0}
    return TensorStats(shape, more.pop("dtype", "float32"), numel, **{**values, **more})


def parameter(name: str, gradient: float | None = 1.0, **more: Any) -> ParameterStats:
    """A trainable weight whose gradient has this root mean square; None: it got none."""
    shape = more.pop("shape", (4, 4))
    arrived = None if gradient is None else stats(shape, gradient)
    value = more.pop("value", stats(shape))
    values = {"requires_grad": True, "gradient": arrived}
    return ParameterStats(name, shape, value=value, **{**values, **more})


def call(name: str, order: int, gradient: float | None = 1.0, **more: Any) -> ModuleCall:
    """A call whose output has a gradient of this root mean square."""
    arrived = None if gradient is None else stats(rms=gradient)
    output = TensorRecord("", more.pop("output", stats()), arrived)
    given = more.pop("input", None)
    values = {"type": "Linear", "call": 0, "order": order, "outputs": (output,)}
    values["inputs"] = (TensorRecord("0", given),) if given is not None else ()
    return ModuleCall(name, **{**values, **more})


def facts(name: str, *parameters: str, **more: Any) -> ModuleFacts:
    """A module that ran once, with these parameters of its own."""
    values = {"type": "Linear", "kinds": ("Linear",), "calls": 1, "parameters": parameters}
    return ModuleFacts(name, **{**values, **more})


def stack(*gradients: float | None, stds: tuple[float, ...] = ()) -> Report:
    """Layers one behind the other, with the gradient at the output of each, first to last."""
    calls, parameters, modules = [], [], []
    for i, gradient in enumerate(gradients):
        output = stats(rms=stds[i] if stds else 1.0)
        calls.append(call(f"l{i}", i + 1, gradient, output=output))
        parameters.append(parameter(f"l{i}.weight", gradient))
        modules.append(facts(f"l{i}", f"l{i}.weight"))
    return report(calls=tuple(calls), parameters=tuple(parameters), modules=tuple(modules))


def steps(*norms: float, **parameters: tuple[float, ...]) -> tuple[StepRecord, ...]:
    """A history with these gradient norms, and those of parameters by name."""
    return tuple(
        StepRecord(
            i, 0, 1.0, gradient_norm=norm,
            parameters=tuple(StepParameter(name, v[i]) for name, v in parameters.items()),
        )
        for i, norm in enumerate(norms)
    )  # fmt: skip


def link(op: str, into: str, name: str | None = "net", **more: Any) -> Link:
    """Two operations that meet, by their short names."""
    return Link(f"{op}Backward0", f"{into}Backward0", name, **more)


def report(**fields: Any) -> Report:
    """A complete report; ``run`` is a mapping of what differs."""
    run: dict[str, Any] = {
        "model": "net", "device": "cpu", "dtype": "float32", "mode": "train", "seed": 0,
        "steps": 1, "loss": "cross_entropy", **fields.pop("run", {}),
    }  # fmt: skip
    return Report(fields.pop("status", "ok"), RunInfo(**run), **fields)
