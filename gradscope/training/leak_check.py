"""``--leaks``: one check for forbidden dependencies of the models' outputs.

A copy of each model is judged by forward passes, on the batch of its first call. The script's own
models do not run.
"""

from __future__ import annotations

import copy
import gc
import logging
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import get_ident
from typing import Any

import torch
from torch import nn

from gradscope.capture.hooks import raised_by_a_handler
from gradscope.errors import first_line
from gradscope.leaks.judge import judge
from gradscope.leaks.subject import Wishes
from gradscope.loading.batches import Batch
from gradscope.loading.losses import Criterion
from gradscope.loading.workload import Workload
from gradscope.nesting import find, replaced
from gradscope.records.leaks import AxisResult
from gradscope.running.step import as_found
from gradscope.training.extra_passes import refusal
from gradscope.training.models import Model, Models

#: The step after which the models are judged.
STEP = 2
_GRAPH = "an input connects entries of another, as in a graph: these are not samples"
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class LeakCheck:
    """Keeps the inputs of each model's first call with gradients, and judges the model once.

    Attributes:
        forbidden: the reason why nothing is judged, else "".

    Args:
        models: the trained models.
        found: called with the step, the model's id and the verdicts.
    """

    def __init__(
        self, models: Models, found: Callable[[int, int, Sequence[AxisResult]], None]
    ) -> None:
        self.forbidden = ""
        self._models, self._found = models, found
        self._inputs: dict[int, Batch | str] = {}
        self._lines: list[tuple[str, str]] = []
        self._copies: list[weakref.ref[nn.Module]] = []
        self._done = False

    def called(self, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call of a model with gradients."""
        if not self._done and model.id not in self._inputs:
            self._inputs[model.id] = _kept(args, kwargs)

    def is_next(self, step: int) -> bool:
        """Return True if the models are judged after this step."""
        return step >= STEP and not self._done

    def judge(self, step: int) -> None:
        """Judge each model that was called."""
        self._done = True
        inputs, self._inputs = self._inputs, {}
        if self.forbidden:
            return
        with self._models.kept() as models:
            for model in models:
                if model.id in inputs:
                    self._judge(step, model, inputs.pop(model.id))
        if any(known() is not None for known in self._copies):
            gc.collect()  # the search for models would find a copy that is still there
        if not self._lines:
            self.forbidden = "no model that can be hooked was called with gradients"

    def _judge(self, step: int, model: Model, batch: Batch | str) -> None:
        name = self._models.name(model)
        why = batch if isinstance(batch, str) else refusal(model)
        axes: Sequence[AxisResult] = ()
        if not why and isinstance(batch, Batch):
            try:
                axes = _judged(model.module, batch, self._copies)
            except Exception as error:
                if raised_by_a_handler(error):
                    raise
                cause = error.__cause__ or error
                first = first_line(cause)
                why = f"{type(cause).__name__}: {first}"
        self._lines.append((name, f"not judged: {why}" if why else in_words(axes)))
        self._found(step, model.id, axes)

    def line(self) -> str:
        """Return the result in one line."""
        if not self._done:
            return f"--leaks: not judged: the script made fewer than {STEP} steps"
        if self.forbidden:
            return f"--leaks: not judged: {self.forbidden}"
        if len(self._lines) == 1:
            return f"--leaks: {self._lines[0][1]}"
        return "--leaks: " + "; ".join(f"`{name}`: {words}" for name, words in self._lines)


def in_words(axes: Sequence[AxisResult]) -> str:
    """Return the verdicts in one line; reasons are left out if a finding has them."""
    parts = []
    for verdict in ("leaks", "clean"):
        names = [one.axis for one in axes if one.verdict == verdict]
        parts += [f"{verdict}: {', '.join(names)}"] if names else []
    for verdict, words in (("by-design", "by design"), ("not-judged", "not judged")):
        reasons = [f"{one.axis} ({one.message})" for one in axes if one.verdict == verdict]
        parts += [f"{words}: {', '.join(reasons)}"] if reasons else []
    return "; ".join(parts)


def _judged(
    module: nn.Module, batch: Batch, copies: list[weakref.ref[nn.Module]]
) -> Sequence[AxisResult]:
    """Return the verdicts on a copy of the model, in eval mode; the script's objects do not
    change."""
    first = next(module.parameters(), torch.empty(0, device="cpu"))
    workload = Workload(
        model=module,
        name=type(module).__name__,
        batches=lambda: iter([batch]),
        criterion=Criterion(None, None, seed=0, external_gradient=False),
        make_optimizer=None,
        device=first.device,
        dtype=first.dtype,
        mode="eval",
    )
    with _unnoticed(), as_found(workload, weights=False):
        own = copy.deepcopy(module)
        copies.append(weakref.ref(own))
        wishes = Wishes(causal=True if _predicts_next(batch) else None, backward=False)
        found = [_advised(one) for one in judge(replace(workload, model=own.eval()), wishes).axes]
        if _is_graph(batch):
            graph = AxisResult("batch", "not-judged", _GRAPH)
            found = [graph if one.axis == "batch" else one for one in found]
        return found


def _advised(one: AxisResult) -> AxisResult:
    """Return the result without advice on options of ``gradscope leaks``, which a run does not
    have.
    """
    return one if one.advice is None else replace(one, advice=one.advice.partition("; `--")[0])


def _predicts_next(batch: Batch) -> bool:
    """Return True if one input is another shifted by one position: a target, as for a GPT."""
    rows = [
        t
        for _, t in find((batch.args, batch.kwargs), torch.Tensor)
        if t.dtype == torch.int64 and t.dim() == 2 and t.size(1) > 2
    ]
    for ids in rows:
        for target in rows:
            if target is ids or target.shape != ids.shape:
                continue
            following, counts = ids[:, 1:], target[:, :-1] >= 0
            same = (target[:, :-1] == following) | ~counts
            if bool(same.all()) and bool(counts.any()) and bool((ids != ids[:, :1]).any()):
                return True
    return False


def _is_graph(batch: Batch) -> bool:
    """Return True if an input holds the edges of a graph between the entries of another."""
    tensors = [t for _, t in find((batch.args, batch.kwargs), torch.Tensor) if t.dim() == 2]
    for one in tensors:
        edges = one.size(0) == 2 and one.dtype in (torch.int64, torch.int32)
        square = one.size(0) == one.size(1)
        for other in tensors:
            if other is not one and other.size(0) > 2:
                if edges and other.is_floating_point():
                    return True
                if square and other.size(0) == one.size(0):
                    return True
    return False


def _kept(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Batch | str:
    """Return copies of a call's inputs; or the reason why they cannot be kept."""
    other = next(_others((args, kwargs)), None)
    if other is not None:
        return f"the model takes a `{type(other).__name__}`"
    own = replaced((args, kwargs), torch.Tensor, lambda tensor: tensor.detach().clone())
    return Batch(*own)


def _others(item: Any) -> Iterator[Any]:
    """Yield each item that is neither a plain tensor nor a plain value."""
    if type(item) in (list, tuple):
        for one in item:
            yield from _others(one)
    elif type(item) is dict:
        for one in item.values():
            yield from _others(one)
    elif not (type(item) in _PLAIN or (type(item) is torch.Tensor and _is_dense(item))):
        yield item


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested


@contextmanager
def _unnoticed() -> Iterator[None]:
    """Drop all prints, logs and warnings of the block; a later repetition appears as usual."""
    disabled, shown = logging.root.manager.disable, warnings.showwarning
    handlers = list(logging.root.handlers)  # `logging.warning` makes one where there is none
    registries = [
        (held, None if (kept := held.get("__warningregistry__")) is None else dict(kept))
        for module in list(sys.modules.values())
        if isinstance(held := getattr(module, "__dict__", None), dict)
    ]
    streams = sys.stdout, sys.stderr
    with ExitStack() as restore:
        restore.callback(_put_back_streams, *streams)
        restore.callback(_put_back_registries, registries)
        restore.callback(setattr, warnings, "showwarning", shown)
        restore.callback(logging.disable, disabled)
        restore.callback(logging.root.handlers.__setitem__, slice(None), handlers)
        logging.disable(sys.maxsize)
        warnings.showwarning = lambda *_, **__: None
        silenced = [one and _Silenced(one, get_ident()) for one in streams]
        sys.stdout, sys.stderr = silenced
        try:
            yield
        finally:
            for one in filter(None, silenced):  # somebody may have kept it
                one.thread = None


class _Silenced:
    """A stream that drops one thread's writes."""

    def __init__(self, stream: Any, thread: int | None) -> None:
        self._stream, self.thread = stream, thread

    def write(self, text: str) -> int:
        """Write text of another thread; drop the thread's own."""
        if get_ident() == self.thread:
            return len(text)
        return self._stream.write(text)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _put_back_streams(out: Any, err: Any) -> None:
    sys.stdout, sys.stderr = out, err


def _put_back_registries(
    registries: Sequence[tuple[dict[str, Any], Mapping[Any, Any] | None]],
) -> None:
    for held, before in registries:
        now = held.get("__warningregistry__")
        if before is None:
            held.pop("__warningregistry__", None)
        elif now is not None and now != before:
            now.clear()
            now.update(before)
