"""Keeps a capsule of the steps that stand out, before the optimizer moves the weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch.optim import Optimizer

from gradscope.records.spike import Capsule
from gradscope.records.tensors import finite_or_none
from gradscope.rules import (
    AFTERMATH,
    MAY_STAY,
    Limits,
    RuleSettings,
    Window,
    spike_cause,
    with_worst_first,
)
from gradscope.training.current_step import CurrentStep
from gradscope.training.models import Models
from gradscope.training.nan_detector.detector import NanDetector
from gradscope.training.optimizers import ObservedOptimizer
from gradscope.training.replicas import batch_size
from gradscope.training.sample_schedule import Schedule
from gradscope.training.spikes.batch_figures import BatchFigures, input_figures, loss_figures
from gradscope.training.spikes.batch_indices import BatchIndices
from gradscope.training.spikes.before import StepsBefore, state_of
from gradscope.training.spikes.capsule_contents import CapsuleContents, clock
from gradscope.training.spikes.earlier_batches import EarlierBatches
from gradscope.training.spikes.later_losses import HeldSample, LaterLosses
from gradscope.training.spikes.sample_losses import RowLosses, loss_factor, row_losses
from gradscope.typeset.numbers import number

#: Number of spikes kept in a run, and of other unusual steps; a larger one later replaces the
#: smallest.
MOST = 3
#: Unusual steps are kept after this many steps. A capsule costs about this many plain steps.
_KNOWN, _CAPSULE = 32, 4
#: Capsules of unusual steps take at most this share of the run; in a short run the seconds of so
#: many plain steps, or these seconds where steps are longer. So do the figures of batches, and
#: samples for which the model is asked again.
_SHARE = 0.005
_FREE_CAPSULES, _FREE_FIGURES, _FREE_ASKING = (1000, 0.2), (500, 0.5), (500, 0.5)
#: A split by sample of a step that does not stand out is for its table: no verdict needs it.
_FREE_SPLITS = (100, 0.1)
#: Of the blocks for a batch's figures one in so many is timed: a prime, as a step has several.
_TIMED = 7
#: Causes that blame a sample.
_BLAMED = ("samples", "labels")
#: Kinds of spikes that later steps may follow from.
_SPIKES = ("loss", "gradient", "non-finite")
#: Terms of a loss that are kept in an unremarkable step, until its gradients are there.
_TERMS = 1 << 20


@dataclass(frozen=True, slots=True)
class SpikeSettings:
    """Settings of spikes, from the options of ``gradscope run``.

    Attributes:
        explain: keep the steps that stand out.
        asked: steps that are always kept.
        megabytes: the largest size of the tensors in one capsule.
        weights: keep the weights and buffers before the step, too.
        batches: the number of batches to keep, the step's own included.
    """

    explain: bool = True
    asked: tuple[int, ...] = ()
    megabytes: int = 256
    weights: bool = False
    batches: int = 1


@dataclass(frozen=True, slots=True)
class _Spike:
    """Reason to keep a step; ``size`` is in deviations, infinite for NaN and Inf."""

    kind: str
    reason: str
    size: float


class _Allowance:
    """The time that a run may spend on figures that no finding needs.

    Args:
        schedule: knows the duration of a plain step.
        free: what even a short run may spend: so many plain steps, and at most so many seconds.

    Attributes:
        last: the seconds of the last counted block; None before the first.
    """

    def __init__(self, schedule: Schedule, free: tuple[int, float]) -> None:
        self._schedule, (self._steps, self._free) = schedule, free
        self._began = time.perf_counter()
        self._spent, self._blocks = 0.0, 0
        self.last: float | None = None

    @property
    def left(self) -> float:
        """The seconds of the allowance that are left."""
        return self._allowed - self._spent

    @property
    def _allowed(self) -> float:
        return max(self._free, _SHARE * (time.perf_counter() - self._began))

    def affords(self, seconds: float = 0.0, *, more: bool = False) -> bool:
        """Return True if so many seconds more are allowed; with ``more``, twice of all."""
        return seconds <= self.left + (self._allowed if more else 0.0)

    @contextmanager
    def counted(self, *, timed: int = 1) -> Iterator[None]:
        """Count the time of a block. Of short blocks one in ``timed`` stands for all: the clock is
        a system call, and may take longer than the block."""
        self._blocks += 1
        if self._blocks % timed:
            yield
            return
        began = clock()
        try:
            yield
        finally:
            self.last = clock() - began
            self._spent += timed * self.last
            plain = self._schedule.plain
            if plain is not None:
                self._free = min(self._free, self._steps * plain)


class Spikes:
    """Judges each step by the rules GS601 and GS602 and by its batch. It keeps the steps that stand
    out, and the most unusual of the others.

    Attributes:
        indices: the dataset indices of the batches.

    Args:
        settings: the settings of the run.
        rules: the rules of the run: a rule that is not selected marks no spike.
        detector: has the calls of the step.
        models: the trained models.
        schedule: knows the duration of a plain step.
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
        self.indices = BatchIndices()
        self._settings, self._detector, self._schedule = settings, detector, schedule
        self._earlier = EarlierBatches(settings.batches - 1, settings.megabytes)
        self._contents = CapsuleContents(
            models,
            schedule,
            self.indices,
            megabytes=settings.megabytes,
            weights=settings.weights,
            earlier=self._earlier,
        )
        self._keep, self._drop = keep, drop
        limits = {entry.rule.code: found for entry, found in rules.active()}
        self._loss_limits: Limits | None = limits.get("GS601")
        self._gradient_limits: Limits | None = limits.get("GS602")
        # By name: an optimizer that is made anew for the same parameters goes on under it.
        self._before: dict[str, StepsBefore] = {}
        self._backwards = Window()
        self._losses: list[RowLosses | None] = []
        self._factor: float | None = None
        # The spikes that are kept, and the other unusual steps: size and step.
        self._kept: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
        self._blameless: list[int] = []  # the steps of spikes that no sample made
        self._firsts: set[int] = set()  # the spikes with none in the steps before
        self._latest = -math.inf  # the step of the last spike
        self._nonfinite = False
        # Capsules of unusual steps leave the figures of each step their time; those that are not
        # split by sample are cheap.
        self._allowance = _Allowance(schedule, _FREE_FIGURES)
        self._capsules = _Allowance(schedule, _FREE_SPLITS)
        self._unsplit = _Allowance(schedule, _FREE_CAPSULES)
        self._asking = _Allowance(schedule, _FREE_ASKING)

    @property
    def forbidden(self) -> str:
        """The reason why no step is split by sample; "" if steps are split."""
        return self._contents.forbidden

    @forbidden.setter
    def forbidden(self, why: str) -> None:
        self._contents.forbidden = why

    def backward_begins(
        self, step: int, roots: Sequence[torch.Tensor], loss: float | None, scale: float | None
    ) -> None:
        """Read the terms of a loss from its graph; in a usual step only if time allows."""
        true_loss = None if loss is None else loss / (scale or 1.0)
        usual = true_loss is not None and true_loss <= self._backwards.high  # false for NaN
        if self._settings.explain and (not usual or self._allowance.affords()):
            with self._allowance.counted(timed=_TIMED):
                factor = loss_factor(roots)
            self._factor = None if factor is None else factor / (scale or 1.0)
        self._backwards.add(true_loss)
        if not usual or step in self._settings.asked:
            self._losses.append(row_losses(roots))
            return
        if not (self._settings.explain and self._allowance.affords()):
            self._losses.append(None)
            return
        with self._allowance.counted(timed=_TIMED):
            rows = row_losses(roots)
            if rows is not None and rows.values.numel() > _TERMS:
                calls = self._detector.calls
                count = batch_size(calls[-1].args, calls[-1].kwargs) if calls else None
                rows = rows.means(count or 0)
            self._losses.append(rows)

    def is_unusual(self, step: int, known: ObservedOptimizer, current: CurrentStep) -> bool:
        """Return True if a step may be kept, judged by its loss."""
        if step in self._settings.asked:
            return True
        before = self._before.get(known.name)
        if before is None or not self._settings.explain:
            return False
        if before.loss_spike(len(current.losses), current.loss, self._loss_limits) > 0:
            return True
        if before.changes.is_new_factor(self._factor):  # does the optimizer get it?
            return True
        if not self._allowance.affords():
            return False
        with self._allowance.counted(timed=_TIMED):
            return before.probe(known)

    def gradients_ready(
        self, step: int, optimizer: Optimizer, known: ObservedOptimizer, current: CurrentStep
    ) -> None:
        """Keep the step if it stands out; called before the update."""
        before = self._before.get(known.name)
        if before is None:
            before = self._before[known.name] = StepsBefore()
        figures = self._figures()
        before.note(step, optimizer, known, current, self._factor)
        spike = self._spike(step, before, current, figures)
        ratio = before.ratio_of_loss(figures) if figures.sure else None
        suspect = None
        if ratio is not None and ratio > MAY_STAY:
            suspect = _of_sample(before, figures)
        kept = spike is not None and self._makes_room(step, spike)
        reason = spike if kept else suspect
        capsule = None
        if reason is not None:
            has_norms = before.gradient.count > 0
            capsule = Capsule(
                step,
                known.name,
                reason.reason,
                reason.kind,
                usual_norm=before.gradient.usual if has_norms else None,
                high_norm=before.gradient.high if has_norms else None,
                usual_loss=before.losses(len(current.losses)).usual if before.count else None,
                counted=before.count,
                score=finite_or_none(reason.size),
                history=before.batches.history,
                changes=before.changes.recent(step),
            )
        before.add(step, optimizer, current, figures)
        tensors: Mapping[str, torch.Tensor] = {}
        if kept and capsule is not None:
            capsule, cause, tensors = self._take(capsule, optimizer, known, before, current)
            if cause in _BLAMED or capsule.kind not in ("highest", "sample"):
                ratio = None  # known already, or a spike of another kind
        if before.later.held:
            self._ask_again(step, before.count, before.later)
        held = None if ratio is None else self._hold(step, before, suspect is not None)
        if held is not None and suspect is not None and capsule is not None:
            if not kept:
                with self._asking.counted():
                    capsule, tensors = self._filled(
                        capsule, optimizer, known, before, current, split=False, seconds=None
                    )
            capsule = replace(capsule, kind=suspect.kind, reason=suspect.reason)
            held.keep(capsule, tensors, suspect.size)
        if self._settings.batches > 1:
            calls = [one for one in self._detector.calls if one.returned]
            counts = [batch_size(one.args, one.kwargs) for one in calls]
            indices = self.indices.of_calls(counts, len(self._losses))
            self._earlier.add(step, calls, self._losses, indices)

    def _take(
        self,
        capsule: Capsule,
        optimizer: Optimizer,
        known: ObservedOptimizer,
        before: StepsBefore,
        current: CurrentStep,
    ) -> tuple[Capsule, str, Mapping[str, torch.Tensor]]:
        """Fill a capsule of the latest step, judge it, and keep it; return it with its cause.

        For a step that does not stand out, this time counts against the allowance.
        """
        allowance, split = None, True
        seconds = math.inf if capsule.step in self._settings.asked else None
        if capsule.kind == "highest":
            split = self._splits()
            allowance = self._capsules if split else self._unsplit
            seconds = allowance.left
        counted = nullcontext() if allowance is None else allowance.counted()
        with counted:
            capsule, tensors = self._filled(
                capsule, optimizer, known, before, current, split=split, seconds=seconds
            )
            before.norm_is_known(capsule.signals[-1].gradient_norm)
            capsule, cause = self._judged(capsule)
            self._keep(capsule, cause, tensors)
        return capsule, cause, tensors

    def _filled(
        self,
        capsule: Capsule,
        optimizer: Optimizer,
        known: ObservedOptimizer,
        before: StepsBefore,
        current: CurrentStep,
        *,
        split: bool,
        seconds: float | None,
    ) -> tuple[Capsule, Mapping[str, torch.Tensor]]:
        """Return a capsule of the latest step with its signals, state and samples, and its tensors;
        ``split`` and ``seconds`` as in ``CapsuleContents.fill``."""
        signals, state = before.signals(optimizer), state_of(optimizer)
        capsule = replace(capsule, signals=signals, state=state)
        with self._detector.replaying() as calls:
            mine = [c for c in calls if any(p in known.held for p in c.module.parameters())]
            return self._contents.fill(
                capsule, mine, self._losses, current.scale or 1.0, split=split, seconds=seconds
            )

    # ---------------------------------------------------------------- labels that stay wrong

    def _hold(self, step: int, before: StepsBefore, suspected: bool) -> HeldSample | None:
        """Hold the sample with the largest loss of the step, to ask the model again; return it if
        it is held. Without a suspicion it only shows what becomes of usual samples.
        """
        calls = [one for one in self._detector.calls if one.returned]
        rows = self._losses[0] if len(self._losses) == len(calls) == 1 else None
        if rows is None or not (before.later.has_room(suspected) and self._asking.affords()):
            return None
        if self._contents.replay_refusal(calls[0]):
            return None
        with self._asking.counted(), self._detector.replaying():
            return before.later.hold(step, before.count, calls[0], rows)

    def _ask_again(self, step: int, count: int, later: LaterLosses) -> None:
        """Ask the model for a sample that is due; keep its step if its label stayed wrong.

        ``count`` is the number of the optimizer's steps.
        """
        held = later.held[0]
        if count < held.due:
            return
        if self._contents.replay_refusal(held.call, later=True):  # as of hooks that came since
            later.held.popleft()
            return
        with self._asking.counted(), self._detector.replaying():
            found = later.ask(step)
        if found is None or held.capsule is None:
            return
        samples = [
            replace(one, later=found) if one.index == held.sample else one
            for one in held.capsule.samples
        ]
        capsule, cause = self._judged(replace(held.capsule, samples=tuple(samples)))
        if cause not in _BLAMED:
            return
        for kept in self._kept.values():
            kept[:] = [one for one in kept if one[1] != held.step]
        if self._makes_room(held.step, _Spike(capsule.kind, capsule.reason, held.size)):
            self._keep(capsule, cause, held.tensors)
        else:
            self._drop(held.step)

    def step_ended(
        self,
        optimizer: Optimizer | None = None,
        known: ObservedOptimizer | None = None,
        update_rms: float | None = None,
    ) -> None:
        """Note the end of the step, with the root mean square of the update if known, and release
        the step's losses. Without an optimizer the step was skipped.
        """
        self._factor = None
        if self._losses:
            self._losses = []
        before = None if known is None else self._before.get(known.name)
        if before is not None and known is not None and optimizer is not None:
            before.step_ended(optimizer, known, update_rms)

    # ---------------------------------------------------------------- which steps

    def _figures(self) -> BatchFigures:
        """Return the figures of the step's batch, as far as time allows."""
        if not (self._settings.explain and self._allowance.affords()):
            return BatchFigures()
        with self._allowance.counted(timed=_TIMED):
            calls = [one for one in self._detector.calls if one.returned and not one.overwritten]
            counts = [batch_size(one.args, one.kwargs) or 0 for one in calls]
            losses: list[float] = []
            predicted: list[float | None] = []
            rows_each = [1] * len(calls)
            for n, rows in enumerate(self._losses):
                if rows is None:
                    continue
                own = len(counts) == len(self._losses)
                count = counts[n] if own else max(counts, default=0)
                each = rows.rows_each(count)
                known = rows.of_samples(count // each) or []
                losses += known
                predicted += rows.predictions(len(known))
                if own:
                    rows_each[n] = each
            found = input_figures(calls, rows_each)
            largest, middle, sure = loss_figures(losses, predicted)
            length = found.length
            texts = length is not None and any(
                rows is not None and rows.are_tokens(count, length)
                for rows, count in zip(self._losses, counts, strict=False)
            )
            return replace(found, sample_loss=largest, median_loss=middle, sure=sure, texts=texts)

    def _spike(
        self, step: int, before: StepsBefore, current: CurrentStep, figures: BatchFigures
    ) -> _Spike | None:
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
            found = self._standing_out(before, current, figures)
            if found is None and not asked:
                found = self._highest(step, before, current, figures)
        return found or (_Spike("asked", "asked for with `--capsule`", 0.0) if asked else None)

    def _standing_out(
        self, before: StepsBefore, current: CurrentStep, figures: BatchFigures
    ) -> _Spike | None:
        loss, norm = current.loss, current.gradient_norm
        by_loss = before.loss_spike(len(current.losses), loss, self._loss_limits)
        by_norm = before.gradient_spike(norm, self._gradient_limits)
        if by_loss:
            usual = before.losses(len(current.losses)).usual
            words = f"the loss is {number(loss)}, after a median of {number(usual)}"
            return _Spike("loss", words, max(by_loss, by_norm))
        if by_norm:
            usual = before.gradient.usual
            words = f"the gradient's norm is {number(norm)}, after a median of {number(usual)}"
            return _Spike("gradient", words, by_norm)
        unusual = before.unusual_batch(figures)
        if unusual == "input":
            words = "one input is unlike those of all steps before"
            return _Spike("input", words, before.input_size(figures))
        if unusual == "sample":
            return _of_sample(before, figures)
        return None

    def _highest(
        self, step: int, before: StepsBefore, current: CurrentStep, figures: BatchFigures
    ) -> _Spike | None:
        """Return a step that does not stand out, if it is among the most unusual so far."""
        if before.count < _KNOWN:
            return None
        score, kept = before.score(step, current, figures), self._kept[False]
        if len(kept) == MOST and score <= min(kept)[0]:
            return None
        # Of n scores, about the logarithm of n are above all before: they have their own time.
        above_all = score > max(kept, default=(0.0, 0))[0]
        if not (self._splits() or self._unsplit.affords(self._unsplit.last or 0.0, more=above_all)):
            return None
        words = "no spike: one of the most unusual of the other steps"
        return _Spike("highest", words, score)

    def _splits(self) -> bool:
        """Return True if there is time to split the gradient of a step that does not stand out."""
        plain = self._schedule.plain or 0.0
        return self._capsules.affords(self._capsules.last or _CAPSULE * plain)

    def _makes_room(self, step: int, spike: _Spike) -> bool:
        """Return True if the step is kept; the smallest spike is dropped if the space is full."""
        if step in self._settings.asked:
            return True
        stands_out = spike.kind != "highest"
        kept = self._kept[stands_out]
        if stands_out and spike.kind != "sample":  # one large loss has no aftermath
            if step - self._latest > AFTERMATH:
                self._firsts.add(step)
            self._latest = max(step, self._latest)
        if len(kept) == MOST:
            # The first of a series stays: larger ones soon after it may be its aftermath.
            since = step - AFTERMATH
            others = [one for one in kept if one[1] not in self._firsts or one[1] < since]
            smallest = min(others, default=(math.inf, 0))
            if spike.size <= smallest[0]:
                return False
            kept.remove(smallest)
            self._drop(smallest[1])
        kept.append((spike.size, step))
        return True

    def _judged(self, capsule: Capsule) -> tuple[Capsule, str]:
        """Return the capsule, with the earlier spike that may have caused it, and its cause."""
        since = capsule.step - AFTERMATH
        earlier = [step for step in self._blameless if since <= step < capsule.step]
        capsule = with_worst_first(replace(capsule, follows=min(earlier, default=None)))
        cause, _ = spike_cause(capsule)
        if cause not in _BLAMED and capsule.kind in _SPIKES:
            self._blameless.append(capsule.step)
        return capsule, cause


def _of_sample(before: StepsBefore, figures: BatchFigures) -> _Spike:
    """Return the reason to keep a step for the largest loss of a sample."""
    window = before.batches.losses
    words = (
        f"the loss of one sample is {number(figures.sample_loss)}; the largest loss of a sample in "
        f"a step was {number(window.usual)} (median)"
    )
    return _Spike("sample", words, window.deviations(figures.sample_loss or 0.0, 0.1))
