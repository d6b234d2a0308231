"""Finds copies of trained models, such as target networks, moving averages and teachers."""

from __future__ import annotations

import ast
import math
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from gradscope.capture.differences import combined, fingerprints
from gradscope.capture.hooks import OwnHook, hook_calls
from gradscope.records.loop_figures import LoopCopy
from gradscope.training.discovery import frozen_modules, holder_of, variable_name
from gradscope.training.guard import Guard
from gradscope.training.loop.model_uses import plain_parameters, signature
from gradscope.training.loop.script_lines import (
    main_text,
    script_place,
    written_assignment,
    written_in_main,
)
from gradscope.training.models import Models

#: Words for what follows a model that trains, in the name of a variable or a class, its own or its
#: holder's.
_FOLLOWS = re.compile(
    r"(?<![a-z])(target|tgt|ema|teacher|momentum|avg|average|averaged|shadow|slow|polyak|swa)"
    r"(?![a-z])"
)
#: Those of them that are averages of the weights, made to replace these.
_AVERAGES = re.compile(r"(?<![a-z])(ema|avg|average|averaged|shadow|polyak|swa)(?![a-z])")
#: So many entries of the largest weight tell how far the weights have moved.
_PROBED = 4096


#: A copy is compared again when its calls have grown by this factor.
_OFTEN = 1.25


class _Copy:
    """One copy."""

    def __init__(self, module: nn.Module, name: str, of: str, original: nn.Module) -> None:
        self.module, self.original = weakref.ref(module), weakref.ref(original)
        self.name, self.of = name, of
        names = (name, type(module).__name__, *(holder_of(module) or ()))
        self.follows = any(_FOLLOWS.search(_words(one)) for one in names)
        averages = any(_AVERAGES.search(_words(one)) for one in names)
        self._start = _probe(module) if averages else None
        self.moved: float | None = None
        self.digest, self.buffers = _digest(module), _buffers(module)
        self.made = written_assignment(name.rpartition(".")[2])
        self.calls = 0
        self.steps = set[int]()
        self.location: str | None = None
        self.unchanged, self.stale_buffers = True, False
        self.compared = 0  # the number of steps that had ended then
        self._due = 1  # the next call before which they are compared

    def called(self, steps: int) -> None:
        """Note a call after so many steps.

        A script's function often frees the copy before the end, so it is compared at some calls.
        """
        self.calls += 1
        self.steps.add(steps)
        transformed = torch._C._are_functorch_transforms_active()
        if self.follows and self.calls >= self._due and not transformed:
            self._due = math.ceil(_OFTEN * self.calls)
            self.compare(steps)

    def compare(self, steps: int) -> None:
        """Note the changes since the start, after so many steps."""
        module, original = self.module(), self.original()
        if module is None:
            return
        self.compared = steps
        self.unchanged = self.unchanged and _digest(module) == self.digest
        if not self.unchanged and original is not None:
            mine = _buffers(module)
            self.stale_buffers = mine == self.buffers != _buffers(original)
            self.moved = _share_moved(self._start, module, original)


