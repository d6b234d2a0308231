"""Observes random numbers: repeated seeds, draws of distributions without a gradient, and
log-probabilities of other draws.
"""

from __future__ import annotations

import ast
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.capture.shards import PLAIN
from gradscope.explain.shared.frames import assignment, innermost, is_at, last_name, tree_of
from gradscope.records.loop_figures import Draw, LoopFact
from gradscope.training.loop.script_lines import ScriptLine, script_line, script_place

#: Class of the distribution, and the size of the last axis of its samples.
_Key = tuple[str, int]


def distributions() -> Iterator[type]:
    """Yield the classes of ``torch.distributions``."""
    module = sys.modules.get("torch.distributions.distribution")
    base = getattr(module, "Distribution", None)
    found: list[type] = [base] if isinstance(base, type) else []
    for kind in found:  # it grows
        derived: list[type] = kind.__subclasses__()
        found += [one for one in derived if one not in found]
        if kind.__module__.startswith("torch.distributions."):
            yield kind


@dataclass(slots=True)
class _Drawn:
    """The line of the first sample, the number of steps with a sample, and the last such step."""

    line: str | None
    steps: int = 0
    latest: int = -1


#: The most samples kept of one distribution.
_SAMPLES = 4


class OtherDraws:
    """Finds ``log_prob(d.sample())`` of a distribution whose earlier sample gets no ``log_prob``.

    The earlier sample was the action, so the policy gradient is that of another action. A second
    sample for an estimate of the entropy does not count: there the first is scored too. Actions
    that are drawn without gradients, in a rollout, are earlier samples too.
    """

    def __init__(self) -> None:
        self._of: weakref.ref[Any] | None = None
        # The samples of the distribution that was sampled last.
        self._samples: list[tuple[RememberedTensor, ScriptLine | None]] = []
        self._found: tuple[str, str, str] | None = None  # class, both lines
        self._rollouts: dict[str, ScriptLine | None] = {}  # the first draw without gradients
        self._plain = False  # whether something else was scored in this step
        self._steps = Counter[tuple[str, str, str]]()
        self._differ = set[tuple[str, str, str]]()

    def drew(self, distribution: object, drawn: torch.Tensor) -> None:
        """Note a result of ``sample``."""
        if self._of is None or self._of() is not distribution:
            try:
                self._of = weakref.ref(distribution)
            except TypeError:  # of a class of the script, with slots
                self._of = None
            self._samples.clear()
        if self._of is not None and len(self._samples) < _SAMPLES:
            self._samples.append((remembered(drawn), script_line()))

    def drew_in_rollout(self, distribution: object) -> None:
        """Note a draw without gradients."""
        name = type(distribution).__name__
        if name not in self._rollouts:
            self._rollouts[name] = script_line()

    def scored(self, distribution: object, value: torch.Tensor) -> None:
        """Note the argument of ``log_prob``: it may be a later sample."""
        mine = self._of is not None and self._of() is distribution
        name = type(distribution).__name__
        only = mine and len(self._samples) == 1 and self._samples[0][0]() is value
        if only and name in self._rollouts and not self._plain:
            line, rollout = script_line(), self._rollouts[name]
            by_hand = rollout is not None and _may_score_by_hand(rollout.file)
            if line is not None and rollout and _draws_itself(line) and not by_hand:
                self._found = name, str(rollout), str(line)
                self._differ.add(self._found)
                return
        self._plain = True
        if not self._samples:
            return
        (first, drawn_at), later = self._samples[0], self._samples[1:]
        if not any(one() is value for one, _ in later):
            # An earlier action is often in a stack or a copy, and scored by another distribution.
            self._forget()
            return
        line = script_line()
        if mine and drawn_at is not None and line is not None and _draws_itself(line):
            if _is_scored_by_hand(drawn_at):
                return
            self._found = type(distribution).__name__, str(drawn_at), str(line)
            if not _equal(first(), value):  # of two actions they are often equal by chance
                self._differ.add(self._found)

    def _forget(self) -> None:
        self._samples, self._found = [], None

    def step_ended(self) -> None:
        """Note the end of a step: its earlier sample was not scored."""
        if self._found is not None:
            self._steps[self._found] += 1
        self._found, self._of, self._plain = None, None, False
        self._samples.clear()

    def facts(self) -> Iterator[LoopFact]:
        """Yield the fact of each pair of lines."""
        for found, count in self._steps.items():
            kind, first, line = found
            if found in self._differ:
                yield LoopFact("other-draw", words=(kind, first), count=count, location=line)


