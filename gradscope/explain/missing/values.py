"""The values of the second run: sources, line and cut of each tensor's value.

Sets of parameters are bit masks. A value comes after the values it was computed from, so one sweep
in either direction is enough for all parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.autograd.graph import Node

from gradscope.capture.calls import CHECKPOINT
from gradscope.capture.graph import LEAF
from gradscope.capture.nodes import topological, upstream
from gradscope.explain.shared.frames import CallSite
from gradscope.explain.shared.operations import Trait, by_function

#: Why an output has no gradient path to an input that has one; the order is the precedence.
CAUSES = ("no-grad", "detached", "non-differentiable")


@dataclass(slots=True)
class Value:
    """The state of a tensor, or of data that left torch for Python (then nothing is ``live``).

    Attributes:
        parents: the values it was computed from.
        live: the parameters in its autograd graph.
        op: the name of the operation.
        cause: the cause if a gradient path ended here.
        reason: a detail for the message: the line that disabled gradients, a Function's name.
        own: the parameters whose memory it shares.
        guessed: True if the parents are unknown, so that all data that had left for Python count.
        function: the user's autograd Function that made its graph, if any.
        constant: True if the script made it outside every module, without gradients: as a target.
    """

    parents: tuple[int, ...]
    live: int
    op: str
    site: CallSite
    cause: str | None = None
    reason: str | None = None
    own: int = 0
    guessed: bool = False
    function: str | None = None
    constant: bool = False


@dataclass(slots=True)
class Flow:
    """All values, oldest first."""

    values: list[Value] = field(default_factory=list)

    def add(self, value: Value) -> int:
        """Append a value, and return its number."""
        self.values.append(value)
        return len(self.values) - 1

    def joined(self, numbers: Sequence[int]) -> int | None:
        """Return the number of a value that joins several; None without one."""
        if len(numbers) < 2:
            return numbers[0] if numbers else None
        live = 0
        for number in numbers:
            live |= self.values[number].live
        return self.add(Value(tuple(numbers), live, "", self.values[numbers[-1]].site))

    def reaching(self, loss: int | None, *, guesses: bool, constants: bool = True) -> list[int]:
        """Return for each value the parameters whose data it brings to the loss without a gradient
        path.

        Args:
            loss: the loss's value.
            guesses: also by values with unknown parents.
            constants: also by what the script made of them as a constant.
        """
        reach = [0] * len(self.values)
        if loss is None:
            return reach
        reach[loss] = ~self.values[loss].live
        for number in range(loss, -1, -1):
            value = self.values[number]
            if not reach[number] or (value.guessed and not guesses):
                continue
            if value.constant and not constants:
                continue
            for parent in value.parents:
                reach[parent] |= reach[number] & ~self.values[parent].live
        return reach


class LiveMasks:
    """Bit masks of the parameters upstream of a tensor; visits each node once."""

    def __init__(self, bits: dict[int, int]) -> None:
        self._bits = bits  # a parameter's id to its bit
        self._masks: dict[Node, int] = {}

    def of(self, tensor: torch.Tensor, observed: int) -> int:
        """Return the mask of a tensor; ``observed`` is the mask of its known value."""
        if id(tensor) in self._bits:
            return self._bits[id(tensor)]
        if not tensor.requires_grad or tensor.grad_fn is None:
            return 0
        node = tensor.grad_fn
        mask = self._node(node)
        if type(node).__name__ == CHECKPOINT and observed & ~mask:
            # Its graph is built in backward, so the node does not lead to tensors that it uses
            # inside.
            mask = self._masks[node] = mask | observed
        return mask

    def _node(self, root: Node) -> int:
        def unknown(node: Node) -> list[Node]:
            return [after for after in upstream(node) if after not in self._masks]

        new = [root] if root not in self._masks else []
        for node in reversed(topological(new, unknown, lambda node: 0)):
            mask = self._bits.get(id(node.variable), 0) if isinstance(node, LEAF) else 0
            for after in upstream(node):
                mask |= self._masks[after]
            self._masks[node] = mask
        return self._masks[root]


@dataclass(frozen=True, slots=True)
class Cut:
    """The cause for the parameters of a mask, and the value with its place.

    ``left`` is the operation that passed values to Python, if these never reach the loss.
    """

    cause: str
    mask: int
    value: Value
    left: Value | None = None


def find_cuts(
    flow: Flow,
    sources: dict[int, int],
    loss: int | None,
    full: bool,
    silent: Collection[str] | None = None,
) -> list[Cut]:
    """Find the cuts of parameters with a source; none for a parameter whose cut is unknown.

    A cut counts if its data reach the loss. Of several, the one with the highest precedence counts,
    then the earliest. A part of a target, which the script made without gradients on purpose, comes
    after a tensor that is detached and goes into the loss by itself.

    Args:
        flow: the values.
        sources: a parameter's bit to its first value.
        loss: the loss's value, if followed data reach it.
        full: True if the run came to its end; otherwise only facts that cannot change any more
            count.
        silent: nodes that passed no gradient on; None if unknown.
    """
    left = 0
    for bit in sources:
        left |= bit
    found: list[Cut] = []
    last_uses = _last_uses(flow, set(sources.values()), left)
    used = 0
    for mask in last_uses.values():
        used |= mask
    if full:
        direct = _lost_paths(flow, flow.reaching(loss, guesses=False, constants=False))
        left = _take(flow, direct, left, found, CAUSES[:2])
        cuts = _lost_paths(flow, flow.reaching(loss, guesses=False))
        left = _take(flow, cuts, left, found)
        left = _silent(flow, loss, left, found, silent)
        left &= ~(flow.values[loss].live if loss is not None else 0)
        guesses = _lost_paths(flow, flow.reaching(loss, guesses=True), last_uses)
        left = _take(flow, guesses, left, found)
        leaving = _leaving(flow, last_uses) if left & used else []
        for number, mask in last_uses.items():
            if mask & left:
                gone = next((value for value, lost in leaving if lost & mask & left), None)
                found.append(Cut("not-in-loss", mask & left, flow.values[number], gone))
        left &= ~used
    else:
        left &= ~used
    _take(flow, list(_first_cuts(flow)), left, found)
    return found


def _last_uses(flow: Flow, sources: set[int], wanted: int) -> dict[int, int]:
    """Return the last value with a gradient path to each parameter, other than the parameter
    itself."""
    last_uses: dict[int, int] = {}
    for number in range(len(flow.values) - 1, -1, -1):
        value = flow.values[number]
        # A tensor with the parameter's memory and graph is the parameter in another form.
        mask = value.live & wanted & ~value.own
        if mask and number not in sources:
            last_uses[number] = mask
            wanted &= ~mask
    return last_uses


def _lost_paths(
    flow: Flow, reach: list[int], last_uses: dict[int, int] | None = None
) -> list[tuple[int, int]]:
    """Yield values that lost the gradient path to some parameters and reach the loss, oldest first.

    With ``last_uses``, only cuts from the last value that still had the path.
    """
    cuts = []
    for number, value in enumerate(flow.values):
        if reach[number]:
            lost = 0
            for parent in value.parents:
                mask = flow.values[parent].live & reach[number]
                if last_uses is not None and flow.values[parent].op != "parameter":
                    mask &= last_uses.get(parent, 0)
                lost |= mask
            if lost:
                cuts.append((number, lost))
    return cuts


def _leaving(flow: Flow, last_uses: dict[int, int]) -> list[tuple[Value, int]]:
    """Return the operations that turned the last values with a path into Python's own, oldest
    first."""
    upstream = [0] * len(flow.values)
    found = []
    for number, value in enumerate(flow.values):
        for parent in value.parents:
            upstream[number] |= upstream[parent]
        leaves = value.op == "__bool__" or by_function(value.op).has(Trait.LEAVES_TORCH)
        if upstream[number] and leaves:
            found.append((value, upstream[number]))
        upstream[number] |= last_uses.get(number, 0)
    return found


def _silent(
    flow: Flow, loss: int | None, left: int, found: list[Cut], silent: Collection[str] | None
) -> int:
    """Return cuts of parameters in the loss's graph whose path goes through a Function that
    returned None."""
    left_in = left & flow.values[loss].live if loss is not None else 0
    for value in flow.values:
        observed = silent is None or f"{value.function}Backward" in silent
        if value.function and observed and value.live & left_in:
            blamed = replace(value, reason=f"the autograd function `{value.function}`")
            found.append(Cut("non-differentiable", value.live & left_in, blamed))
            left &= ~value.live
            left_in &= ~value.live
    return left


def _first_cuts(flow: Flow) -> Iterator[tuple[int, int]]:
    """Yield every value that lost a path, except the parameter's own updates."""
    for number, value in enumerate(flow.values):
        lost = 0
        for parent in value.parents:
            before = flow.values[parent]
            lost |= before.live | before.own
        lost &= ~(value.live | value.own)
        if lost and value.op:
            yield number, lost


def _take(
    flow: Flow,
    cuts: list[tuple[int, int]],
    left: int,
    found: list[Cut],
    causes: Sequence[str] = CAUSES,
) -> int:
    """Give each parameter of ``left`` the first cut by precedence; return the rest."""
    for cause in causes:
        for number, lost in cuts:
            value = flow.values[number]
            if (value.cause or _inherited(flow, value)) == cause and lost & left:
                found.append(Cut(cause, lost & left, value))
                left &= ~lost
    return left


def _inherited(flow: Flow, value: Value) -> str:
    """Return the alias's cause, if an operation read an alias that had been cut before."""
    for parent in value.parents:
        if cause := flow.values[parent].cause:
            return cause
    return "detached"