class Copies:
    """Compares copies with their weights from before the first step.

    Args:
        models: the trained models.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._copies: list[_Copy] = []
        self._hooks: list[OwnHook] = []

    def find(self, held: Collection[nn.Parameter], step: Callable[[], int], guard: Guard) -> None:
        """Search for copies at the first backward, before any weight changes.

        Args:
            held: the parameters of all optimizers.
            step: returns the number of ended steps.
            guard: wraps the hooks, so that they never raise.
        """
        optimized = {id(parameter) for parameter in held}
        trained: list[tuple[str, nn.Module]] = []
        others: list[tuple[str, nn.Module]] = []
        for name, module in self._modules():
            mine = plain_parameters(module)
            if not mine:
                continue
            (trained if any(id(p) in optimized for p in mine) else others).append((name, module))
        originals: dict[object, tuple[str, nn.Module]] = {}
        wanted = {signature(module) for _, module in others}
        for name, module in trained:
            if signature(module) in wanted:
                originals.setdefault((signature(module), _digest(module)), (name, module))
        for name, module in others:
            of = originals.get((signature(module), _digest(module)))
            if of is not None and not any(name.startswith(f"{one.name}.") for one in self._copies):
                copy = _Copy(module, name, *of)
                self._copies.append(copy)
                called = guard(partial(self._called, copy, step))
                self._hooks += hook_calls(module, called, _nothing)

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the models, frozen ones too, and their direct parts."""
        outer = [(self._models.name(model), model.module) for model in self._models]
        outer += [(variable_name(one) or "", one) for one in frozen_modules()]
        for name, module in outer:
            yield name, module
            for part, child in module.named_children():
                yield f"{name}.{part}", child

    def _called(self, copy: _Copy, step: Callable[[], int], *_: Any) -> None:
        copy.called(step())
        if copy.location is None:
            copy.location = script_place()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def records(self, steps: int, *, compare: bool) -> Iterable[LoopCopy]:
        """Yield the records of the copies after so many steps; ``compare`` reads their weights."""
        for one in self._copies:
            if compare:
                one.compare(steps)
            yield LoopCopy(
                name=one.name,
                of=one.of,
                calls=one.calls,
                steps=len(one.steps),
                unchanged=one.unchanged,
                compared=one.compared,
                moved=one.moved,
                stale_buffers=one.stale_buffers,
                follows=one.follows,
                location=one.location,
                made=one.made,
                updated=_updated(one.name) if compare and one.unchanged else None,
            )


def _probe(module: nn.Module) -> torch.Tensor | None:
    """Return a copy of some entries of the module's largest weight, which is the same one in each
    copy."""
    floating = [
        one
        for one in plain_parameters(module)
        if one.is_floating_point() and one.layout == torch.strided and not one.is_meta
    ]
    largest = max(floating, key=lambda one: one.numel(), default=None)
    return None if largest is None else largest.detach().flatten()[:_PROBED].float().clone()


def _share_moved(start: torch.Tensor | None, copy: nn.Module, original: nn.Module) -> float | None:
    """Return the distance of a copy's weights from their common start, as a share of the
    original's distance; None if the original has not moved."""
    mine, other = (None if start is None else _probe(one) for one in (copy, original))
    if start is None or mine is None or other is None:
        return None
    if not mine.shape == other.shape == start.shape:
        return None
    way = float((other.to(start.device) - start).norm())
    share = float((mine.to(start.device) - start).norm()) / way if way > 0 else math.nan
    return share if math.isfinite(share) else None


def _words(name: str) -> str:
    """Return the words of a name, in lower case."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _updated(name: str) -> str | None:
    """Return the last line that loads weights into the copy, unless that is its start."""
    variable = re.escape(name.rpartition(".")[2])
    pattern = rf"\b{variable}\s*\.\s*load_state_dict\s*\("
    last = written_in_main(pattern, last=True)
    if last != written_in_main(pattern):
        return last
    copied = written_in_main(rf"\b{variable}\s*=[^=\n]*\bdeepcopy\s*\(")
    return last if last is not None and copied is not None and _is_later(last, copied) else None


def _is_later(load: str, copied: str) -> bool:
    """Return True if a line is in a loop or a function that another is not in."""
    tree = (main_text() or ("", ast.Module([], [])))[1]
    line, other = (int(place.rpartition(":")[2]) for place in (load, copied))
    return any(
        node.lineno <= line <= (node.end_lineno or 0)
        and not node.lineno <= other <= (node.end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While | ast.FunctionDef)
    )


def _digest(module: nn.Module) -> str:
    return combined(fingerprints(plain_parameters(module)))


def _buffers(module: nn.Module) -> str:
    """Return a fingerprint of floating buffers, such as running statistics."""
    return combined(fingerprints([one for one in module.buffers() if one.is_floating_point()]))


def _nothing(*_: object) -> None:
    """Ignore a copy's result."""
