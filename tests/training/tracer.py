"""The independent judge: what a training script does, as seen without anything of gradscope.

``python tracer.py OUT.json SCRIPT.py [ARGS…]`` (or ``-m MODULE [ARGS…]``) runs the script under
torch.optim's hooks and a wrapped ``torch.autograd.backward``, and writes what each optimizer step
did. The script computes in its own precision; norms are computed in float64.

A step is a call of an optimizer's ``step()`` that came through, counted from 1 over all optimizers;
in a script that has none, each backward. What a gradient scaler multiplied into a loss is divided
out of it and of its gradients.
"""

from __future__ import annotations

import gc
import json
import math
import os
import runpy
import sys
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

_THIS = __file__


class Tracer:
    """Watches one process; ``report()`` is what it saw."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.pid = os.getpid()
        self.steps: list[dict[str, Any]] = []
        self.backwards: list[dict[str, Any]] = []
        self.pending: list[dict[str, Any]] = []
        self.skipped = 0
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.names: dict[int, tuple[weakref.ref[Any], set[tuple[str, str]]]] = {}
        self.scales: dict[int, tuple[Any, float]] = {}
        self.weights: dict[int, Any] = {}
        self.clipped: dict[int, float] = {}

    def install(self) -> None:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        torch = self.torch
        plain_backward = torch.autograd.backward
        plain_init = torch.optim.Optimizer.__init__
        scaler = torch.amp.GradScaler
        plain_scale, plain_step = scaler.scale, scaler.step

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            losses = self._losses(tensors)
            result = plain_backward(tensors, *args, **kwargs)
            self._after_backward(*losses)
            return result

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self.optimizers.add(optimizer)
            plain_init(optimizer, *args, **kwargs)

        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = plain_scale(scaler, outputs)
            if isinstance(scaled, torch.Tensor) and scaler.is_enabled():
                self.scales[id(scaled)] = (scaled, scaler.get_scale())
            return scaled

        def step(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(self.steps)
            result = plain_step(scaler, *args, **kwargs)
            if len(self.steps) == before:
                self.skipped += 1
                self.pending.clear()
            return result

        torch.autograd.backward = backward
        torch.optim.Optimizer.__init__ = init
        scaler.scale, scaler.step = scale, step
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    # -- backward

    def _losses(self, tensors: Any) -> tuple[float | None, float]:
        """The loss without its scale, and the scale."""
        tensors = (tensors,) if isinstance(tensors, self.torch.Tensor) else tuple(tensors)
        if len(tensors) != 1 or tensors[0].numel() != 1:
            return None, 1.0
        _, scale = self.scales.pop(id(tensors[0]), (None, 1.0))
        return tensors[0].detach().double().item() / scale, scale

    def _after_backward(self, loss: float | None, scale: float) -> None:
        if os.getpid() != self.pid:
            return
        parameters = list(self._parameters())
        norms = {id(p): norm(p.grad) / scale for p in parameters if p.grad is not None}
        record = {"loss": number(loss), "scale": scale, "norms": norms}
        self.pending.append(record)
        if not self.optimizers:
            self._learn_names()
            self.backwards.append(
                {
                    "optimizer": "",
                    "losses": [number(loss)],
                    "gradient_norm": number(total(norms.values())),
                    "clipped_norm": None,
                    "learning_rates": [],
                    "parameters": [
                        self._parameter(p, norms.get(id(p)), None, None)
                        for p in parameters
                        if p.grad is not None
                    ],
                }
            )

    def _parameters(self) -> Iterable[Any]:
        """Of all optimizers; in a script that has none, of all modules that are alive."""
        seen: dict[int, Any] = {}
        for optimizer in list(self.optimizers):
            for group in optimizer.param_groups:
                seen.update((id(p), p) for p in group["params"])
        if not self.optimizers:
            for module in modules_alive(self.torch):
                seen.update((id(p), p) for p in module.parameters())
        return seen.values()

    # -- step

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if os.getpid() != self.pid:
            return None
        self._learn_names()
        self.weights = {id(p): p.detach().clone() for p in parameters_of(optimizer)}
        self.clipped = {}
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._read_clipped(optimizer)
            return None

        def watched() -> Any:
            result = closure()
            self._read_clipped(optimizer)
            return result

        if len(args) > 1:
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    def _read_clipped(self, optimizer: Any) -> None:
        """The gradients as the optimizer gets them; a closure that runs again replaces them."""
        with self.torch.no_grad():
            self.clipped = {
                id(p): norm(p.grad) for p in parameters_of(optimizer) if p.grad is not None
            }

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if os.getpid() != self.pid:
            return
        parameters = list(parameters_of(optimizer))
        last = self.pending[-1]["norms"] if self.pending else {}
        norms = {id(p): last[id(p)] for p in parameters if id(p) in last}
        rows = []
        for p in parameters:
            before = self.weights[id(p)].double()
            size = before.norm().item()
            moved = (p.detach().double() - before).norm().item()
            ratio = moved / size if size else None
            rows.append(self._parameter(p, norms.get(id(p)), self.clipped.get(id(p)), ratio))
        self.steps.append(
            {
                "optimizer": type(optimizer).__name__,
                "losses": [r["loss"] for r in self.pending],
                "gradient_norm": number(total(norms.values())) if norms else None,
                "clipped_norm": number(total(self.clipped.values())) if self.clipped else None,
                "learning_rates": [float(group["lr"]) for group in optimizer.param_groups],
                "parameters": rows,
            }
        )
        self.weights, self.pending = {}, []

    # -- names

    def _learn_names(self) -> None:
        """Which variables hold the outermost modules, and what these call their parameters."""
        for name, module in variables(self.torch, sys._getframe(1)):
            for parameter, p in module.named_parameters(remove_duplicate=False):
                clean = parameter.replace("_orig_mod.", "").removeprefix("module.")
                ref, names = self.names.get(id(p), (None, set()))
                if ref is None or ref() is not p:
                    ref, names = weakref.ref(p), set()
                    self.names[id(p)] = ref, names
                names.add((name, clean))

    def _parameter(
        self, p: Any, grad: float | None, clipped: float | None, ratio: float | None
    ) -> dict[str, Any]:
        ref, names = self.names.get(id(p), (None, set()))
        return {
            "names": sorted(names) if ref is not None and ref() is p else [],
            "shape": list(p.shape),
            "grad_norm": number(grad),
            "clipped_norm": number(clipped),
            "update_ratio": number(ratio),
        }

    def report(self) -> dict[str, Any]:
        steps = self.steps or self.backwards
        return {
            "skipped": self.skipped,
            "steps": [{"step": number, **step} for number, step in enumerate(steps, 1)],
        }


def parameters_of(optimizer: Any) -> Iterable[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def norm(tensor: Any) -> float:
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    value: float = tensor.detach().double().norm().item()
    return value


def total(norms: Iterable[float]) -> float:
    return math.sqrt(sum(value**2 for value in norms))


def number(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity: they are written as words."""
    return value if value is None or math.isfinite(value) else repr(value)


