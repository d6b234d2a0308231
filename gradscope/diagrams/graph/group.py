"""A group of operations: what one call of a module left in the graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Group:
    """What one call of a module left in the graph, and what the calls inside it left.

    ``parts`` are groups and ids of operations, nearest to the root first. A fold stands for
    ``times`` equal groups, ``members``: each leads to the next or, where ``parallel``, none to
    another. Its ``parts`` are those of the first. ``name`` is None for operations outside every
    module and for those that a module makes itself. ``key`` is unique and stable:
    ``layer1/0/conv1``, ``cell#2``.

    Figures are of all below, all members where folded. ``leaves`` and ``parameters`` (elements) are
    those first reached from inside; ``saved_bytes`` counts each storage once. ``grad_norm`` is of
    the gradient that enters, of the first member where folded, with the range over all in
    ``grad_low`` and ``grad_high``. ``mark`` says what first happens to the gradient right here
    (zero, missing, nonfinite), ``within`` what first happens somewhere inside.
    """

    key: str
    label: str
    name: str | None = None
    type: str | None = None
    parent: Group | None = None
    parts: list[Group | int] = field(default_factory=list)
    times: int = 1
    members: list[Group] = field(default_factory=list)
    parallel: bool = False
    expanded: bool = False
    ops: int = 0
    leaves: int = 0
    parameters: int = 0
    saved_bytes: int | None = None
    grad_norm: float | None = None
    grad_low: float | None = None
    grad_high: float | None = None
    nonfinite: int = 0
    mark: str | None = None
    within: tuple[str, ...] = ()

    @property
    def repeats(self) -> str:
        """How often, as it is written after the label: `` ×12``, `` ×4, side by side``."""
        if self.times == 1:
            return ""
        return f" ×{self.times}" + (", side by side" if self.parallel else "")

    def groups(self) -> Iterator[Group]:
        """The parts that are groups."""
        return (part for part in self.parts if isinstance(part, Group))

    def operations(self) -> Iterator[int]:
        """The parts that are operations of its own."""
        return (part for part in self.parts if isinstance(part, int))


def below(group: Group) -> Iterator[Group]:
    """A group and every group under it, parents first; all members of folds."""
    stack = [group]
    while stack:
        one = stack.pop()
        yield one
        stack += reversed(one.members or list(one.groups()))


def operations_below(group: Group) -> Iterator[int]:
    """The ids of all operations in a group; of all members where folded."""
    for one in below(group):
        if not one.members:
            yield from one.operations()
