"""Makes batches that differ in one place, one sample in many rows with a change in each row, and
runs the model on them, each time from the same state and seed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn

from gradscope.capture.hooks import hooked
from gradscope.leaks.meaning import HIDDEN, MASK, TOKENS, Given, Meaning
from gradscope.loading.batches import Batch
from gradscope.loading.workload import Workload
from gradscope.nesting import find
from gradscope.running.rerun import StepFailed, rerun
from gradscope.running.step import GraphRoot, Observer, Step

Tensors = dict[str, torch.Tensor]

#: Number of positions to check one by one; of more, only this many.
FULL, SOME = 40, 20


@dataclass
class Rows:
    """Many rows of one sample.

    Attributes:
        meaning: the roles of the batch.
        count: the number of rows.
        base: the tensors of the rows.
        tiled: True if every row is the same sample; otherwise they are the batch's samples.
        vocabulary: the number of tokens of each source.
        padding: the padding token.
    """

    meaning: Meaning
    count: int
    base: Tensors
    tiled: bool
    vocabulary: dict[str, int]
    padding: float | None = None
    _coins: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(20260901))

    @property
    def control(self) -> int:
        """The unchanged row, if all others change."""
        return self.count // 2

    def other(self, one: Given, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that differs from this one in every element."""
        if tensor.is_floating_point() or tensor.is_complex():
            spread = float(tensor.float().std()) if tensor.numel() > 1 else 1.0
            spread = spread if spread > 0 else 1.0
            shift = torch.randn(tensor.shape, generator=self._coins, device="cpu")
            shift = torch.where(shift.abs() < 0.05, torch.full_like(shift, 0.7), shift)
            return tensor + (2 * spread * shift).to(tensor)
        if tensor.dtype == torch.bool:
            return ~tensor
        # From 2 up: 0 and 1 often mark padding and the beginning.
        most = self.vocabulary.get(one.path, int(tensor.max()) + 1 if tensor.numel() else 1)
        choice = [n for n in range(min(most, 50_000)) if n != self.padding]
        upper = [n for n in choice if n > 1]
        choice = upper if len(upper) >= 2 else choice
        if len(choice) < 2:
            return tensor.clone()
        known = torch.tensor(choice, device="cpu")
        place = torch.searchsorted(known, tensor.cpu().reshape(-1).clamp(0, most - 1))
        step = torch.randint(1, len(choice), place.shape, generator=self._coins, device="cpu")
        changed = known[(place + step) % len(choice)]
        same = changed == tensor.cpu().reshape(-1)
        changed = torch.where(same, known[(place + step + 1) % len(choice)], changed)
        return changed.reshape(tensor.shape).to(tensor)

    def other_label(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return labels that differ in every element; classes are replaced by other existing
        classes, if possible."""
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            return self.other(Given("", "", tensor, "labels"), tensor)
        least, most = int(tensor.min()), int(tensor.max())
        if most == least:
            return tensor + 1 if most < 1 else tensor - 1
        span = most - least + 1
        step = torch.randint(1, span, tensor.shape, generator=self._coins, device="cpu").to(tensor)
        return (tensor - least + step) % span + least

    def changed(self, one: Given, where: torch.Tensor, base: Tensors | None = None) -> torch.Tensor:
        """Return a source with other values at some (row, position), or at some rows.

        Args:
            one: the source.
            where: bool [rows, positions], or [rows].
            base: the tensors to change; None: those of the rows.
        """
        tensor = (self.base if base is None else base)[one.path]
        return torch.where(spread_over(one, where, tensor), self.other(one, tensor), tensor)


def spread_over(one: Given, where: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Expand a choice of (row, position), or of rows, to a mask over the full tensor."""
    shape = [1] * tensor.dim()
    where = where.to(tensor.device)
    if where.dim() == 1:
        assert one.batch is not None
        shape[one.batch] = where.numel()
        return where.reshape(shape).expand(tensor.shape)
    assert one.time is not None
    if one.batch is None:
        shape[one.time] = where.shape[1]
        return where[0].reshape(shape).expand(tensor.shape)
    shape[one.batch], shape[one.time] = where.shape
    ordered = where if one.batch < one.time else where.T
    return ordered.reshape(shape).expand(tensor.shape)


def tile(meaning: Meaning, count: int, sample: int = 0) -> Tensors:
    """Return ``count`` rows of one sample, of all tensors with a batch axis."""
    found = {}
    for one in meaning.given:
        tensor = one.tensor
        if one.batch is not None:
            index = torch.full((count,), sample, device=tensor.device)
            tensor = tensor.index_select(one.batch, index)
        found[one.path] = tensor
    return found


def unmasked(meaning: Meaning, tensors: Tensors) -> Tensors:
    """Return the tensors with masks that mask nothing."""
    return {
        **tensors,
        **{m.path: torch.full_like(tensors[m.path], m.keep) for m in meaning.of(MASK, HIDDEN)},
    }


def vocabularies(model: nn.Module, meaning: Meaning) -> dict[str, int]:
    """Return the number of tokens of each source: from the config, or the embeddings."""
    known = getattr(getattr(model, "config", None), "vocab_size", None)
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    found = {}
    for one in meaning.of(TOKENS):
        least = int(one.tensor.max()) + 1 if one.tensor.numel() else 1
        fitting = [size for size in sizes if size >= least]
        if isinstance(known, int) and known >= least:
            found[one.path] = known
        elif fitting and len(meaning.of(TOKENS)) == 1:
            found[one.path] = fitting[0] if len(set(fitting)) == 1 else min(fitting)
        else:
            found[one.path] = max(least, 2) if not fitting else min(fitting)
    return found


def cuts(positions: int) -> list[int]:
    """Return the cuts, positions after which the future begins: all, or the ends and some
    between."""
    last = positions - 1
    if positions <= FULL:
        return list(range(last))
    ends = [0, 1, 2, 3, 6, last - 1, last - 2, last - 4]
    step = last / (SOME - len(ends) + 1)
    between = [round(step * n) + n % 3 for n in range(1, SOME - len(ends) + 1)]
    return sorted({min(max(0, n), last - 1) for n in (*ends, *between)})


def future(count: int, positions: int, at: Sequence[int | None]) -> torch.Tensor:
    """Return for each row the positions after its cut, as bool [rows, positions]; None without
    cuts."""
    where = torch.zeros(count, positions, dtype=torch.bool, device="cpu")
    for row, position in enumerate(at[:count]):
        if position is not None:
            where[row, position + 1 :] = True
    return where


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
        return torch.zeros((), device="cpu")


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
            return None  # then a leak looks like rounding, and the caller says so
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
