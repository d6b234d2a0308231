"""The values of the second run: each tensor's value, its sources, and its line.

Sets of parameters are bit masks. A value comes after those it was computed from, so one sweep in
either direction answers for all parameters at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import Node

from gradscope.explain.shared.call_site import CallSite

#: Why an output has no gradient path to an input that has one; the order is the precedence.
CAUSES = ("no-grad", "detached", "non-differentiable")

_LEAF: type = torch._C._functions.AccumulateGrad
_CHECKPOINT = "CheckpointFunctionBackward"


@dataclass(slots=True)
class Value:
    """One state of one tensor, or of what left for Python (then nothing is ``live``).

    Attributes:
        parents: the values it was computed from.
        live: the parameters that its autograd graph leads to.
        op: the name of the operation.
        cause: why a gradient path ended here, where one did.
        reason: a detail for the message: the line that disabled gradients, a Function's name.
        own: the parameters whose memory it shares.
        guessed: whether the parents are all that had left for Python, for want of a trace.
        function: the user's autograd Function that gave it its graph, where one did.
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


@dataclass(slots=True)
class Flow:
    """All values, oldest first."""

    values: list[Value] = field(default_factory=list)

    def add(self, value: Value) -> int:
        """Append a value; its number."""
        self.values.append(value)
        return len(self.values) - 1

    def joined(self, numbers: Sequence[int]) -> int | None:
        """The number of a value that stands for several; None where there is none."""
        if len(numbers) < 2:
            return numbers[0] if numbers else None
        live = 0
        for number in numbers:
            live |= self.values[number].live
        return self.add(Value(tuple(numbers), live, "", self.values[numbers[-1]].site))

    def reaching(self, loss: int | None, *, guesses: bool) -> list[int]:
        """For each value, the parameters that it carries on to the loss without a gradient path."""
        reach = [0] * len(self.values)
        if loss is None:
            return reach
        reach[loss] = ~self.values[loss].live
        for number in range(loss, -1, -1):
            value = self.values[number]
            if not reach[number] or (value.guessed and not guesses):
                continue
            for parent in value.parents:
                reach[parent] |= reach[number] & ~self.values[parent].live
        return reach


class LiveMasks:
    """Which of some parameters the autograd graph upstream of a tensor leads to; each node once."""

    def __init__(self, bits: dict[int, int]) -> None:
        self._bits = bits  # a parameter's id to its bit
        self._masks: dict[Node, int] = {}

    def of(self, tensor: torch.Tensor, observed: int) -> int:
        """The mask of a tensor; ``observed`` is what its value is already known to lead to."""
        if id(tensor) in self._bits:
            return self._bits[id(tensor)]
        if not tensor.requires_grad or tensor.grad_fn is None:
            return 0
        node = tensor.grad_fn
        mask = self._node(node)
        if type(node).__name__ == _CHECKPOINT and observed & ~mask:
            # Its graph is built in backward, so the node does not lead to what is used inside.
            mask = self._masks[node] = mask | observed
        return mask

    def _node(self, root: Node) -> int:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self._masks:
                stack.pop()
                continue
            if isinstance(node, _LEAF):
                self._masks[node] = self._bits.get(id(node.variable), 0)  # type: ignore[attr-defined]
                stack.pop()
                continue
            following = [after for after, _ in node.next_functions if after is not None]
            waiting = [after for after in following if after not in self._masks]
            if waiting:
                stack.extend(waiting)
                continue
            mask = 0
            for after in following:
                mask |= self._masks[after]
            self._masks[node] = mask
            stack.pop()
        return self._masks[root]
