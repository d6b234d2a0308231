"""Checks the backwards of a loop: their losses and roots, and the graphs that the script keeps."""

from __future__ import annotations

import ast
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from gradscope.explain.shared.frames import in_library, is_hidden, shown, tree_of
from gradscope.records.loop_figures import Course
from gradscope.rules import Blocks
from gradscope.training.loop.loss_walk import operations

_EXACT = frozenset({torch.float32, torch.float64})
_LEAF, _REPEATED = frozenset({"leaf"}), frozenset({"repeated"})
#: In the metadata of a node, which lives as long as the node.
_KEY, _OF_CALL, _STARTED = "gradscope.step", "gradscope.call", "gradscope.backward"
_PART, _NOTHING = frozenset({"part"}), frozenset[str]()


class _Token:
    """A token: it lives as long as the node that holds it."""

    __slots__ = ("__weakref__",)


class Losses:
    """The losses of a loop, one after the other.

    Facts of a backward:

    - "repeated": it begins with the same tensor as an earlier one since gradients were cleared,
      and adds the same gradients
    - "part": a term of this loss is the tensor that such a backward started from
    - "leaf": no operation made its loss, as for ``torch.tensor(loss.item())``

    Attributes:
        same: the number of backwards, from the first on, with the same loss to float32 precision or
            better; 0 after the first difference.
        first: that loss.
    """

    #: Number of losses in the first blocks of the course.
    BLOCK = 4

    def __init__(self) -> None:
        self.same = 0
        self.first: float | None = None
        self._differs = False
        #: On the nodes where backwards started since gradients were cleared: a sum keeps the node
        #: of its term alive, though not the tensor.
        self._mark: weakref.ref[_Token] | None = None
        self._count = 0
        self._blocks = Blocks(self.BLOCK)

    @property
    def course(self) -> Course | None:
        """Return the course of all losses; None if there were too few."""
        return self._blocks.course

    def backward_begins(self, roots: Sequence[object], loss: float | None) -> frozenset[str]:
        """Return the facts of a backward."""
        self._count += 1
        self._blocks.add(self._count, loss)
        if not self._differs:
            # In fewer digits losses are often equal that are not the same.
            exact = any(getattr(one, "dtype", None) in _EXACT for one in roots)
            self._compare(loss if exact else None)
        if not roots:
            self._mark = None
            return _LEAF
        node = roots[0].grad_fn if isinstance(roots[0], torch.Tensor) else None
        if len(roots) != 1 or node is None:
            self._mark = None
            return _NOTHING
        facts, mark = _NOTHING, None if self._mark is None else self._mark()
        if mark is not None:
            if _metadata(node).get(_STARTED) is mark:
                return _REPEATED
            if any(_metadata(one).get(_STARTED) is mark for one in operations(node)):
                facts = _PART
        mark = mark or _Token()  # the last is dead if no graph of those backwards is left
        self._mark, _metadata(node)[_STARTED] = weakref.ref(mark), mark
        return facts

    def cleared(self) -> None:
        """Note cleared gradients: a later backward adds nothing twice."""
        self._mark = None

    def _compare(self, loss: float | None) -> None:
        if self.same == 0:
            self.first = loss
        if loss is None or loss != self.first:
            self._differs, self.same = True, 0
        else:
            self.same += 1


#: Number of known steps, and of nodes to visit from a variable, at most.
_MOST, _NODES = 4096, 64


