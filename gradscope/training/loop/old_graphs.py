"""Finds graphs of earlier steps that the script's variables keep, though no loss is their root: a
sum of tensors that grows with the steps, and a state that is carried from step to step.

PyTorch numbers nodes in the order in which they are made. So the number tells a node's step, and
nothing must be attached to it.
"""

from __future__ import annotations

import ast
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import CodeType
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.capture.hooks import Handle, hook_node_before
from gradscope.capture.nodes import MOVES
from gradscope.explain.shared.frames import innermost, last_name, shown, tree_of
from gradscope.records.loop_figures import LoopFact
from gradscope.training.discovery import ScriptValue, script_values
from gradscope.training.loop.loss_walk import kind
from gradscope.training.loop.script_lines import main_text

#: Number of known steps, and of nodes to visit from a variable, at most.
_MOST, _NODES = 4096, 16384
#: Operations between a sum and its terms.
_SUMS = MOVES | frozenset(
    {
        *("AddBackward", "SubBackward", "NegBackward", "MeanBackward", "SumBackward"),
        *("MulBackward", "DivBackward", "StackBackward", "CatBackward"),
    }
)
_FACTORS = frozenset({"MulBackward", "DivBackward"})
#: All variables are searched in the first samples, and later in one of so many.
_FIRST, _EVERY = 16, 8
#: A sum is growing if its first term was the same in so many searches, and it had more each time.
_SEARCHES = 3


def sequence_number() -> int:
    """Return the number of the next node that this thread makes."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _number(node: Node) -> int:
    return int(node._sequence_nr())


class _Sum:
    """The contents of one variable: the number of its oldest term, and the steps of all terms."""

    __slots__ = ("__weakref__", "adds_at", "first", "handle", "oldest", "searches", "steps", "used")

    def __init__(self, oldest: Node) -> None:
        self.oldest, self.steps, self.first, self.searches = _number(oldest), 0, 0, 0
        self.adds_at: str | None = None
        #: True after a backward came to the oldest term: the script uses the sum.
        self.used = False
        self.handle: Handle | None = None

    def watch(self, oldest: Node) -> None:
        """Note from now on whether a backward comes to the oldest term."""
        mine = weakref.ref(self)

        def reached(*_: object) -> None:
            one = mine()
            if one is not None:
                one.used = True
                one.close()

        self.handle = hook_node_before(oldest, reached)

    def close(self) -> None:
        """Remove the hook."""
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


class GrowingSums:
    """Searches the script's variables for sums, or lists, of tensors with the graphs of many steps,
    that no backward uses."""

    def __init__(self) -> None:
        self._ends: deque[int] = deque(maxlen=_MOST)
        self._thread = threading.get_ident()
        self._of: dict[str, _Sum] = {}
        self._emptied = set[str]()  # variables that began anew once: the script uses them

    def step_ended(self) -> None:
        """Note the end of a step."""
        if threading.get_ident() == self._thread:  # each numbers its own nodes
            self._ends.append(sequence_number())

    def read(self, sample: int, steps: int) -> None:
        """Search in a sampled step, after so many others."""
        if sample > _FIRST and sample % _EVERY:
            return
        ends = list(self._ends)
        if not ends or threading.get_ident() != self._thread:
            return
        found: dict[str, _Sum] = {}
        seen = set[int]()  # a function may call a list by another name
        for one in script_values():
            tensors = list(_tensors(one.value))
            if not tensors or id(one.value) in seen:
                continue
            seen.add(id(one.value))
            terms = _terms(tensors, ends[-1])
            if terms:
                found[one.path] = self._grown(one, terms, ends, steps)
        for path, known in self._of.items():
            if found.get(path) is not known:
                known.close()
                self._emptied.add(path)
        self._of = found

    def close(self) -> None:
        """Remove all hooks."""
        for known in self._of.values():
            known.close()

    def facts(self) -> Iterator[LoopFact]:
        """Yield a fact for each sum that grew."""
        for path, one in self._of.items():
            if one.searches >= _SEARCHES and not one.used and path not in self._emptied:
                yield LoopFact(
                    "growing-sum", path, count=one.steps, figures=(float(one.first),),
                    location=one.adds_at,
                )  # fmt: skip

    def _grown(self, held: ScriptValue, terms: Sequence[Node], ends: list[int], steps: int) -> _Sum:
        oldest = min(terms, key=_number)
        numbers = {bisect_left(ends, _number(one) + 1) for one in terms}
        known = self._of.get(held.path)
        if known is None or known.oldest != _number(oldest) or len(numbers) <= known.steps:
            if known is not None and known.oldest == _number(oldest):
                return known
            known = _Sum(oldest)
        elif known.searches == 1:  # most have ended by now
            known.watch(oldest)
        known.steps, known.searches = len(numbers), known.searches + 1
        known.first = steps - len(ends) + min(numbers) + 1
        known.adds_at = known.adds_at or _adding_line(held)
        return known


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors with a graph: the value itself, or those in a list."""
    if type(value) is torch.Tensor:
        if value.grad_fn is not None:
            yield value
    elif type(value) in (list, tuple, deque):
        for one in islice(value, _MOST):
            if type(one) is torch.Tensor and one.grad_fn is not None:
                yield one


def _terms(tensors: Sequence[torch.Tensor], before: int) -> list[Node]:
    """Return the nodes of the terms that were made before the node of this number."""
    roots = [one.grad_fn for one in tensors if one.grad_fn is not None]
    stack, seen, found = list(roots), set(roots), []
    while stack and len(seen) < _NODES:
        node = stack.pop()
        name = kind(node)
        following = [one for one, _ in node.next_functions if one is not None]
        inner = [one for one in following if not isinstance(one, LEAF)]
        if name not in _SUMS or not inner or (name in _FACTORS and len(following) > 1):
            if _number(node) < before:
                found.append(node)
            continue
        for one in inner:
            if one not in seen:
                seen.add(one)
                stack.append(one)
    return found


