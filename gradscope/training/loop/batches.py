"""Compares the batches of a model's calls with each other and with other models' results.

Finds data sets that are written to when they give a batch, and exhausted iterators.

"""

from __future__ import annotations

import ast
import math
import sys
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import BatchSampler, Dataset, RandomSampler, Subset, TensorDataset

from gradscope.capture.differences import fingerprints
from gradscope.capture.remembered import remembered
from gradscope.capture.shards import PLAIN
from gradscope.explain.shared.frames import (
    classes_of_script,
    innermost,
    last_name,
    nearest,
    shown,
    tree_of,
)
from gradscope.nesting import find
from gradscope.records.loop_figures import LoopBatches, LoopFact
from gradscope.training.discovery import variable_name, variable_value
from gradscope.training.loop.other_rows import shifted_labels
from gradscope.training.loop.script_lines import (
    ScriptLine,
    script_line,
    script_place,
    written_assignment,
)
from gradscope.training.loop.script_text import zipped_labels

#: What holds indices and can be read twice.
_SEQUENCES = (list, tuple, range, torch.Tensor, np.ndarray)
#: The number of evaluations whose inputs are compared.
_EVALUATIONS = 4
#: The number of first batches among which loaders that take turns are compared, and the number of
#: such turns that show it.
_TURNS, _FEWEST_TURNS = 64, 4