def modules_alive(torch: Any) -> list[Any]:
    """The outermost modules of the process: those that no other module holds."""
    everything = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    inner = {id(child) for m in everything for child in m._modules.values()}
    return [m for m in everything if id(m) not in inner]


def variables(torch: Any, frame: FrameType | None) -> list[tuple[str, Any]]:
    """Modules in variables of the frames that are running, and in attributes of what these hold."""
    outermost = {id(m) for m in modules_alive(torch)}
    found: dict[tuple[str, int], Any] = {}
    here = {id(sys.modules["__main__"].__dict__): sys.modules["__main__"].__dict__}
    while frame is not None:
        if frame.f_code.co_filename not in (_THIS, "<frozen runpy>", runpy.__file__):
            here[id(frame.f_locals)] = dict(frame.f_locals)
            here[id(frame.f_globals)] = frame.f_globals
        frame = frame.f_back
    for scope in here.values():
        for name, value in list(scope.items()):
            _collect(torch, name, value, outermost, found)
            if not isinstance(value, torch.nn.Module) and hasattr(value, "__dict__"):
                for attribute, held in list(getattr(value, "__dict__", {}).items()):
                    _collect(torch, attribute, held, outermost, found)
    return [(name, module) for (name, _), module in found.items()]


def _collect(
    torch: Any, name: str, value: Any, outermost: set[int], found: dict[tuple[str, int], Any]
) -> None:
    if issubclass(type(value), torch.nn.Module):
        if id(value) in outermost:
            found[name, id(value)] = value
            found[type(value).__name__, id(value)] = value
    elif isinstance(value, list | tuple) and len(value) < 100:
        for i, element in enumerate(value):
            _collect(torch, f"{name}[{i}]", element, outermost, found)
    elif type(value) is dict and len(value) < 100 and not name.startswith("__"):
        for key, element in list(value.items()):
            if issubclass(type(element), torch.nn.Module):
                _collect(torch, f"{name}[{key!r}]", element, outermost, found)


def run(script: list[str]) -> Callable[[], object]:
    """What runs the script as ``python`` would, with its arguments in place."""
    if script[0] == "-m":
        sys.argv = script[1:]
        sys.path[0] = str(Path.cwd())
        return lambda: runpy.run_module(script[1], run_name="__main__", alter_sys=True)
    sys.argv = script
    sys.path[0] = str(Path(script[0]).resolve().parent)
    return lambda: runpy.run_path(script[0], run_name="__main__")


def main() -> None:
    out, script = Path(sys.argv[1]).resolve(), sys.argv[2:]
    start = run(script)
    tracer = Tracer()
    tracer.install()
    try:
        start()
    finally:
        if os.getpid() == tracer.pid:
            out.write_text(json.dumps(tracer.report(), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