#: Numbers of backwards at which the graph of the loss is walked.
_WALKS = (16, 32, 64)
#: Number of nodes to visit: 64 sequences of a long recurrent network.
_LONGEST = 131072
#: Least growth of the graph, and of the number of backwards before it was made, from walk to walk.
_GROWS, _REACHES = 1.5, 1.8


class CarriedGraphs:
    """Checks whether the graph of each loss contains those of all losses before.

    A regular loop has one walk. Later ones follow only if the one before found such a graph.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._steps: int | None = None  # before the last backward that counts
        self._thread = 0
        self._before = (0, 0)  # at the last walk: backwards, and nodes
        self._fact: LoopFact | None = None

    def backward_begins(self, roots: Sequence[Any], line: str | None, steps: int | None) -> None:
        """Note a backward, its line, and the number of steps so far, of which only the first
        backward counts; None without an optimizer."""
        begins = self._begins
        if len(begins) >= _WALKS[-1] or (steps is not None and steps == self._steps):
            return
        self._steps = steps
        here = threading.get_ident()
        self._thread = self._thread or here
        if here != self._thread:  # each numbers its own nodes
            begins += [0] * _WALKS[-1]
            return
        begins.append(sequence_number())
        if len(begins) in _WALKS:
            self._walk([one.grad_fn for one in roots if isinstance(one, torch.Tensor)], line)

    def facts(self) -> Iterator[LoopFact]:
        """Yield the fact."""
        if self._fact is not None:
            yield self._fact

    def _walk(self, roots: Sequence[Node | None], line: str | None) -> None:
        stack = [one for one in roots if one is not None]
        seen, reached, begins = set(stack), set[int](), self._begins
        while stack and len(seen) < _LONGEST:
            node = stack.pop()
            reached.add(bisect_left(begins, _number(node) + 1))
            for one, _ in node.next_functions:
                if one is not None and one not in seen and not isinstance(one, LEAF):
                    seen.add(one)
                    stack.append(one)
        count, nodes = self._before
        self._before = len(reached), len(seen)
        grows = len(reached) >= _REACHES * count and len(seen) >= _GROWS * nodes
        if stack or len(reached) < len(begins) // 2 or not grows:
            begins += [0] * _WALKS[-1]
        elif len(begins) == _WALKS[-1]:
            name, where = _carrier(seen) or ("", None)
            self._fact = LoopFact(
                "carried-graph", name, count=len(reached), figures=(float(min(reached) + 1),),
                location=where or line,
            )  # fmt: skip


def _carrier(graph: set[Node]) -> tuple[str, str] | None:
    """Return the variable that a statement computes from itself and that is in the graph, and the
    statement's line."""
    for one in script_values():
        for tensor in islice(_tensors(one.value), 1):
            if tensor.grad_fn in graph:
                line = _line_of(one, _carried)
                if line is not None:
                    return one.path, line
    return None


def _carried(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the targets of an assignment that its value also reads: ``loss, h = run(x, h)``."""
    if isinstance(node, ast.Assign):
        read = {ast.unparse(one) for one in ast.walk(node.value) if isinstance(one, ast.expr)}
        for target in node.targets:
            for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if ast.unparse(one) in read:
                    yield one


def _added(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the target of an addition: ``total += loss``, ``losses.append(loss)``, ``a = a +
    b``."""
    if isinstance(node, ast.AugAssign):
        yield node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("append", "extend", "add"):
            yield node.func.value
    else:
        yield from _carried(node)


def _line_of(held: ScriptValue, targets: Callable[[ast.AST], Iterator[ast.expr]]) -> str | None:
    """Return the first line with such a target that is the variable, in its own scope."""
    file, tree = _text_of(held.code)
    if tree is None:
        return None
    for node in ast.walk(_scope(tree, held.code)):
        line = getattr(node, "lineno", None)
        if line is None or not any(ast.unparse(one) == held.path for one in targets(node)):
            continue
        if held.code is not None or isinstance(innermost(tree, line), ast.Module):
            return f"{shown(file)}:{line}"
    return None


def _adding_line(held: ScriptValue) -> str | None:
    """Return the line that adds to the variable; for an attribute of an object, the only line that
    calls the method that does."""
    line = _line_of(held, _added)
    owner, _, attribute = held.path.rpartition(".")
    file, tree = main_text() or ("", None)
    if line is not None or not owner or tree is None:
        return line
    for of in ast.walk(tree):
        if not isinstance(of, ast.ClassDef) or of.name != held.owner:
            continue
        for method in (one for one in of.body if isinstance(one, ast.FunctionDef)):
            for node in ast.walk(method):
                if any(ast.unparse(one) == f"self.{attribute}" for one in _added(node)):
                    calls = set(_calls(tree, owner.rpartition(".")[2], method.name))
                    at = calls.pop() if len(calls) == 1 else getattr(node, "lineno", of.lineno)
                    return f"{shown(file)}:{at}"
    return None


def _calls(tree: ast.AST, owner: str, method: str) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=of, attr=called)) if called == method:
                if last_name(of) == owner:
                    yield node.lineno


def _text_of(code: CodeType | None) -> tuple[str, ast.Module | None]:
    if code is None:
        return main_text() or ("", None)
    return code.co_filename, tree_of(code.co_filename)


def _scope(tree: ast.Module, code: CodeType | None) -> ast.AST:
    """Return the function of this code."""
    if code is None:
        return tree
    found = innermost(tree, code.co_firstlineno)
    for node in ast.walk(found):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            return node
    return found