def _equal(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    """Return True for the same numbers, and for tensors that cannot be read."""
    if one is None or one is other:
        return one is other
    if any(torch._C._functorch.is_functorch_wrapped_tensor(o) for o in (one, other)):
        return True
    if one.numel() != other.numel() or one.device != other.device or type(other) not in PLAIN:
        return False
    with _disable_current_modes():
        return torch.equal(one.detach().flatten(), other.detach().flatten())


@lru_cache(maxsize=64)
def _is_scored_by_hand(drawn_at: ScriptLine) -> bool:
    """Return True if the variable of a sample is given to a cross entropy, or chooses among log
    probabilities: ``log_softmax(x, 1).gather(1, a)``."""
    tree = tree_of(drawn_at.file)
    scope = ast.Module([], []) if tree is None else innermost(tree, drawn_at.line)
    drawn = {
        target.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and is_at(node, drawn_at.line)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(scope):
        if not isinstance(node, ast.Call):
            continue
        name = last_name(node.func)
        chooses = name in ("gather", "take_along_dim") and "log" in ast.unparse(node)
        if chooses or name in ("cross_entropy", "nll_loss"):
            given = [*node.args, *(one.value for one in node.keywords)]
            of = (n.id for one in given for n in ast.walk(one) if isinstance(n, ast.Name))
            if drawn & {*of}:
                return True
    return False


@lru_cache(maxsize=64)
def _may_score_by_hand(file: str) -> bool:
    """Return True if a file computes log probabilities without a distribution."""
    tree = tree_of(file)
    calls = (one for one in ast.walk(tree or ast.Module([], [])) if isinstance(one, ast.Call))
    names = (last_name(one.func) for one in calls)
    return any(part in name.lower() for name in names for part in _BY_HAND)


#: Parts of the names of what gives log probabilities, or a loss that has them.
_BY_HAND = ("log_softmax", "logsoftmax", "cross_entropy", "crossentropy", "nll")


@lru_cache(maxsize=64)
def _draws_itself(line: ScriptLine) -> bool:
    """Return True if a call of ``log_prob`` on this line gets ``….sample()``, or a variable for it
    that nothing else in its function reads."""
    tree = tree_of(line.file)
    for call in ast.walk(tree) if tree is not None else ():
        if not isinstance(call, ast.Call) or not is_at(call, line.line) or len(call.args) != 1:
            continue
        if tree is None or last_name(call.func) != "log_prob":
            continue
        given = call.args[0]
        if isinstance(given, ast.Name):
            scope, name = innermost(tree, line.line), given.id
            made = assignment(name, scope, line.line)
            named = (o for o in ast.walk(scope) if isinstance(o, ast.Name) and o.id == name)
            if made is None or sum(isinstance(one.ctx, ast.Load) for one in named) != 1:
                continue
            given = made.value
        if isinstance(given, ast.Call) and last_name(given.func) == "sample":
            return True
    return False


class Draws:
    """Counts samples of distributions that pass no gradient.

    With a score function (``log_prob`` of a sample) no gradient through the sample is needed, so
    distributions whose ``log_prob`` is used are left out. So are those with ``rsample`` for the
    loss and ``sample`` for display.
    """

    def __init__(self) -> None:
        self._drawn: dict[_Key, _Drawn] = {}
        self._latest: tuple[RememberedTensor, _Key] | None = None
        self._scored: set[_Key] = set()
        self._used: set[_Key] = set()
        self.others = OtherDraws()

    def drew(self, distribution: Any, drawn: object, step: int, *, inside: bool) -> None:
        """Note a result of ``sample``; ``inside``: it was drawn during a model's call with
        gradients."""
        if not isinstance(drawn, torch.Tensor):
            return
        if not torch.is_grad_enabled():
            self.others.drew_in_rollout(distribution)
            return
        self.others.drew(distribution, drawn)
        if not drawn.dim() or drawn.numel() < 2:  # one action: it is scored with others
            return
        if drawn.requires_grad or not getattr(distribution, "has_rsample", False):
            return
        own = vars(distribution).values()
        if not any(isinstance(one, torch.Tensor) and one.requires_grad for one in own):
            return
        key = _key(distribution, drawn)
        known = self._drawn.get(key)
        if known is None:
            known = self._drawn[key] = _Drawn(script_place())
        if known.latest != step:
            known.steps, known.latest = known.steps + 1, step
        if inside:
            self._used.add(key)
        elif key not in self._used:
            self._latest = remembered(drawn), key

    def given(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note the inputs of a model's call with gradients: a sample may be among them."""
        if self._latest is not None:
            drawn, key = self._latest
            if any(one is drawn() for one in tensors):
                self._latest = None
                self._used.add(key)

    @property
    def waits(self) -> bool:
        """True if a drawn sample may still become a model's input."""
        return self._latest is not None

    def scored(self, distribution: Any, value: object) -> None:
        """Note a call of ``log_prob``, or a return of ``rsample``, with gradients."""
        if isinstance(value, torch.Tensor) and torch.is_grad_enabled():
            self.others.scored(distribution, value)
        if isinstance(value, torch.Tensor) and value.dim() and torch.is_grad_enabled():
            self._scored.add(_key(distribution, value))

    def records(self) -> tuple[Draw, ...]:
        """Return the draws without a later call of ``log_prob``."""
        return tuple(
            Draw(kind=key[0], steps=one.steps, location=one.line, used=key in self._used)
            for key, one in self._drawn.items()
            if key not in self._scored
        )


def _key(distribution: object, value: torch.Tensor) -> _Key:
    return type(distribution).__name__, value.shape[-1]


@dataclass(slots=True)
class _Seed:
    """The first line that set the seed, the number of steps that set it, and the last such step."""

    line: str | None
    steps: int = 0
    latest: int = -1


class Seeds:
    """Counts the steps in which ``torch.manual_seed`` was called with each seed.

    A new seed for each step, or a seed for each epoch, does not count.
    """

    #: More seeds than these are one for each step.
    MOST = 16

    def __init__(self) -> None:
        self._seeds: dict[int, _Seed] = {}

    def seeded(self, seed: object, step: int) -> None:
        """Note a call of ``torch.manual_seed`` after step ``step``."""
        if not isinstance(seed, int) or (seed not in self._seeds and len(self._seeds) >= self.MOST):
            return
        known = self._seeds.get(seed)
        if known is None:
            known = self._seeds[seed] = _Seed(None)
        if known.latest != step:
            known.steps, known.latest = known.steps + 1, step
        if step and known.line is None:  # the first may be the script's own start
            known.line = script_place()

    def facts(self) -> Iterator[LoopFact]:
        """Yield the facts on seeds, each with the number of its steps."""
        for seed, one in self._seeds.items():
            if one.steps > 1:
                figures = (float(seed),)
                yield LoopFact("seeded", count=one.steps, figures=figures, location=one.line)
