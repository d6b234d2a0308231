"""Repeats a step for histograms of some layers: outputs, parameters, gradients."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gradscope.capture.histograms import counted
from gradscope.capture.hooks import hook_tensor, hooked
from gradscope.capture.recompute import in_backward
from gradscope.nesting import find
from gradscope.patterns import Named
from gradscope.records.full_samples import Histogram
from gradscope.running.step import Step


@dataclass
class _Output:
    """An output of a call: its histogram as it was returned, and what backward sends to it."""

    activation: Histogram
    gradient: torch.Tensor | None = None

    def add(self, gradient: torch.Tensor | None) -> None:
        """Gradients of several backwards add up."""
        if gradient is not None:
            gradient = gradient.detach()
            self.gradient = gradient.clone() if self.gradient is None else self.gradient + gradient


@dataclass
class _Outputs:
    """The outputs of the chosen modules' calls, in the order in which they were returned."""

    chosen: dict[nn.Module, Named]
    counts: Counter[nn.Module] = field(default_factory=Counter)
    found: list[_Output] = field(default_factory=list)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Only outputs are read."""

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Count what the call returned, and wait for its gradient."""
        if in_backward():  # a checkpoint's second pass is no second call
            return
        name, call = self.chosen[module].name, self.counts[module]
        self.counts[module] += 1
        for path, tensor in find(output, torch.Tensor):
            if tensor.device.type == "meta":
                continue
            what = counted(tensor)
            one = _Output(Histogram(name, "activation", path, call=call, **what))
            self.found.append(one)
            if tensor.requires_grad:
                hook_tensor(tensor, one.add)


def histograms(step: Step, chosen: dict[nn.Module, Named]) -> tuple[Histogram, ...]:
    """Of each call of the modules: its outputs and their gradients; then of their parameters.

    ``step`` is one that a rerun gives: it is run here.
    """
    outputs = _Outputs(chosen)
    # Scripted modules take no hooks; their parameters are still read.
    modules = [module for module in chosen if not isinstance(module, torch.jit.ScriptModule)]
    with hooked(modules, outputs.before, outputs.after):
        step.compute_gradients()
    found = []
    for one in outputs.found:
        found.append(one.activation)
        if one.gradient is not None:
            known = one.activation
            what = counted(one.gradient)
            found.append(Histogram(known.name, "gradient", known.path, call=known.call, **what))
    for module, named in chosen.items():
        for name, parameter in module.named_parameters(recurse=False):
            path = f"{named.name}.{name}".lstrip(".")
            for kind, tensor in (("value", parameter), ("gradient", parameter.grad)):
                if tensor is not None and tensor.device.type != "meta":
                    found.append(Histogram(named.name, kind, path, **counted(tensor)))
    return tuple(found)
