"""Finds a critic and a generator whose losses move the scores of fakes in one direction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import Node

from gradscope.capture.nodes import stack_of
from gradscope.explain.shared.frames import locate
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.loss_walk import LAYERS, adds_bias, kind, weight_of
from gradscope.training.loop.script_lines import written_in_main
from gradscope.training.loop.weighted_terms import SUMS, constant_factor

#: Functions that rise everywhere, as of a hinge loss and of a non-saturating one.
_RISING = frozenset({"ReluBackward", "LeakyReluBackward", "SoftplusBackward", "ClampMinBackward"})
#: Lines that turn a gradient round.
_TURNS = r"\.grad\b.*\.?(neg_?|mul_)\(|\.grad\s*=\s*-|\.grad\s*\*="
#: The number of nodes of a loss, at most.
_NODES = 16384
#: The smallest number of losses of each side.
_FEWEST = 3


@dataclass(slots=True)
class _Side:
    """The losses of one optimizer on the scores of fakes, or of data."""

    signs: set[bool] = field(default_factory=set)  # True where a lower loss needs higher scores
    count: int = 0
    location: str | None = None


class CriticScores:
    """Reads the terms of losses that are averages of a critic's scores."""

    def __init__(self) -> None:
        # By the critic's last weight: by optimizer, and for fakes or for data.
        self._of: dict[int, dict[tuple[str, bool], _Side]] = {}
        self._played: list[tuple[int, bool, bool, str | None]] = []  # in this step

    def read(self, terms: Iterable[tuple[float, Node]], on_fakes: Callable[[Node], bool]) -> None:
        """Read the terms of a loss, each with its factor; ``on_fakes`` returns True if the scores
        of a layer belong to another model's results."""
        for factor, term in terms:
            found = _scores(factor, term)
            if found is None:
                continue
            sign, layer = found
            weight = weight_of(layer)
            if weight is not None:
                place = locate(stack_of(term))
                self._played.append((id(weight), on_fakes(layer), sign < 0, place))

    def step_ended(self, optimizer: str) -> None:
        """Note the optimizer that used these losses."""
        for critic, fakes, raised, location in self._played:
            side = self._of.setdefault(critic, {}).setdefault((optimizer, fakes), _Side())
            side.signs.add(raised)
            side.count += 1
            side.location = side.location or location
        self._played.clear()

    def facts(self) -> Iterator[LoopFact]:
        """Yield a fact for each critic: the generator's optimizer does not score data.

        A script that turns gradients round, ``p.grad.neg_()``, may mean it.
        """
        for sides in self._of.values():
            for (critic, fakes), own in sides.items():
                data = sides.get((critic, False))
                if not fakes or data is None or len(own.signs) != 1 or len(data.signs) != 1:
                    continue
                for (generator, of_fakes), other in sides.items():
                    plays = generator != critic and (generator, False) not in sides
                    enough = min(own.count, data.count, other.count) >= _FEWEST
                    opposed = own.signs != data.signs
                    same = of_fakes and plays and enough and opposed and own.signs == other.signs
                    if same and not written_in_main(_TURNS):
                        yield LoopFact(
                            "same-side", critic, count=other.count, location=own.location,
                            words=(generator, "raise" if own.signs == {True} else "lower"),
                        )  # fmt: skip


def has_own_function(loss: Node) -> bool:
    """Return True if a loss depends on a function of the script, which may turn a gradient round;
    or if its graph is too large to tell."""
    stack, seen = [loss], {loss}
    while stack:
        for one, _ in stack.pop().next_functions:
            if one is None or one in seen:
                continue
            if isinstance(one, torch.autograd.function.BackwardCFunction) or len(seen) >= _NODES:
                return True
            seen.add(one)
            stack.append(one)
    return False


def _scores(factor: float, term: Node) -> tuple[float, Node] | None:
    """Return the factor of the scores in an average, and the layer that gives them; None for
    another term."""
    if kind(term) not in SUMS:
        return None
    node = term.next_functions[0][0]
    while node is not None:
        name = kind(node)
        if name in LAYERS:
            return factor, node
        inner = [(place, one) for place, (one, _) in enumerate(node.next_functions) if one]
        if name == "AddBackward" and adds_bias(node):
            inner = inner[:1]
        if len(inner) != 1:
            return None
        if name in _RISING or name in ("AddBackward", "SubBackward"):
            factor *= -1 if name == "SubBackward" and inner[0][0] else 1
            node = inner[0][1]
        else:
            constant, node = constant_factor(node)
            factor *= constant
    return None
