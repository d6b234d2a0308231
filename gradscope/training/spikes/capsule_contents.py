"""The contents of a capsule: the samples of the step's calls, and their tensors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gradscope.capture.hooks import raised_by_a_handler
from gradscope.errors import message_of
from gradscope.loading.surgery import unwrapped
from gradscope.nesting import find
from gradscope.per_sample.contributions import NotSeparable, TooSlow
from gradscope.records.spike import Capsule, SpikeSample
from gradscope.records.tensors import finite_or_none
from gradscope.training.extra_passes import refusal
from gradscope.training.models import Models
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.replicas import batch_size
from gradscope.training.sample_schedule import Schedule
from gradscope.training.spikes.batch_figures import copies, has_rows, lengths, rows_of, twins
from gradscope.training.spikes.batch_indices import BatchIndices
from gradscope.training.spikes.call_states import sources_of, state_of_call
from gradscope.training.spikes.earlier_batches import EarlierBatches
from gradscope.training.spikes.sample_losses import RowLosses
from gradscope.training.spikes.samples import (
    CallSamples,
    arrived,
    mixes_samples,
    nonfinite_table,
    norms_without,
    samples_of_call,
    seen_by_hooks,
    table,
    taken_apart,
    tokens_each,
    worst_first,
)
from gradscope.typeset.numbers import plural, size

#: Dtypes that every version of safetensors can write.
_DTYPES = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
#: A larger batch is not split by sample.
SAMPLES = 256
#: If a module mixes the samples of a larger batch, no sample is left out in turn.
MIXED = 64
#: The limit for the samples of a batch: seconds, or this share of the run so far.
_FREE, _SHARE = 1.0, 0.5


def clock() -> float:
    """Return the time that counts for a limit, in seconds: the thread's processor time, so that
    delays by other programs do not count.

    With a GPU it is wall time: reading a figure waits for the device.
    """
    waits: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return time.perf_counter() if waits else time.thread_time()


class CapsuleContents:
    """Fills capsules, from the calls of the step.

    Attributes:
        forbidden: the reason why no step is split by sample; "" if steps are split.

    Args:
        models: the trained models.
        schedule: knows the duration of a plain step.
        indices: the dataset indices of the batches.
        megabytes: the largest size of the tensors in one capsule.
        weights: keep the weights and buffers before the step, too.
        earlier: the batches of the steps before.
    """

    def __init__(
        self,
        models: Models,
        schedule: Schedule,
        indices: BatchIndices,
        *,
        megabytes: int,
        weights: bool,
        earlier: EarlierBatches,
    ) -> None:
        self.forbidden, self._earlier = "", earlier
        self._models, self._schedule, self._indices = models, schedule, indices
        self._megabytes, self._weights = megabytes, weights
        self._losses: Sequence[RowLosses | None] = ()
        self._split = True
        self._seconds = math.inf
        self._in_time: Callable[[], bool] = lambda: True
        self._began = time.perf_counter()

    def fill(
        self,
        capsule: Capsule,
        calls: Sequence[RecordedCall],
        losses: Sequence[RowLosses | None],
        scale: float,
        *,
        split: bool = True,
        seconds: float | None = None,
    ) -> tuple[Capsule, dict[str, torch.Tensor]]:
        """Return the capsule with its samples, and the tensors.

        Args:
            capsule: the step's capsule, without samples.
            calls: the calls whose outputs got gradients.
            losses: the terms of the loss of each backward.
            scale: the loss scale in the gradients.
            split: True to split the gradient by sample, which replays the step.
            seconds: the time limit of the replay; None: the limit for a spike.
        """
        self._losses, self._split = losses, split
        began, most = clock(), self._most() if seconds is None else seconds
        self._seconds, self._in_time = most, lambda: clock() - began <= most
        notes: list[str] = []
        tables: list[CallSamples] = []
        counts = [batch_size(call.args, call.kwargs) for call in calls]
        batches = self._indices.of_calls(counts, len(self._losses))
        for place, call in enumerate(calls):
            found = self._samples(place, call, batches[place], capsule, scale, notes)
            if found is not None:
                length = tokens_each(call, len(found.samples))
                found = self._with_losses(found, place, calls, batches[place], length, notes)
                known = not call.overwritten
                earlier = [one for one in calls[:place] if not one.overwritten]
                tables.append(_with_inputs(found, call, earlier) if known else found)
        if not calls:
            notes.append("no call of a model can be replayed at this step")
        if len(tables) > 1 and capsule.kind != "non-finite":
            notes.append(
                f"{len(tables)} calls of models: shares assume that their gradients are orthogonal"
            )
        tensors = self._tensors(calls, notes)
        norms = [one.norm for one in tables if one.norm is not None]
        signals = capsule.signals
        if len(calls) == len(norms) == 1 and signals and signals[-1].gradient_norm is None:
            # If the gradients of a step were read late, only the replay has the norm before
            # clipping.
            signals = (*signals[:-1], replace(signals[-1], gradient_norm=norms[0]))
        return replace(
            capsule,
            signals=signals,
            model=calls[0].name if calls else "",
            samples=_worst_first(tables),
            norm=math.hypot(*norms) if norms else None,
            mixing=tuple(dict.fromkeys(name for one in tables for name in one.mixing)),
            notes=tuple(dict.fromkeys(notes)),
            tensors=tuple(tensors),
            sources=sources_of([call.module for call in calls]),
            earlier=self._earlier.records(),
            calls=tuple(map(state_of_call, calls)),
        ), tensors

    def _samples(
        self,
        place: int,
        call: RecordedCall,
        indices: list[int] | None,
        capsule: Capsule,
        scale: float,
        notes: list[str],
    ) -> CallSamples | None:
        """Return the samples of one call; None if that fails, with a note on the reason."""
        count = samples_of_call(call, indices)
        if count is None:
            notes.append("samples are not known: the batch may not be the first axis")
            return None
        if capsule.kind == "non-finite":
            return nonfinite_table(call, place, count)
        # Losses and inputs are known without their parts of the gradient.
        untaken = CallSamples([SpikeSample(n, call=place) for n in range(count)])
        if not self._split:
            notes.append(
                "not split by sample, because it is no spike: `gradscope run --capsule "
                f"{capsule.step}` does it"
            )
            return untaken
        why = self._refusal(call, count)
        if why:
            notes.append(f"not split by sample: {why}")
            return untaken
        try:
            found = taken_apart(call, count, scale, self._in_time)
        except TooSlow:
            notes.append(self._slow(capsule))
            return untaken
        except Exception as error:
            if raised_by_a_handler(error):
                raise
            first = (message_of(error).strip() or type(error).__name__).splitlines()[0]
            notes.append(f"not split by sample: {first}")
            if isinstance(error, NotSeparable):
                return self._with_others(untaken, call, capsule, scale, notes)
            return untaken
        if found is None:
            notes.append("not split by sample: the forward draws other random numbers")
            return untaken
        split = table(call, place, count, found)
        if not (found.mixing or self._mixes(call, count, capsule.kind, notes)):
            return split
        return self._with_others(split, call, capsule, scale, notes)

    def _mixes(self, call: RecordedCall, count: int, kind: str, notes: list[str]) -> bool:
        """Return True if samples change each other's outputs without a batch norm."""
        if kind == "highest" or count > MIXED:
            return False
        try:
            mixes = mixes_samples(call, count)
        except Exception as error:
            if raised_by_a_handler(error):
                raise
            return False  # the model takes no smaller batch
        if mixes:
            notes.append(
                f"the outputs of `{call.name}` for a sample depend on the other samples, or it "
                "returns its loss alone: a sample's part is its effect through its own row"
            )
        return mixes

    def _with_others(
        self,
        split: CallSamples,
        call: RecordedCall,
        capsule: Capsule,
        scale: float,
        notes: list[str],
    ) -> CallSamples:
        """Return the samples of a call that cannot be split, each with the norm of the gradient
        without it."""
        count = len(split.samples)
        if count > MIXED or count < 2 or capsule.kind == "highest":
            return split
        try:
            norms, full_norm = norms_without(call, count, scale, self._in_time)
        except TooSlow:
            notes.append(self._slow(capsule))
            return split
        except Exception as error:
            if raised_by_a_handler(error):
                raise
            norms, full_norm = [None] * count, None  # the model takes no smaller batch
        if all(one is None for one in norms):
            notes.append(
                "the gradient without each sample is not known: the forward cannot be "
                "repeated with fewer samples"
            )
            return split
        notes.append(
            f"`norm without` is that of the batch without the sample: {count} more forwards and "
            "backwards were run"
        )
        samples = [
            replace(one, norm_without=norm) for one, norm in zip(split.samples, norms, strict=True)
        ]
        return replace(split, samples=samples, norm=full_norm if split.norm is None else split.norm)

    def replay_refusal(self, call: RecordedCall, *, later: bool = False) -> str:
        """Return the reason why a call is not repeated; "" if it may be.

        ``later``: it is repeated with the weights of now.
        """
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
        if not call.repeatable:
            return "the model is sharded, or waits for other processes: one rank cannot replay it"
        if call.overwritten or (call.moved and not later):
            return "the call cannot be replayed: its inputs or the weights have changed since"
        return ""

    def _refusal(self, call: RecordedCall, count: int) -> str:
        """Return the reason why a call is not split into samples; "" if it is split."""
        why = self.replay_refusal(call)
        if why:
            return why
        if count > SAMPLES:
            return f"{count} samples; at most {SAMPLES} are"
        # One sample costs at most as much as a step, most often far less; the limit ends the rest.
        if count * (self._schedule.plain or 0.0) > max(self._seconds, self._most()):
            return "it could take longer than half of the run so far"
        if not _fits(call.module):
            return "the device has too little free memory to repeat the step"
        return ""

    def _most(self) -> float:
        return max(_FREE, _SHARE * (time.perf_counter() - self._began))

    @staticmethod
    def _slow(capsule: Capsule) -> str:
        return (
            "not split by sample: a split takes too long for a run of this length; "
            f"`gradscope run --capsule {capsule.step}` does it"
        )

    def _with_losses(
        self,
        found: CallSamples,
        place: int,
        calls: Sequence[RecordedCall],
        indices: list[int] | None,
        length: int | None,
        notes: list[str],
    ) -> CallSamples:
        """Return the samples with their losses, indices in the dataset and worst tokens.

        ``length`` is the number of tokens in each sample; None if the inputs are no tokens.
        """
        count = len(found.samples)
        rows = self._losses[place] if len(self._losses) == len(calls) else None
        if len(self._losses) == 1:
            rows = self._losses[0]
        terms = None if rows is None else _terms(calls[place], rows, count)
        of = count if terms is None else max(terms) + 1
        losses = None if rows is None else rows.of_samples(of)
        tokens = [None] * count if rows is None or not length else rows.tokens(count, length)
        predicted = [None] * count if rows is None else rows.predictions(count)
        if terms is not None:
            losses = None if losses is None else [losses[n] for n in terms]
            if indices is not None and len(indices) == of:
                indices = [indices[n] for n in terms]
        if losses is None:
            notes.append("losses of samples are not known")
        named = indices if indices is not None and len(indices) == count else None
        if named is None:
            notes.append("indices in the dataset are not known")
        samples = [
            replace(
                one,
                loss=None if losses is None else finite_or_none(losses[n]),
                dataset_index=None if named is None else named[n],
                token=tokens[n],
                predicted_loss=finite_or_none(predicted[n]),
                term=None if terms is None else terms[n],
            )
            for n, one in enumerate(found.samples)
        ]
        return replace(found, samples=samples)

    def _tensors(self, calls: Sequence[RecordedCall], notes: list[str]) -> dict[str, torch.Tensor]:
        """Return copies of inputs, output gradients and targets; none if they are too large.

        With ``--capsule-weights`` the weights, too.
        """
        found = dict(self._named(calls))
        before = {name: one for name, one in self._earlier.tensors() if _is_dense(one)}
        needed = _bytes(found)
        if before and needed + _bytes(before) <= self._megabytes << 20:
            found |= before
        elif before:
            notes.append(
                f"the tensors of the {plural(len(self._earlier), 'batch', 'batches')} before are "
                f"not kept: with them {size(needed + _bytes(before))}, more than `--capsule-size` "
                f"{self._megabytes} MB"
            )
        if needed > self._megabytes << 20:
            notes.append(
                f"no tensors are kept: {size(needed)}, more than `--capsule-size` "
                f"{self._megabytes} MB"
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
        for n, call in enumerate(calls):
            for one in call.random_states:
                if (state := one.tensor()) is not None:
                    yield f"call{n}.random.{one.generator}", state
        if self._weights:
            for call in {call.module: call for call in reversed(calls)}.values():
                yield from _weights(call)


def _fits(module: nn.Module) -> bool:
    """Return True if a GPU has the memory to repeat a step and split it: twice the memory that the
    largest step so far needed beyond the memory in use now, and three copies of the weights.
    """
    parameters = [p for p in module.parameters() if p.is_cuda]
    for device in {p.device for p in parameters}:
        free, _ = torch.cuda.mem_get_info(device)
        now = torch.cuda.memory_allocated(device)
        free += torch.cuda.memory_reserved(device) - now
        weights = sum(p.nbytes for p in parameters if p.device == device)
        if 2 * (torch.cuda.max_memory_allocated(device) - now) + 3 * weights > free:
            return False
    return True


def _terms(call: RecordedCall, rows: RowLosses, count: int) -> list[int] | None:
    """Return the term of the loss of each row of a call with several rows for each term, by the
    rows of its output that got a gradient; None for other calls, or if unknown.
    """
    sent = next((one for one in arrived(call) if has_rows(one, count)), None)
    if sent is None:
        return None
    return rows.terms_of_rows(count, (sent.detach().reshape(count, -1) != 0).any(1).cpu())


def _with_inputs(
    found: CallSamples, call: RecordedCall, earlier: Sequence[RecordedCall]
) -> CallSamples:
    """Return the samples with the figures of their inputs; ``earlier`` are the calls before."""
    count = len(found.samples)
    rows = rows_of(call, count).each
    figures = copies(call, count), lengths(call, count), twins(call, count, earlier)
    each = zip(found.samples, rows, *figures, strict=True)
    samples = [
        replace(
            one,
            input_max=finite_or_none(row.largest),
            constant=row.constant,
            constant_in=() if row.constant else row.constant_in,
            copy_of=copy,
            length=length,
            twin=twin,
        )
        for one, row, copy, length, twin in each
    ]
    return replace(found, samples=samples)


def _weights(call: RecordedCall) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a call's model, and its buffers as they were at its start."""
    module, _ = unwrapped(call.module)
    before = call.buffers
    own = {name: before[b] for name, b in module.named_buffers() if b in before}
    tensors: dict[str, Any] = module.state_dict()
    for name, tensor in tensors.items():
        tensor = own.get(name, tensor)
        if isinstance(tensor, torch.Tensor) and _is_dense(tensor):
            yield f"weights.{name}", tensor


def _bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors.values())


def _is_dense(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and not tensor.is_nested
    return plain and tensor.dtype in _DTYPES and tensor.device.type != "meta"


def _worst_first(tables: Sequence[CallSamples]) -> tuple[SpikeSample, ...]:
    """Return all samples: first those with NaN or Inf, then by their share of the gradient of all
    calls."""
    total = sum((one.norm or 0.0) ** 2 for one in tables)
    samples = []
    for one in tables:
        part = (one.norm or 0.0) ** 2 / total if total else 1.0
        samples += [
            replace(s, share=None if s.share is None else s.share * part) for s in one.samples
        ]
    return worst_first(samples)
