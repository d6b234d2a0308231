"""Runs the model on batches that differ in one place, each from the same state and seed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn

from gradscope.capture.hooks import hooked
from gradscope.leaks.meaning import Meaning
from gradscope.loading.batches import Batch
from gradscope.loading.workload import Workload
from gradscope.nesting import find
from gradscope.running.rerun import StepFailed, rerun
from gradscope.running.step import GraphRoot, Observer, Step

_Result = TypeVar("_Result")

#: Outputs that are no prediction: their path's last part.
_ASIDE = {"loss", "aux_loss", "past_key_values", "cache", "attentions", "router_logits"}
_ASIDE |= {"state", "states", "cache_params", "rnn_state", "hidden_state", "present"}


@dataclass(kw_only=True)
class _OutputKept(Observer):
    """Keeps the model's output; no loss is computed."""

    output: Any = None

    def root(self, step: Step, output: Any) -> GraphRoot:
        self.output = output
        return torch.zeros(())


@dataclass
class Forwards:
    """Runs of one model.

    Attributes:
        workload: the workload, with the model in the mode of the run.
        meaning: the roles of its batch.
        forwards, backwards: the number of passes so far.
        training: modules that always run in training mode.
    """

    workload: Workload
    meaning: Meaning
    forwards: int = 0
    backwards: int = 0
    training: tuple[nn.Module, ...] = ()
    _known: dict[int, tuple[Mapping[str, torch.Tensor], dict[str, torch.Tensor]]] = field(
        default_factory=dict
    )

    def outputs(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the model's outputs on a batch, by their paths; the result is cached."""
        if id(tensors) not in self._known:
            self._known[id(tensors)] = tensors, self.run(tensors, lambda out, step: detached(out))
        return self._known[id(tensors)][1]

    def remember(
        self, tensors: Mapping[str, torch.Tensor], outputs: dict[str, torch.Tensor]
    ) -> None:
        """Store the outputs of a pass on this batch that ran elsewhere."""
        self._known.setdefault(id(tensors), (tensors, outputs))

    def again(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the forward again and return its outputs."""
        return self.run(tensors, lambda out, step: detached(out))

    def run(
        self,
        tensors: Mapping[str, torch.Tensor],
        then: Callable[[Any, Step], _Result],
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
        batch: Batch | None = None,
    ) -> _Result:
        """Run one forward pass; ``then`` gets its output before tensors are freed.

        Args:
            tensors: tensors that replace those of the batch, by path.
            then: makes the result.
            around: a context around the pass.
            batch: replaces the meaning's batch.

        Raises:
            StepFailed: the model raised.
        """
        self.forwards += 1
        batch = self.meaning.with_tensors(tensors) if batch is None else batch
        workload = replace(
            self.workload,
            batches=lambda: iter([batch]),
            steps=1,
            accumulate=1,
            repeats=1,
            make_optimizer=None,
        )
        observer = _OutputKept()
        with rerun(workload, observer=observer, weights=False) as step:
            for module in self.training:
                module.training = True
            try:
                with around():
                    step.forward()
            except Exception as failure:
                raise StepFailed(workload, "forward") from failure
            return then(observer.output, step)

    def embedded(
        self,
        tensors: Mapping[str, torch.Tensor],
        then: Callable[[Any, dict[str, list[torch.Tensor]]], _Result],
    ) -> _Result:
        """Run a forward pass whose graph starts at the sources; for tokens, at their embeddings.

        ``then`` gets the output, and for each source the tensors that can have gradients.
        """
        leaves: dict[str, list[torch.Tensor]] = {}
        own = {one.path: _leaf(tensors.get(one.path, one.tensor)) for one in self.meaning.sources}
        tokens = {path: t for path, t in own.items() if not t.is_floating_point()}

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            taken = [t for _, t in find((args, kwargs), torch.Tensor)]
            for path, ids in tokens.items():
                for t in taken:
                    if _embeds(module, t, ids, output):
                        output = output if output.requires_grad else output.requires_grad_()
                        leaves.setdefault(path, []).append(output)
                        return output
            return None

        def around() -> AbstractContextManager[Any]:
            modules = self.workload.model.modules()
            return hooked([m for m in modules if isinstance(m, nn.Embedding)], None, after)

        def done(output: Any, step: Step) -> _Result:
            inputs = dict(find((step.clone.args, step.clone.kwargs), torch.Tensor))
            for path, tensor in own.items():
                if tensor.is_floating_point():
                    leaves[path] = [inputs[path]]
            return then(output, leaves)

        return self.run({**tensors, **own}, done, around)

    def wide(self) -> Forwards | None:
        """Return ``Forwards`` in float64, on a copy of the model; None if it cannot be copied."""
        try:
            model = copy.deepcopy(self.workload.model).double()
        except Exception:
            return None  # then rounding cannot be told from a leak, and the caller says so
        workload = replace(
            self.workload, model=model, dtype=torch.float64, autocast=None, compiled=None
        )
        names = dict(zip(self.workload.model.modules(), model.modules(), strict=True))
        return Forwards(
            workload, self.meaning, training=tuple(names[module] for module in self.training)
        )


def _embeds(module: nn.Module, taken: torch.Tensor, ids: torch.Tensor, output: Any) -> bool:
    """Return True if a module embedded these tokens; a position embedding gets ids too."""
    if taken.shape != ids.shape or taken.dtype != ids.dtype or not torch.equal(taken, ids):
        return False
    if not isinstance(output, torch.Tensor) or output.shape[:-1] != ids.shape:
        return False
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2 or weight.size(1) != output.size(-1):
        return False
    known = weight.detach()[ids.clamp(0, weight.size(0) - 1)]
    like = torch.nn.functional.cosine_similarity(known.float(), output.detach().float(), dim=-1)
    return bool((like[known.abs().sum(-1) > 0] > 0.999).all())


def widened(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert floating tensors to float64."""
    return {path: t.double() if t.is_floating_point() else t for path, t in tensors.items()}


def detached(output: Any) -> dict[str, torch.Tensor]:
    """Return copies of the tensors in an output, by path."""
    return {path: tensor.detach().clone() for path, tensor in predictions(output)}


def predictions(output: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the predictions in an output, without losses, caches and attention maps."""
    return [
        (path, tensor)
        for path, tensor in find(output, torch.Tensor)
        if tensor.dim() > 0 and not _ASIDE & set(path.split("."))
    ]


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.is_floating_point())