class KeptGraphs:
    """Attaches a token to the node of each loss, and checks which tokens are alive."""

    def __init__(self) -> None:
        #: Step, backward and sample of each.
        self._tokens: deque[tuple[int, int, int, weakref.ref[_Token]]] = deque(maxlen=_MOST)
        #: The step of each call in eval mode.
        self._evaluations: deque[tuple[int, weakref.ref[_Token]]] = deque(maxlen=_MOST)
        self._sample = 0

    def evaluated(self, output: object, step: int) -> None:
        """Note the return of a model in eval mode with gradients, in this step."""
        if isinstance(output, dict):
            output = next(iter(output.values()), None)
        if isinstance(output, list | tuple):
            output = next(iter(output), None)
        node = output.grad_fn if isinstance(output, torch.Tensor) else None
        if node is not None:
            token = _Token()
            _metadata(node)[_OF_CALL] = token
            while self._evaluations and self._evaluations[0][-1]() is None:
                self._evaluations.popleft()
            self._evaluations.append((step, weakref.ref(token)))

    def alive_evaluations(self, step: int) -> list[int]:
        """Return the earlier steps with calls in eval mode whose graph is alive."""
        return [one for one, token in self._evaluations if one < step and token() is not None]

    def backward_begins(self, roots: Sequence[Any], step: int, backward: int, sample: int) -> None:
        """Note the backward of this number, in that step.

        Args:
            sample: the number of the current sample; 0 without one.
        """
        self._sample = sample or self._sample
        tokens = self._tokens
        while tokens and tokens[0][-1]() is None:
            tokens.popleft()
        node = roots[0].grad_fn if len(roots) == 1 and isinstance(roots[0], torch.Tensor) else None
        if node is not None:
            token = _Token()
            _metadata(node)[_KEY] = token
            tokens.append((step, backward, sample, weakref.ref(token)))

    def alive(self) -> list[tuple[int, int]]:
        """Return the step and the number of each backward whose graph is alive.

        Graphs of the last two samples do not count, because the samples hold them.
        """
        return [
            (step, backward)
            for step, backward, sample, token in self._tokens
            if token() is not None and (not sample or sample < self._sample - 1)
        ]

    def keeper(self) -> tuple[str, str | None] | None:
        """Return the script's variable that holds several of these graphs, and the responsible
        line."""
        for name, value, file in _variables():
            if len(set(_steps_upstream(value))) > 1:
                return name, _line(name, file)
        return None


def _metadata(node: Any) -> dict[str, Any]:
    found: dict[str, Any] = node.metadata  # a property, whatever its annotation says
    return found


def _variables() -> Iterator[tuple[str, Any, str]]:
    """Yield the script's variables and the attributes of its objects, with the file of each."""
    main = sys.modules.get("__main__")
    scopes = [(vars(main), str(getattr(main, "__file__", "")))] if main is not None else []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_hidden(file) and not in_library(file) and frame.f_locals is not frame.f_globals:
            scopes.append((dict(frame.f_locals), file))
        frame = frame.f_back
    for scope, file in scopes:
        for name, value in list(scope.items()):
            if name.startswith("__"):
                continue
            yield name, value, file
            own = getattr(value, "__dict__", None)
            if isinstance(own, dict) and type(value).__module__ == "__main__":
                yield from ((f"{name}.{key}", held, file) for key, held in list(own.items()))


def _steps_upstream(value: Any) -> Iterator[int]:
    """Yield the tokens on the nodes upstream of a tensor, or of the tensors in a container."""
    tensors = list(value.values()) if isinstance(value, dict) else value
    tensors = list(tensors) if isinstance(tensors, list | tuple | deque) else [tensors]
    for tensor in tensors[:_MOST]:
        nodes = [tensor.grad_fn] if isinstance(tensor, torch.Tensor) else []
        seen = 0
        while nodes and seen < _NODES:
            node, seen = nodes.pop(), seen + 1
            if node is None:
                continue
            kept = _metadata(node)
            token = kept.get(_KEY) or kept.get(_OF_CALL)
            if token is not None:
                yield id(token)
            nodes += [one for one, _ in node.next_functions]


def _line(name: str, file: str) -> str | None:
    """Return the place where the script adds to the variable."""
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        target = _added_to(node)
        if target is not None and ast.unparse(target) == name and hasattr(node, "lineno"):
            return f"{shown(file)}:{node.lineno}"
    return None


def _added_to(node: ast.AST) -> ast.expr | None:
    """Return the target of an addition: ``total += loss``, ``losses.append(loss)``, ``a = a +
    b``.
    """
    if isinstance(node, ast.AugAssign):
        return node.target
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr in ("append", "add", "extend") else None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        (target,) = node.targets
        parts = {ast.unparse(one) for one in ast.walk(node.value) if isinstance(one, ast.expr)}
        return target if ast.unparse(target) in parts else None
    return None
