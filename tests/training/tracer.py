"""The independent judge: what a training script does, as seen without anything of gradscope.

``python tracer.py OUT.json SCRIPT.py [ARGS…]`` (or ``-m MODULE [ARGS…]``) runs the script under
torch.optim's hooks and a wrapped ``torch.autograd.backward``, and writes what each optimizer step
did. The script computes in its own precision; norms are computed in float64.

A step is a call of an optimizer's ``step()`` that came through, counted from 1 over all optimizers;
in a script that has none, each backward. What a gradient scaler multiplied into a loss is divided
out of it and of its gradients.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import json
import math
import os
import runpy
import sys
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tracer_names import held_in, modules_alive, scopes_of, variables


class Tracer:
    """Watches one process; ``report()`` is what it saw."""

    def __init__(self) -> None:
        self.torch: Any = None
        self.pid = os.getpid()
        self.steps: list[dict[str, Any]] = []
        self.backwards: list[dict[str, Any]] = []
        self.pending: list[float | str | None] = []
        self.norms: dict[int, float] = {}
        self.skipped = 0
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.names: dict[int, tuple[weakref.ref[Any], set[tuple[str, str]]]] = {}
        self.scales: dict[int, tuple[Any, float]] = {}
        self.weights: dict[int, Any] = {}
        self.clipped: dict[int, float] = {}

    def install(self) -> None:
        import torch
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self.torch = torch
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
        self.pending.append(number(loss))
        self.norms = norms
        if not self.optimizers:
            self._learn_names()
            self.backwards.append(
                {
                    "optimizer": [],
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
        norms = {id(p): self.norms[id(p)] for p in parameters if id(p) in self.norms}
        rows = []
        for p in parameters:
            before = self.weights[id(p)].double()
            size = before.norm().item()
            moved = (p.detach().double() - before).norm().item()
            ratio = moved / size if size else None
            rows.append(self._parameter(p, norms.get(id(p)), self.clipped.get(id(p)), ratio))
        self.steps.append(
            {
                "optimizer": self._names_of(optimizer),
                "losses": self.pending,
                "gradient_norm": number(total(norms.values())) if norms else None,
                "clipped_norm": number(total(self.clipped.values())) if self.clipped else None,
                "learning_rates": [float(group["lr"]) for group in optimizer.param_groups],
                "parameters": rows,
            }
        )
        self.weights, self.pending = {}, []

    # -- names

    def _learn_names(self) -> None:
        """Note the variables that hold the outermost modules, and their parameters' names."""
        for name, module in variables(self.torch, sys._getframe(1)):
            for parameter, p in module.named_parameters(remove_duplicate=False):
                clean = parameter.replace("_orig_mod.", "").removeprefix("module.")
                ref, names = self.names.get(id(p), (None, set()))
                if ref is None or ref() is not p:
                    ref, names = weakref.ref(p), set()
                    self.names[id(p)] = ref, names
                names.add((name, clean))

    def _names_of(self, optimizer: Any) -> list[str]:
        scopes = [vars(sys.modules["__main__"]), *scopes_of(sys._getframe(1))]
        held = {name for scope in scopes for name, value in held_in(scope) if value is optimizer}
        return sorted(held | {type(optimizer).__name__})

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


def run(script: list[str]) -> Callable[[], object]:
    """Return a function that runs the script as ``python`` would, with its arguments."""
    if script[0] == "-m":
        sys.argv = script[1:]
        sys.path[0] = str(Path.cwd())
        return lambda: runpy.run_module(script[1], run_name="__main__", alter_sys=True)
    sys.argv = script
    sys.path[0] = str(Path(script[0]).resolve().parent)
    return lambda: runpy.run_path(script[0], run_name="__main__")


class WhenTorchIsImported:
    """On ``sys.meta_path``: lets torch be imported by the caller that does it first, then calls
    back."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name)  # whoever asks, to import it or not
        assert spec is not None and spec.loader is not None
        plain = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            sys.meta_path.remove(self)
            plain(module)
            self.call()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def main() -> None:
    out, script = Path(sys.argv[1]).resolve(), sys.argv[2:]
    start = run(script)
    tracer = Tracer()
    if "torch" in sys.modules:  # in a copy of a process that has imported it
        tracer.install()
    else:
        sys.meta_path.insert(0, WhenTorchIsImported(tracer.install))

    def write() -> None:
        if os.getpid() == tracer.pid:
            out.write_text(json.dumps(tracer.report(), indent=1), encoding="utf-8")

    # The first to be registered is the last to run: scripts may train in their own handlers.
    atexit.register(write)
    start()


if __name__ == "__main__":
    main()
