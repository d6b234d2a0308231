"""Keeps a capsule of the steps that stand out, before the optimizer moves the weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.capture.hooks import raised_by_a_handler
from gradscope.errors import message_of
from gradscope.nesting import find
from gradscope.records.spike import Capsule, SpikeSample
from gradscope.rules import AFTERMATH, Limits, RuleSettings, Window, spike_cause
from gradscope.training.current_step import CurrentStep
from gradscope.training.extra_passes import refusal
from gradscope.training.models import Models
from gradscope.training.nan_detector.detector import NanDetector
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.optimizers import ObservedOptimizer
from gradscope.training.replicas import batch_size
from gradscope.training.sample_schedule import Schedule
from gradscope.training.spikes.batch_indices import BatchIndices
from gradscope.training.spikes.before import StepsBefore, state_of
from gradscope.training.spikes.sample_losses import RowLosses, row_losses
from gradscope.training.spikes.samples import (
    CallSamples,
    arrived,
    nonfinite_table,
    samples_of_call,
    seen_by_hooks,
    table,
    taken_apart,
    tokens_each,
)
from gradscope.training.spikes.sources import sources_of
from gradscope.typeset.numbers import number, size

#: Number of spikes kept in a run; a larger one later replaces the smallest.
MOST = 3
#: Dtypes that every version of safetensors can write.
_DTYPES = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
#: A larger batch is not taken apart.
SAMPLES = 256
#: A sample is at most as expensive as a step: all of a batch take no longer than half of the run.
_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class SpikeSettings:
    """Settings of spikes, from the options of ``gradscope run``.

    Attributes:
        explain: keep the steps that stand out.
        asked: steps that are kept in any case.
        megabytes: of tensors in one capsule, at most.
        weights: keep the weights and buffers before the step, too.
    """

    explain: bool = True
    asked: tuple[int, ...] = ()
    megabytes: int = 256
    weights: bool = False


@dataclass(frozen=True, slots=True)
class _Spike:
    """Reason to keep a step; ``size`` is in deviations, infinite for NaN and Inf."""

    kind: str
    reason: str
    size: float


class Spikes:
    """Judges each step by the rules GS601 and GS602, and keeps those that stand out.

    Attributes:
        forbidden: why no step is taken apart; "" where it is.
        indices: of the batches in the dataset.

    Args:
        settings: of the run.
        rules: of the run: a rule that is not selected marks no spike.
        detector: has the calls of the step.
        models: that are trained.
        schedule: knows what a plain step takes.
        keep: takes a capsule, its cause and its tensors.
        drop: takes the step of a capsule that a larger one replaces.
    """

    def __init__(
        self,
        settings: SpikeSettings,
        rules: RuleSettings,
        *,
        detector: NanDetector,
        models: Models,
        schedule: Schedule,
        keep: Callable[[Capsule, str, Mapping[str, torch.Tensor]], None],
        drop: Callable[[int], None],
    ) -> None:
        self.forbidden = ""
        self.indices = BatchIndices()
        self._settings, self._detector, self._models = settings, detector, models
        self._schedule, self._keep, self._drop = schedule, keep, drop
        limits = {entry.rule.code: found for entry, found in rules.active()}
        self._loss_limits: Limits | None = limits.get("GS601")
        self._gradient_limits: Limits | None = limits.get("GS602")
        # By name: an optimizer that is made anew for the same parameters goes on under it.
        self._before: dict[str, StepsBefore] = {}
        self._backwards = Window()
        self._losses: list[RowLosses | None] = []
        self._kept: list[tuple[float, int]] = []
        self._blameless: list[int] = []  # the steps of spikes that no sample made
        self._firsts: set[int] = set()  # the spikes with none in the steps before
        self._latest = -math.inf  # the step of the last spike
        self._nonfinite = False
        self._began = time.perf_counter()

    def backward_begins(
        self, step: int, roots: Sequence[torch.Tensor], loss: float | None, scale: float | None
    ) -> None:
        """A loss is there, with its graph: its terms are read if it is unusual."""
        loss = None if loss is None else loss / (scale or 1.0)
        usual = loss is not None and loss <= self._backwards.high  # false for NaN
        self._backwards.add(loss)
        wanted = not usual or step in self._settings.asked
        self._losses.append(row_losses(roots) if wanted else None)

    def is_unusual(self, step: int, known: ObservedOptimizer, current: CurrentStep) -> bool:
        """Return True if a step may be kept, as far as its loss shows."""
        if step in self._settings.asked:
            return True
        before = self._before.get(known.name)
        if before is None or not self._settings.explain:
            return False
        return before.loss_spike(len(current.losses), current.loss, self._loss_limits) > 0

    def gradients_ready(
        self, step: int, optimizer: Optimizer, known: ObservedOptimizer, current: CurrentStep
    ) -> None:
        """Keep the step if it stands out; called before the update."""
        before = self._before.get(known.name)
        if before is None:
            before = self._before[known.name] = StepsBefore()
        spike = self._spike(step, before, current)
        usual = before.gradient.usual, before.gradient.high
        loss_before = before.losses(len(current.losses)).usual
        counted = before.count
        before.add(step, optimizer, current)
        if spike is None or not self._makes_room(step, spike):
            return
        capsule = Capsule(
            step,
            known.name,
            spike.reason,
            spike.kind,
            usual_norm=usual[0] if before.gradient.count > 1 else None,
            high_norm=usual[1] if before.gradient.count > 1 else None,
            usual_loss=loss_before if counted else None,
            counted=counted,
            signals=before.signals(optimizer),
            state=state_of(optimizer),
        )
        with self._detector.replaying() as calls:
            mine = [one for one in calls if any(p in known.held for p in one.module.parameters())]
            capsule, tensors = self._filled(capsule, mine, spike, current.scale or 1.0)
            capsule, cause = self._judged(capsule)
            self._keep(capsule, cause, tensors)

    def step_ended(self) -> None:
        """Release the losses of the step."""
        if self._losses:
            self._losses = []

    # ---------------------------------------------------------------- which steps

    def _spike(self, step: int, before: StepsBefore, current: CurrentStep) -> _Spike | None:
        """Return the reason why the step stands out; None if it does not."""
        asked = step in self._settings.asked
        found = None
        if current.nonfinite is not None:
            where = "loss" if current.in_loss else "gradient"
            kind = "NaN" if current.nonfinite == "nan" else "Inf"
            # The steps after the first inherit it.
            if self._settings.explain and not self._nonfinite:
                found = _Spike("non-finite", f"the {where} has {kind}", math.inf)
            self._nonfinite = True
        elif self._settings.explain:
            loss, norm = current.loss, current.gradient_norm
            by_loss = before.loss_spike(len(current.losses), loss, self._loss_limits)
            by_norm = before.gradient_spike(norm, self._gradient_limits)
            if by_loss:
                usual = before.losses(len(current.losses)).usual
                words = f"the loss is {number(loss)}, after a median of {number(usual)}"
                found = _Spike("loss", words, max(by_loss, by_norm))
            elif by_norm:
                usual = before.gradient.usual
                words = f"the gradient's norm is {number(norm)}, after a median of {number(usual)}"
                found = _Spike("gradient", words, by_norm)
        return found or (_Spike("asked", "asked for with `--capsule`", 0.0) if asked else None)

    def _makes_room(self, step: int, spike: _Spike) -> bool:
        """Return True if the step is kept; the smallest spike is dropped if the space is full."""
        if step in self._settings.asked:
            return True
        if step - self._latest > AFTERMATH:
            self._firsts.add(step)
        self._latest = step
        if len(self._kept) == MOST:
            # The first of a series stays: larger ones soon after it may be its aftermath.
            since = step - AFTERMATH
            others = [one for one in self._kept if one[1] not in self._firsts or one[1] < since]
            smallest = min(others, default=(math.inf, 0))
            if spike.size <= smallest[0]:
                return False
            self._kept.remove(smallest)
            self._drop(smallest[1])
        self._kept.append((spike.size, step))
        return True

    def _judged(self, capsule: Capsule) -> tuple[Capsule, str]:
        """The capsule with the spike that it may be the aftermath of, and its cause."""
        since = capsule.step - AFTERMATH
        earlier = [step for step in self._blameless if since <= step < capsule.step]
        capsule = replace(capsule, follows=min(earlier, default=None))
        cause, _ = spike_cause(capsule)
        if cause not in ("samples", "labels"):
            self._blameless.append(capsule.step)
        return capsule, cause

    # ---------------------------------------------------------------- what is kept

    def _filled(
        self, capsule: Capsule, calls: Sequence[RecordedCall], spike: _Spike, scale: float
    ) -> tuple[Capsule, dict[str, torch.Tensor]]:
        """The capsule with its samples, and its tensors."""
        notes: list[str] = []
        tables: list[CallSamples] = []
        counts = [batch_size(call.args, call.kwargs) for call in calls]
        batches = self.indices.of_calls(counts, len(self._losses))
        for place, call in enumerate(calls):
            found = self._samples(place, call, batches[place], spike, scale, notes)
            if found is not None:
                length = tokens_each(call, len(found.samples))
                tables.append(
                    self._with_losses(found, place, len(calls), batches[place], length, notes)
                )
        if not calls:
            notes.append("no call of a model can be replayed at this step")
        if len(tables) > 1 and spike.kind != "non-finite":
            notes.append(
                f"{len(tables)} calls of models: shares take their gradients as orthogonal"
            )
        tensors = self._tensors(calls, notes)
        norms = [one.norm for one in tables if one.norm is not None]
        return replace(
            capsule,
            model=calls[0].name if calls else "",
            samples=_worst_first(tables),
            norm=math.hypot(*norms) if norms else None,
            mixing=tuple(dict.fromkeys(name for one in tables for name in one.mixing)),
            notes=tuple(dict.fromkeys(notes)),
            tensors=tuple(tensors),
            sources=sources_of([call.module for call in calls]),
        ), tensors

    def _samples(
        self,
        place: int,
        call: RecordedCall,
        indices: list[int] | None,
        spike: _Spike,
        scale: float,
        notes: list[str],
    ) -> CallSamples | None:
        """The samples of one call; None where they cannot be had, and why is noted."""
        count = samples_of_call(call, indices)
        if count is None:
            notes.append("samples are not known: the batch may not be the first axis")
            return None
        if spike.kind == "non-finite":
            return nonfinite_table(call, place, count)
        why = self._refusal(call, count)
        if why:
            notes.append(f"not taken apart by sample: {why}")
            return None
        try:
            found = taken_apart(call, count, scale)
        except Exception as error:
            if raised_by_a_handler(error):
                raise
            first = (message_of(error).strip() or type(error).__name__).splitlines()[0]
            notes.append(f"not taken apart by sample: {first}")
            return None
        if found is None:
            notes.append("not taken apart by sample: the forward draws other random numbers")
            return None
        return table(call, place, count, found)

    def _refusal(self, call: RecordedCall, count: int) -> str:
        """Return why a call is not split into samples; "" if it is."""
        if self.forbidden:
            return self.forbidden
        model = next((one for one in self._models if one.module_ref() is call.module), None)
        if model is None:
            return "its model is gone"
        why = refusal(model)
        if why:
            return why
        if seen_by_hooks(call.module):
            return "the script has hooks on the gradient, which would see the replay"
        if not call.repeatable or call.overwritten or call.moved:
            return "the call cannot be replayed: its inputs or the weights have changed since"
        if count > SAMPLES:
            return f"{count} samples; at most {SAMPLES} are"
        plain, passed = self._schedule.plain or 0.0, time.perf_counter() - self._began
        if count * plain > _SHARE * passed and count * plain > 1.0:
            return "it could take longer than half of the run so far"
        return ""

    def _with_losses(
        self,
        found: CallSamples,
        place: int,
        calls: int,
        indices: list[int] | None,
        length: int | None,
        notes: list[str],
    ) -> CallSamples:
        """Return the samples with their losses, indices in the dataset and worst tokens.

        ``length`` is the number of tokens in each; None: they are no tokens.
        """
        count = len(found.samples)
        rows = self._losses[place] if len(self._losses) == calls else None
        if len(self._losses) == 1:
            rows = self._losses[0]
        losses = None if rows is None else rows.of_samples(count)
        tokens = [None] * count if rows is None or not length else rows.tokens(count, length)
        if losses is None:
            notes.append("losses of samples are not known")
        named = indices if indices is not None and len(indices) == count else None
        if named is None:
            notes.append("indices in the dataset are not known")
        samples = [
            replace(
                one,
                loss=None if losses is None or not math.isfinite(losses[n]) else losses[n],
                dataset_index=None if named is None else named[n],
                token=tokens[n],
            )
            for n, one in enumerate(found.samples)
        ]
        return replace(found, samples=samples)

    def _tensors(self, calls: Sequence[RecordedCall], notes: list[str]) -> dict[str, torch.Tensor]:
        """Inputs, gradients at the outputs and targets, on memory of their own; none if too large.

        With ``--capsule-weights`` the weights, too.
        """
        found = dict(self._named(calls))
        needed = sum(one.numel() * one.element_size() for one in found.values())
        if needed > self._settings.megabytes << 20:
            notes.append(
                f"no tensors are kept: {size(needed)}, more than `--capsule-size` "
                f"{self._settings.megabytes} MB"
            )
            return {}
        return {name: one.detach().to("cpu", copy=True).contiguous() for name, one in found.items()}

    def _named(self, calls: Sequence[RecordedCall]) -> Iterator[tuple[str, torch.Tensor]]:
        for n, call in enumerate(calls):
            for kind, tree in (("args", call.args), ("kwargs", call.kwargs)):
                for path, tensor in find(tree, torch.Tensor):
                    if _is_dense(tensor):
                        yield f"call{n}.{kind}.{path}", tensor
            for m, tensor in enumerate(arrived(call)):
                if _is_dense(tensor):
                    yield f"call{n}.gradients.{m}", tensor
        for n, rows in enumerate(self._losses):
            if rows is not None and rows.target is not None and _is_dense(rows.target):
                yield f"loss{n}.target", rows.target
        if self._settings.weights:
            for module in dict.fromkeys(call.module for call in calls):
                yield from _state(module)


def _state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    tensors: dict[str, Any] = module.state_dict()
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and _is_dense(tensor):
            yield f"weights.{name}", tensor


def _is_dense(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and not tensor.is_nested
    return plain and tensor.dtype in _DTYPES and tensor.device.type != "meta"


def _worst_first(tables: Sequence[CallSamples]) -> tuple[SpikeSample, ...]:
    """All samples: those with NaN or Inf, then by their share; shares are of all calls."""
    total = sum((one.norm or 0.0) ** 2 for one in tables)
    samples = []
    for one in tables:
        part = (one.norm or 0.0) ** 2 / total if total else 1.0
        samples += [
            replace(s, share=None if s.share is None else s.share * part) for s in one.samples
        ]
    samples.sort(key=lambda s: (_PLACES.index(s.nonfinite), -_badness(s), s.call, s.index))
    return tuple(samples)


#: In which a NaN or Inf is seen, the earliest first.
_PLACES = ("input", "output", "gradient", None)


def _badness(sample: SpikeSample) -> float:
    for value in (sample.share, sample.loss):
        if value is not None and math.isfinite(value):
            return value
    return 0.0
