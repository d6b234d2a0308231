"""Finds data sets that are written to when they give a batch, and exhausted iterators."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from gradscope.explain.shared.frames import classes_of_script, last_name, shown
from gradscope.records.loop_figures import LoopFact
from gradscope.training.discovery import variable_name
from gradscope.training.loop.script_lines import script_line, written_assignment

#: Of a data set with more tensors the first are compared.
_TENSORS = 16


class _Use:
    """A data set, its number of batches, and in how many of them its data was written to."""

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
    """Compares the versions of a data set's tensors before and after it gives a batch."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Dataset[Any], _Use] = weakref.WeakKeyDictionary()
        self._open: tuple[_Use, list[int]] | None = None
        self._ends: weakref.WeakKeyDictionary[Any, _End] = weakref.WeakKeyDictionary()
        self._lasting: list[_End] = []

    def batch_drawn(self, iterator: Any) -> None:
        """Note the indices of a batch; in this process, its samples are read next."""
        dataset = getattr(iterator, "_dataset", None)
        if not isinstance(dataset, Dataset) or getattr(iterator, "_num_workers", None) != 0:
            self._open = None
            return
        use = self._of.get(dataset)
        if use is None:
            use = self._of[dataset] = _Use(dataset)
        self._open = (use, [one._version for _, one in use.tensors]) if use.tensors else None

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
        """Yield the facts on written data sets and exhausted iterators."""
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
