"""Traces a step of a training script for NaN and Inf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType

import torch
from torch import nn

from gradscope.capture.hooks import hooked, watchable
from gradscope.capture.names import buffer_names, first_names
from gradscope.explain.non_finite.explain_non_finite import gradients, stays
from gradscope.explain.non_finite.operation_tracer import NonFiniteTracer
from gradscope.explain.non_finite.origin_messages import records
from gradscope.records.answers import NonFiniteOrigin


class ScriptStepTracer:
    """Looks at every operation from one moment of a training to another.

    Args:
        models: those that are trained, by name.
        last: the code of the function that runs the script: the frames around it are not the
            user's.
    """

    def __init__(self, models: Mapping[str, nn.Module], last: CodeType) -> None:
        self._model = _together(models)
        self._tracer = NonFiniteTracer(self._model, last)
        self._stack = ExitStack()
        self._left: list[NonFiniteOrigin] = []
        self._stack.enter_context(
            hooked(watchable(self._model), self._tracer.enter, self._tracer.leave)
        )
        self._stack.enter_context(self._tracer.active())

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """What is computed in the block is not the script's."""
        with self._tracer.ignoring():
            yield

    def backward_begins(self, roots: Sequence[torch.Tensor]) -> None:
        """Forward and loss are done."""
        named = [("loss", root) for root in roots]
        self._left += stays(self._tracer, "loss", named)
        self._left += stays(self._tracer, "forward", buffer_names(self._model))
        self._tracer.context.stage = "backward"

    def backward_ended(self) -> None:
        """The gradients are there; another forward may come."""
        self._left += stays(self._tracer, "backward", gradients(self._model))
        self._tracer.context.stage = "forward"

    def step_begins(self) -> None:
        """The optimizer moves the weights."""
        self._tracer.context.stage = "step"

    def step_ended(self) -> tuple[NonFiniteOrigin, ...]:
        """The origins of NaN and Inf since the last step ended, oldest first."""
        self._left += stays(self._tracer, "step", first_names(self._model))
        self._tracer.external.kept_in_state()
        self._tracer.context.stage = "forward"
        names = {name for name, _ in first_names(self._model)}
        found = records(self._tracer.origins.reported(), names)
        left, self._left = self._left, []
        return found or tuple(left[:1])

    def remove(self) -> None:
        """Look no more."""
        self._stack.close()


def _together(models: Mapping[str, nn.Module]) -> nn.Module:
    """One model as it is; several in a module that names them and belongs to nobody."""
    if len(models) == 1:
        return next(iter(models.values()))
    around = nn.Module()
    around._modules.update(models)
    return around