class Batches:
    """Compares the inputs of each call with the first one's, until they differ.

    Attributes:
        same: the number of calls with equal numbers, of models that were called again; 0 after the
            first difference.
        differ: True if a call got other numbers; ``trains``: True if no step came after it, as at
            the end of a script that reads other data then.
        rows: the size of the first axis of the first input.
        evaluated: True if an evaluation got other numbers.
        layers: True if inputs of layers were compared, not those of whole models: a model may have
            other inputs beside them.
        same_tensor: True if it was the same memory each time, and not a small part of a larger
            tensor, as in training on the full data set; or if the script indexes a variable for it
            and takes at least half of its rows, as in ``model(x[train])``.
    """

    def __init__(self) -> None:
        self.same = 0
        self.same_tensor = True
        self.differ = self.trains = False
        self.rows = 0
        self.evaluated = self.layers = False
        self._evaluations = 0
        self._first: dict[int, tuple[str, ...]] = {}  # by model
        self._calls = Counter[int]()
        self._parts: dict[int, _Part] = {}

    def called(self, model: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the inputs of a model's call with gradients."""
        if self.differ:
            return
        given = [tensor for _, tensor in find((args, kwargs), torch.Tensor)]
        # A tensor with a graph is another model's output, which changes as that model trains.
        if not given or any(tensor.grad_fn is not None for tensor in given):
            return
        digest = tuple(fingerprints(given))
        again = model in self._first
        first = self._first.setdefault(model, digest)
        if first != digest:
            self.differ = self.trains = True
            return
        self.rows = self.rows or (given[0].shape[0] if given[0].dim() else 0)
        known = self._parts.setdefault(model, _Part(given[0]))
        if again and self.same_tensor:
            same = known.is_same(given[0]) and known.is_most()
            self.same_tensor = same or known.is_indexed(given[0])
        self._calls[model] += 1
        # A model that is called only once, such as a copy for each task, is no evidence.
        self.same += 0 if not again else 2 if self._calls[model] == 2 else 1

    def entered(
        self, layer: int, args: Sequence[Any], kwargs: Mapping[str, Any], gradients: bool
    ) -> None:
        """Note the inputs of a layer that the script calls itself."""
        self.layers = True
        (self.called if gradients else self.evaluated_on)(-layer, args, kwargs)

    def evaluated_on(self, model: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the inputs of a model's call without gradients."""
        first = self._first.get(model)
        if first is None or self.evaluated or self._evaluations == _EVALUATIONS:
            return
        self._evaluations += 1
        given = [tensor for _, tensor in find((args, kwargs), torch.Tensor)]
        self.evaluated = tuple(fingerprints(given)) != first

    def step_ended(self) -> None:
        """Note an optimizer's step: the calls before it belong to the training."""
        if self.trains:
            self.trains, self.same = False, 0
            self._first.clear()
            self._parts.clear()


class _Part:
    """A tensor or a view, identified by its base tensor: addresses are soon reused."""

    def __init__(self, tensor: torch.Tensor) -> None:
        base = tensor if tensor._base is None else tensor._base
        self._base, self._elements = remembered(base), tensor.numel()
        self._place = _place(tensor)
        self._indexed: bool | None = None

    def is_same(self, tensor: torch.Tensor) -> bool:
        """Return True if another tensor is the same part of the same base."""
        base = tensor if tensor._base is None else tensor._base
        return self._base() is base and _place(tensor) == self._place

    def is_most(self) -> bool:
        """Return True if the part is at least half of its base."""
        base = self._base()
        return base is not None and base.numel() <= 2 * self._elements

    def is_indexed(self, tensor: torch.Tensor) -> bool:
        """Return True if the calling function of the script indexes a variable with at most twice
        the rows of this tensor; asked once."""
        if self._indexed is None:
            self._indexed = _is_indexed(tensor)
        return self._indexed


def _is_indexed(tensor: torch.Tensor) -> bool:
    frame = nearest(sys._getframe(1))
    tree = None if frame is None else tree_of(frame.f_code.co_filename)
    if frame is None or tree is None or not tensor.dim():
        return False
    for node in ast.walk(innermost(tree, frame.f_lineno)):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Name()):  # a slice is a view
                of = variable_value(name)
                if (
                    not isinstance(of, torch.Tensor)
                    or type(of) not in PLAIN
                    or of.is_nested
                    or not of.dim()
                ):
                    continue
                alike = of.shape[1:] == tensor.shape[1:]
                if alike and len(tensor) <= len(of) <= 2 * len(tensor):
                    return True
    return False


def _place(tensor: torch.Tensor) -> object:
    plain = tensor.layout == torch.strided and not tensor.is_nested
    where = (tensor.storage_offset(), tensor.stride()) if plain else ()
    return tuple(tensor.shape) if plain else (), where


#: Number of results that are remembered.
_RESULTS = 16
#: After this many calls of one model there is no other one.
_ALONE = 64


class GeneratedInputs:
    """Remembers the results of each model, and finds them among the inputs of another.

    A detached tensor shares its storage with the result.
    """

    def __init__(self) -> None:
        self._results: deque[tuple[StorageWeakRef, int]] = deque(maxlen=_RESULTS)
        self._models: set[int] = set()
        self._calls = 0

    @property
    def several(self) -> bool:
        """True if several models were called."""
        return len(self._models) > 1

    def called(self, model: int, given: object) -> bool:
        """Return True if a model's call gets a result of another model."""
        self._models.add(model)
        self._calls += 1
        if not self.several:  # in every step of most scripts
            return False
        inputs = set(_storages(given))
        return any(result in inputs and by != model for result, by in self._results)

    def returned(self, model: int, output: object) -> None:
        """Note the results of a model's call."""
        if self.several or self._calls < _ALONE:
            self._results.extend((one, model) for one in _storages(output))


def _storages(data: object) -> Iterator[StorageWeakRef]:
    for _, tensor in find(data, torch.Tensor):
        if tensor.layout == torch.strided and type(tensor) in PLAIN:
            yield StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


#: A batch of fewer samples says little.
_FEWEST = 4


class _Facts:
    """Facts on one model."""

    def __init__(self) -> None:
        self.batches = self.alike = self.outputs = self.constant = self.twins = 0
        self.size = 0.0
        self.location: str | None = None
        self.open = 0  # how many samples the call that goes on was given, if they differ


class BatchFacts:
    """Reads the arguments and the results of the models' calls."""

    def __init__(self) -> None:
        self._of: dict[int, _Facts] = {}

    def called(self, model: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the inputs of a model's call with gradients, in a sampled step."""
        facts = self._of.setdefault(model, _Facts())
        facts.open = 0
        given = [one for _, one in find((args, kwargs), torch.Tensor) if one.dim()]
        count = given[0].shape[0] if given else 0
        # A tensor with another first axis, as a graph's edges, may distinguish the samples.
        if count < _FEWEST or not all(_plain(one) and one.shape[0] == count for one in given):
            return
        if facts.location is None:
            facts.location = script_place()
        alike = all(_same_rows(one) for one in given)
        facts.batches += 1
        facts.alike += alike
        numbers = [one.detach() for one in given if one.is_floating_point()]
        facts.size = _rms(numbers[0]) if numbers else 0.0
        facts.twins += _has_twins(numbers)
        facts.open = 0 if alike else count

    def returned(self, model: int, output: object) -> None:
        """Note a model's output."""
        facts = self._of.get(model)
        if facts is None or not facts.open:
            return
        count, facts.open = facts.open, 0
        given = next(
            (one for _, one in find(output, torch.Tensor) if one.is_floating_point()), None
        )
        if given is None or not given.dim() or given.shape[0] != count or not _plain(given):
            return
        facts.outputs += 1
        facts.constant = facts.constant + 1 if _same_rows(given) else 0

    def records(self) -> Iterator[LoopBatches]:
        """Yield the record of each model."""
        for model, one in self._of.items():
            if one.batches:
                yield LoopBatches(
                    model=model, batches=one.batches, alike=one.alike, outputs=one.outputs,
                    constant=one.constant, location=one.location, size=one.size, twins=one.twins,
                )  # fmt: skip


def _plain(tensor: torch.Tensor) -> bool:
    there = not tensor.is_meta and tensor.layout == torch.strided and not tensor.is_nested
    return there and type(tensor) in PLAIN


def _rms(tensor: torch.Tensor) -> float:
    norm = float(torch.linalg.vector_norm(tensor.float()))
    size = norm / max(1, tensor.numel()) ** 0.5
    return size if math.isfinite(size) else 0.0


def _has_twins(tensors: Sequence[torch.Tensor]) -> bool:
    """Return True if two tensors in different memory have the same numbers."""
    return any(
        one.shape == other.shape
        and one.data_ptr() != other.data_ptr()
        and not _same_rows(one)
        and torch.equal(one, other)
        for one, other in combinations(tensors, 2)
    )


def _same_rows(tensor: torch.Tensor) -> bool:
    """Return True if all samples are equal; the first two nearly always decide."""
    rows = tensor.detach()
    if not tensor.numel() or not torch.equal(rows[0], rows[1]):
        return False
    return bool((rows == rows[:1]).all())


#: If a data set has more tensors, only the first ones are compared.
_TENSORS = 16


class _Use:
    """A data set, its number of batches, and the number of batches in which its data was written
    to."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.kind = type(dataset)
        self.tensors = list(_tensors(dataset))
        self.given = self.written = 0
        self.attribute = ""


class _End:
    """An exhausted iterator, with the number of later requests, ``more``."""

    def __init__(self, batches: int) -> None:
        self.batches, self.more = batches, 0
        self.name: str | None = None
        self.location: str | None = None


class DataSets:
    """Compares the versions of a data set's tensors before and after it gives a batch.

    Attributes:
        drawn: the number of batches whose indices were drawn.
        repeats: the number of batches with the indices of the first; 0 after another one.
    """

    def __init__(self) -> None:
        self.drawn = self.repeats = 0
        # The indices of the first batch, until others are drawn; None if they are no numbers.
        self._first: tuple[int, ...] | None = None
        self._shifted: dict[type, tuple[LoopFact, ...]] = {}
        self._of: weakref.WeakKeyDictionary[Dataset[Any], _Use] = weakref.WeakKeyDictionary()
        self._open: tuple[_Use, list[int]] | None = None
        self._ends: weakref.WeakKeyDictionary[Any, _End] = weakref.WeakKeyDictionary()
        self._lasting: list[_End] = []
        # Of two shuffling loaders that take turns: the one before with its indices, and the number
        # of turns with other indices; None after a turn with the same.
        self._turn: tuple[weakref.ref[RandomSampler], tuple[int, ...]] | None = None
        self._apart: int | None = 0
        self._turns_at: ScriptLine | None = None

    def batch_drawn(self, iterator: Any, indices: Any) -> None:
        """Note the indices of a batch; in this process, its samples are read next."""
        self.drawn += 1
        self._compare(indices)
        if self._apart is not None and self.drawn <= _TURNS:
            self._take_turns(iterator, indices)
        dataset = getattr(iterator, "_dataset", None)
        if not isinstance(dataset, Dataset) or getattr(iterator, "_num_workers", None) != 0:
            self._open = None
            return
        use = self._of.get(dataset)
        if use is None:
            use = self._of[dataset] = _Use(dataset)
            if use.kind not in self._shifted:
                self._shifted[use.kind] = tuple(shifted_labels(use.kind))
        self._open = (use, [one._version for _, one in use.tensors]) if use.tensors else None

    def _compare(self, indices: Any) -> None:
        if self.drawn > 1 and self._first is None:
            return
        drawn = _numbers(indices)
        if self.drawn == 1:
            self._first = drawn
        if drawn is not None and drawn == self._first:
            self.repeats += 1
        else:
            self.repeats, self._first = 0, None

    def _take_turns(self, iterator: Any, indices: Any) -> None:
        """Compare the indices with as many of another loader just before."""
        batches = getattr(iterator, "_index_sampler", None)
        before, self._turn = self._turn, None
        # Other classes are the script's own: their attributes may be anything.
        if type(batches) is not BatchSampler or type(batches.sampler) is not RandomSampler:
            return
        drawn = _numbers(indices)
        if drawn is None:
            return
        self._turn = weakref.ref(batches.sampler), drawn
        other = None if before is None else before[0]()
        if before is None or other is None or other is batches.sampler:
            return
        if len(before[1]) == len(drawn):
            self._apart = None if before[1] == drawn else (self._apart or 0) + 1
            self._turn, self._turns_at = None, self._turns_at or script_line()

    def called(self) -> None:
        """Note a model's call: the batch is complete."""
        if self._open is None:
            return
        (use, before), self._open = self._open, None
        use.given += 1
        for (name, tensor), version in zip(use.tensors, before, strict=True):
            if tensor._version != version:
                use.written += 1
                use.attribute = name
                return

    def used_up(self, iterator: Any) -> None:
        """Note that an iterator is exhausted."""
        if getattr(iterator, "_num_workers", None) != 0:
            return  # it asks for more before its last batches are given
        end = self._ends.get(iterator)
        if end is None:
            self._ends[iterator] = _End(int(getattr(iterator, "_num_yielded", 0)))
            return
        if not end.more:
            self._lasting.append(end)
            end.name = variable_name(iterator)
            end.location = (end.name and written_assignment(end.name)) or str(script_line() or "")
        end.more += 1

    def facts(self) -> Iterator[LoopFact]:
        """Yield the facts on written data sets, exhausted iterators, and labels of others."""
        if (self._apart or 0) >= _FEWEST_TURNS and self._turns_at is not None:
            yield from zipped_labels(self._turns_at)
        for found in self._shifted.values():
            yield from found
        for use in self._of.values():
            if use.written:
                yield LoopFact(
                    "written-data", use.kind.__name__, count=use.written, words=(use.attribute,),
                    figures=(float(use.given),), location=_write_in(use.kind),
                )  # fmt: skip
        for end in self._lasting:
            yield LoopFact(
                "used-up", end.name or "", count=end.more, figures=(float(end.batches),),
                location=end.location or None,
            )  # fmt: skip


def _numbers(indices: Any) -> tuple[int, ...] | None:
    """Return the indices of a batch, which a sampler may give as a tensor or an array; None for
    others, as of a stream. A generator is not read: the script would get none of its indices."""
    if type(indices) not in _SEQUENCES:
        return None
    try:
        return tuple(map(int, indices))
    except (TypeError, ValueError, RuntimeError):
        return None


def _tensors(dataset: Dataset[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    found = vars(dataset)
    if isinstance(dataset, TensorDataset):
        found = {f"tensors[{i}]": one for i, one in enumerate(dataset.tensors)}
    plain = [
        (name, one)
        for name, one in found.items()
        if isinstance(one, torch.Tensor) and not one.is_inference()
    ]
    yield from plain[:_TENSORS]


def _write_in(kind: type) -> str | None:
    """Return the first line of a class's ``__getitem__`` that writes in place."""
    for file, owner in classes_of_script(kind):
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and method.name.startswith("__getitem"):
                write = next((one for one in ast.walk(method) if _writes(one)), None)
                if isinstance(write, ast.stmt | ast.expr):
                    return f"{shown(file)}:{write.lineno}"
    return None


def _writes(node: ast.AST) -> bool:
    match node:
        case ast.AugAssign():
            return True
        case ast.Assign(targets=[ast.Subscript()]):
            return True
        case ast.Call(func=ast.Attribute()):
            name = last_name(node.func)
            return name.endswith("_") and not name.endswith("__")
    return False
