"""Reads the graphs of losses in sampled steps, while they exist."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch.autograd.graph import Node
from torch.utils._python_dispatch import _disable_current_modes

from gradscope.capture.nodes import MOVES, stack_of
from gradscope.explain.shared.frames import locate, shown
from gradscope.records.loop_figures import LossOperation, LossTargets, Reach
from gradscope.training.loop.batches import GeneratedInputs
from gradscope.training.loop.constant_targets import Targets
from gradscope.training.loop.contrastive import uncounted_pairs
from gradscope.training.loop.critic_scores import CriticScores, has_own_function
from gradscope.training.loop.frozen_heads import FrozenHeads
from gradscope.training.loop.loss_lines import graphless_term, number_term, targets_made
from gradscope.training.loop.loss_parts import loss_parts
from gradscope.training.loop.loss_walk import (
    BINARY,
    CLASSES,
    DIFFERENCES,
    LAYERS,
    MEAN,
    PIECES,
    SOFTMAX,
    Shape,
    adds_bias,
    dim_of,
    has_logsumexp,
    is_linked_beside,
    kind,
    line_of,
    negated_loss,
    operations,
    saved,
    scores_of,
    shape_of,
    signed,
    terms,
)
from gradscope.training.loop.noise_targets import OtherNoise, other_noise
from gradscope.training.loop.operands import broadcast, divergence_fault
from gradscope.training.loop.other_rows import other_rows
from gradscope.training.loop.pair_terms import exchanged_pairs
from gradscope.training.loop.reach import Bounded, Reaches
from gradscope.training.loop.script_lines import (
    ScriptLine,
    only_call,
    script_place,
    written_or_made,
)
from gradscope.training.loop.token_targets import TokenTargets
from gradscope.training.loop.weighted_terms import weighted_terms

#: How far the logarithm of a sum of probabilities is from 0 if they are not normalized.
_UNNORMALIZED = 0.05
_SEQUENCE = torch._C._autograd._get_sequence_nr
#: Number of known model calls between two steps, and of steps with stacks.
_CALLS, _STEPS = 64, 3
#: Operations that choose rows, and leave the axes as they are.
_ROWS = frozenset({"IndexBackward", "IndexSelectBackward", "SliceBackward"})
#: Nodes of a linear layer, before and after its views, for more than two axes.
_SAME_AXES = frozenset(
    {"ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "UnsqueezeBackward"}
)
_VIEWS = frozenset({"ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward"})
_COPIES = frozenset({"CloneBackward", "ToCopyBackward"})
_LINEAR = frozenset({"AddmmBackward", "MmBackward"})
#: Kind and name.
_Key = tuple[str, str]


class _Operation:
    """An operation that was seen in some of the graphs; ``shapes`` are those of the first."""

    def __init__(self, shapes: tuple[Shape, ...]) -> None:
        self.shapes = shapes
        self.first: tuple[float, ...] = ()
        self.figures: tuple[float, ...] = ()
        self.count = 0
        self.alone = self.inside = False
        self.location: str | None = None
        self.words: tuple[str, ...] = ()


class _Placed(Protocol):
    """A record that needs a place."""

    inside: bool
    location: str | None


class LossGraphs:
    """Reads the graphs of some backwards.

    Attributes:
        read: the number of graphs read.
        asked: the last line in this step that called ``torch.autograd.grad`` for other tensors than
            parameters, without a graph.
        heads: frozen layers that give the scores.
        sampled: True if the last model call of this step was in a sampled step.

    Args:
        tokens: the relation of targets to tokens.
    """

    def __init__(self, tokens: TokenTargets | None = None) -> None:
        self.read = 0
        self.sampled = False
        self._tokens = tokens
        self.asked: ScriptLine | None = None
        self._targets, self._reaches = Targets(), Reaches()
        self._seen: dict[_Key, _Operation] = {}
        # Since the last step: the numbers of the nodes that each call made, and whether it got
        # another model's result.
        self._calls: deque[tuple[int, int, bool]] = deque(maxlen=_CALLS)
        self._open: list[tuple[int, bool]] = []
        self._generated = GeneratedInputs()
        self.critics = CriticScores()
        self.heads = FrozenHeads()
        self._with_stacks = self._divergences = 0

    def called(self, model: int, given: object, *, sampled: bool) -> None:
        """Note a model's call on these arguments, perhaps in a sampled step."""
        self.sampled = sampled
        generated = self._generated.called(model, given)
        if len(self._open) < _CALLS:
            self._open.append((_SEQUENCE(), generated))

    def returned(self, model: int, output: object) -> None:
        """Note the end of a model's call."""
        self._generated.returned(model, output)
        if self._open:
            start, generated = self._open.pop()
            self._calls.append((start, _SEQUENCE(), generated))

    def step_ended(self, optimizer: str = "") -> None:
        """Note the end of an optimizer's step: model calls so far belong to no later backward."""
        self._calls.clear()
        self._open.clear()
        self.asked, self.sampled = None, False
        if self._tokens is not None:
            self._tokens.step_ended()
        self._targets.step_ended(optimizer)
        self.critics.step_ended(optimizer)

    @property
    def inside(self) -> bool:
        """True during a model's call with gradients."""
        return bool(self._open)

    @property
    def wants_stacks(self) -> bool:
        """True if lines inside a model are needed, which requires the stacks of all its nodes."""
        if self._with_stacks >= _STEPS:
            return False
        if self._reaches.want_stacks:
            return True
        return any(one.inside and one.location is None for one in self._seen.values())

    def backward_begins(
        self, roots: Sequence[object], *, sampled: bool, given: bool = False
    ) -> None:
        """Read the graph of a loss, which is complete now; ``given`` if backward got a gradient."""
        if not sampled and not self._targets.suspect:
            return
        root = roots[0] if len(roots) == 1 else None
        node = root.grad_fn if isinstance(root, torch.Tensor) and root.numel() == 1 else None
        if node is None:
            return
        self.read += 1
        self._with_stacks += sampled and self.wants_stacks
        if not sampled:
            self._targets.followed()
        faults: dict[_Key, list[Node]] = {}
        shapes: dict[_Key, tuple[Shape, ...]] = {}
        for one in terms(node):
            self._find_number(one)
        negated = negated_loss(node)
        if negated is not None:
            key = "negated", kind(negated).removesuffix("Backward")
            faults[key], shapes[key] = [negated], ()
        normalised = has_logsumexp(node)
        factors = (
            {one: factor for factor, one in weighted_terms(node)} if self._generated.several else {}
        )
        if sampled and factors and not given and not has_own_function(node):
            self.critics.read(((by, one) for one, by in factors.items()), self._on_generated)
        read = set()
        for one in operations(node):
            read.add(one)
            targets = self._targets.read(one)
            if sampled and kind(one) in CLASSES | BINARY:
                self.heads.read(one)
            if targets is not None:
                self._place(targets, one)
                targets.made_at = targets.made_at or _made(one)
                targets.beside = is_linked_beside(node, [one])
                mean = getattr(one, "_saved_reduction", MEAN) == MEAN
                targets.full = targets.full and one is node and mean
                if factors.get(one, 0.0) > 0:
                    place = locate(stack_of(one))
                    targets.played(place, generated=self._on_generated(one))
            if sampled and self._tokens is not None and kind(one) in CLASSES:
                self._place_tokens(self._tokens, one)
            reach = self._reaches.read(one)
            if reach is not None:
                self._place(reach[0], one)
                self._place_activation(*reach)
            fault = _fault(one)
            if fault is not None and not (normalised and fault[0][0] == "scores"):
                key, shapes[key], where = fault
                faults.setdefault(key, []).append(where)
            rows = other_rows(one)
            if rows is not None:
                # Another choice in each step is another key: then the targets may be chosen, too.
                key = "other-rows", rows[0]
                faults[key], shapes[key] = [one], rows[1]
            for name, words in _by_text(one, node):
                self._place(self._count((name, words[0]), words=words), one)
        # A loss by hand may consist of pieces, as a Huber loss by `torch.where`.
        for one in operations(node, PIECES) if sampled else ():
            fault = None if one in read else _broadcast(one, pieces=True)
            if fault is not None and not self._is_inside(one):
                key, shapes[key], where = fault
                faults.setdefault(key, []).append(where)
        for part in loss_parts(node) if sampled else ():
            self._place(self._count((part.kind, part.name), figures=part.figures), part.node)
        for key, nodes in faults.items():
            seen = self._count(key, shapes[key])
            seen.alone = not is_linked_beside(node, nodes)
            by_name = key[0] == "scores" and kind(nodes[0]) not in SOFTMAX
            if by_name or key[0] == "single-softmax":
                self._place_function(seen, nodes[0], key[1])
            self._place(seen, nodes[0])

    def _count(
        self,
        key: _Key,
        shapes: tuple[Shape, ...] = (),
        figures: tuple[float, ...] = (),
        words: tuple[str, ...] = (),
    ) -> _Operation:
        """Count an operation once more; the shapes and the first figures are those of the first."""
        seen = self._seen.setdefault(key, _Operation(shapes))
        seen.count += 1
        seen.words = words
        seen.first, seen.figures = seen.first or figures, figures
        return seen

    def _find_number(self, node: Node) -> None:
        """Find a sum of a loss and a constant: the constant may come from a tensor."""
        if kind(node) not in ("AddBackward", "SubBackward") or shape_of(node) != ():
            return
        line = line_of(node)
        if line is None or all(one is not None for one, _ in node.next_functions):
            return
        found = number_term(*line)
        if found is None:
            self._find_penalty(node, *line)
            return
        self._count(("number", found[0])).location = f"{shown(line[0])}:{found[1]}"

    def _place_tokens(self, tokens: TokenTargets, node: Node) -> None:
        found = tokens.read(node)
        if found is None:
            return
        self._place(found, node)
        found.made_at = found.made_at or _made(node)

    def _find_penalty(self, node: Node, file: str, line: int) -> None:
        """Find a constant term that was computed from gradients without a graph."""
        asked = self.asked
        if asked is None or asked.file != file:
            return
        first = node.next_functions[0][0] is None
        term = graphless_term(file, line, asked.line, first=first)
        if term is not None:
            self._count(("penalty", term)).location = str(asked)

    def divergence(self, given: torch.Tensor, target: torch.Tensor, *, log_target: bool) -> None:
        """Check the arguments of ``kl_div`` in a sampled step: the first must be
        log-probabilities."""
        self._divergences += 1
        fault = divergence_fault(given, target, log_target=log_target)
        if fault is None:
            return
        name, figures = fault[0], (*fault[1], float(self._divergences))
        seen = self._count((name, "kl_div"), figures=figures)
        seen.location = seen.location or script_place()

    def _on_generated(self, loss: Node) -> bool:
        """Return True if the scores of a loss come from a call that got another model's result."""
        layer = scores_of(loss)
        number = -1 if layer is None else layer._sequence_nr()
        return any(generated and start <= number < end for start, end, generated in self._calls)

    def _is_inside(self, node: Node) -> bool:
        """Return True if a model's call made the node."""
        number = node._sequence_nr()
        return any(start <= number < end for start, end, _ in self._calls)

    def _place(self, found: _Placed, node: Node) -> None:
        """Note the line of a record, if it is known."""
        if found.location is not None:
            return
        found.location = locate(stack_of(node))
        found.inside = self._is_inside(node)

    def _place_function(self, found: _Operation, node: Node, name: str) -> None:
        """Note the line that names the function of a loss, or makes its module."""
        line = line_of(node) if found.location is None else None
        if line is not None:
            found.location = written_or_made(*line, name)

    def _place_activation(self, found: Bounded, node: Node | None) -> None:
        """Note the line of the last activation."""
        if node is None or found.activation_at is not None:
            return
        line = line_of(node)
        found.needs_line = line is None
        if line is not None:
            found.activation_at = written_or_made(*line, kind(node))

    def operations(self) -> tuple[LossOperation, ...]:
        """Return the operations that are always mistakes."""
        return tuple(
            LossOperation(
                kind=kind, name=name, shapes=one.shapes,
                count=one.count, alone=one.alone, inside=one.inside, location=one.location,
                first=one.first, figures=one.figures, words=one.words,
            )
            for (kind, name), one in self._seen.items()
        )  # fmt: skip

    def targets(self) -> tuple[LossTargets, ...]:
        """Return the targets of the losses that were read."""
        return self._targets.records()

    def reaches(self) -> tuple[Reach, ...]:
        """Return the losses whose targets were out of bounds."""
        return self._reaches.records()


def _made(loss: Node) -> str | None:
    """Return the line that makes the targets of a loss."""
    line = line_of(loss)
    return None if line is None else targets_made(*line)


def _by_text(node: Node, root: Node) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the faults that the text at a difference or a sum of a loss shows, each with its
    words."""
    name = kind(node)
    if name not in DIFFERENCES | {"SubBackward", "AddBackward"} or len(node.next_functions) != 2:
        return
    line = _line_of_difference(node)
    if line is None:
        return
    noise = _noise_target(node)
    # Beside another term, a target of noise may be meant, to weaken what the model predicts.
    if noise is not None and all(map(_noise_target, _differences(root))):
        yield "other-noise", noise
    pairs = exchanged_pairs(*line) if name == "AddBackward" else None
    if pairs is not None:
        yield "exchanged-pairs", pairs


def _noise_target(node: Node) -> OtherNoise | None:
    line = _line_of_difference(node) if kind(node) != "AddBackward" else None
    return None if line is None else other_noise(*line)


def _line_of_difference(node: Node) -> tuple[str, int] | None:
    """Return the line that made a node; for one inside a model, whose stack is not kept, the only
    call of its function in the main module's file."""
    line = line_of(node)
    if line is not None or kind(node) not in DIFFERENCES:
        return line
    name = "".join(f"_{one}".lower() if one.isupper() else one for one in kind(node))[1:]
    return only_call(name.removesuffix("_backward"))


def _differences(root: Node) -> Iterator[Node]:
    """Yield the terms of a loss that compare an output with a target."""
    for one in operations(root):
        by_hand = kind(one) == "SubBackward" and len(one.next_functions) == 2 and shape_of(one)
        if by_hand or kind(one) in CLASSES | BINARY | DIFFERENCES:
            yield one


def _fault(node: Node) -> tuple[_Key, tuple[Shape, ...], Node] | None:
    """Return the fault of a loss's operation, with the shapes and the operation; None without a
    fault."""
    name = kind(node)
    if name in CLASSES:
        return _wrong_axis(node)
    if name in SOFTMAX:
        dim, shape = dim_of(node), shape_of(node)
        if dim is None or shape is None or shape[dim] != 1 or 0 in shape:
            return None
        called = "log_softmax" if name.startswith("Log") else "softmax"
        return ("single-softmax", called), (shape,), node
    if name == "CtcLossBackward" and (given := _unnormalized(node)) is not None:
        return ("scores", "ctc_loss"), (given,), _softmax_of(node) or node
    if uncounted_pairs(node):
        return ("pair-targets", "cosine_embedding_loss"), (), node
    return _chosen_axis(node) or _broadcast(node)


def _broadcast(node: Node, *, pieces: bool = False) -> tuple[_Key, tuple[Shape, ...], Node] | None:
    """Return an unintended broadcast; ``pieces`` as of ``broadcast``."""
    found = broadcast(node, pieces=pieces)
    if found is None:
        return None
    return ("broadcast", found.operation), (found.column, found.row, found.result), node


def _chosen_axis(node: Node) -> tuple[_Key, tuple[Shape, ...], Node] | None:
    """Return a `log_softmax` over another axis than the one along which `gather` chooses each
    target's class from a linear layer's scores."""
    softmax = node.next_functions[0][0] if kind(node) == "GatherBackward" else None
    if softmax is None or kind(softmax) != "LogSoftmaxBackward":
        return None
    index, dim = saved(node).get("index"), dim_of(softmax)
    along, shape = getattr(node, "_saved_dim", None), shape_of(softmax)
    if index is None or dim is None or along is None or shape is None:
        return None
    # A softmax over candidates, each with scores of its own, has another axis beside.
    if len(shape) != 2 or signed(along) % 2 != 1 or dim == 1 or shape[dim] == 1:
        return None
    # An index that is the same all along the softmax's axis chooses places, not classes.
    if index.shape[-1] != 1 or not _ends_in_features(softmax):
        return None
    with _disable_current_modes():
        if bool((index == index.narrow(dim, 0, 1)).all()):
            return None
    return ("softmax-axis", f"log_softmax over dim {dim}"), (shape, tuple(index.shape)), softmax


def _unnormalized(loss: Node) -> Shape | None:
    """Return the shape of what a ctc_loss gets if the probabilities sum to 1 at no position; else
    None."""
    given = getattr(loss, "_saved_log_probs", None)
    if not isinstance(given, torch.Tensor) or not given.numel():
        return None
    node: Node | None = loss.next_functions[0][0]
    while node is not None and kind(node) in MOVES | {"SubBackward", "AddBackward"}:
        node = node.next_functions[0][0]
    if node is not None and kind(node) == "LogSoftmaxBackward":
        return None  # less the log-probabilities of a prior
    sums = given.detach().double().logsumexp(-1)
    return tuple(given.shape) if bool((sums.abs() > _UNNORMALIZED).all()) else None


def _softmax_of(loss: Node) -> Node | None:
    """Return the softmax that gives a loss probabilities, perhaps with their axes moved."""
    node = loss.next_functions[0][0]
    while node is not None and kind(node) in MOVES:
        node = node.next_functions[0][0]
    return node if node is not None and kind(node) == "SoftmaxBackward" else None


def _wrong_axis(loss: Node) -> tuple[_Key, tuple[Shape, ...], Node] | None:
    """Return a softmax that does not run over the axis of the classes (the second, or the only
    one), or the layer whose scores take its place.

    Rows may be chosen between the two.
    """
    mixed = _scrambled(loss)
    if mixed is not None:
        return mixed
    node = loss.next_functions[0][0]
    # PyTorch itself turns inputs of three axes into four.
    between = _ROWS | _SAME_AXES if kind(loss) == "NllLoss2DBackward" else _ROWS
    while node is not None and kind(node) in between:
        before, axes = node, shape_of(node)
        node = node.next_functions[0][0]
        made = None if node is None else shape_of(node)
        if kind(before) in _ROWS and len(axes or ()) != len(made or ()):
            return None  # a mask over several axes puts them together
    if node is None:
        return None
    if kind(node) in LAYERS:
        return ("scores", "nll_loss"), (shape_of(node) or (),), loss
    if kind(node) not in SOFTMAX:
        return _moved_axis(node)
    dim, shape = dim_of(node), shape_of(node)
    if dim is None or shape is None or len(shape) < 2 or shape[dim] == 1:
        return None
    if dim == 1 and (len(shape) == 2 or not _ends_in_features(node)):
        return None
    called = "log_softmax" if kind(node).startswith("Log") else "softmax"
    return ("softmax-axis", f"{called} over dim {dim}"), (shape,), node


def _moved_axis(last: Node) -> tuple[_Key, tuple[Shape, ...], Node] | None:
    """Return a softmax over another axis than the one that becomes the classes of the loss, if
    views that flatten all axes but the last, or exchanges of axes, are between the two.

    Args:
        last: the operation that gives the loss its scores, with the classes in axis 1.
    """
    node: Node | None = last
    axis, moved, given = 1, False, shape_of(last)
    while node is not None and kind(node) not in SOFTMAX:
        before, after = node.next_functions[0][0], shape_of(node)
        made = None if before is None else shape_of(before)
        if before is None or not made or not after:
            return None
        if kind(node) in _VIEWS and axis == len(after) - 1 and after[-1] == made[-1]:
            axis, moved = len(made) - 1, True
        elif kind(node) == "TBackward":
            axis, moved = len(made) - 1 - axis, True
        elif kind(node) == "TransposeBackward":
            ends = [signed(getattr(node, f"_saved_dim{n}", 0)) % len(made) for n in (0, 1)]
            axis, moved = dict(zip(ends, ends[::-1], strict=True)).get(axis, axis), True
        elif kind(node) == "PermuteBackward":
            order = getattr(node, "_saved_dims", None)
            if order is None:
                return None
            axis, moved = signed(order[axis]) % len(made), True
        elif kind(node) not in _ROWS | _COPIES or len(made) != len(after):
            return None
        node = before
    if node is None or not moved or given is None:
        return None
    dim, shape = dim_of(node), shape_of(node)
    if dim is None or not shape or dim == axis or shape[dim] == 1:
        return None
    called = "log_softmax" if kind(node).startswith("Log") else "softmax"
    return ("softmax-axis", f"{called} over dim {dim}"), (shape, given), node


def _scrambled(loss: Node) -> tuple[_Key, tuple[Shape, ...], Node] | None:
    """Return a view upstream of the loss's softmax that takes the wrong axis for the classes.

    That is a view of [N, C, …] as [-1, C], which cuts the last axis into rows though the classes
    are in axis 1; or of a linear layer's [N, …, C] as [N, C, …], with the classes in the last.
    """
    softmax = loss.next_functions[0][0]
    while softmax is not None and kind(softmax) in _VIEWS and kind(loss) == "NllLoss2DBackward":
        softmax = softmax.next_functions[0][0]
    view = None if softmax is None or kind(softmax) not in SOFTMAX else softmax.next_functions[0][0]
    if view is None or kind(view) not in _VIEWS:
        return None
    given = view.next_functions[0][0]
    before, after = None if given is None else shape_of(given), shape_of(view)
    if before is None or after is None or len(before) < 3:
        return None
    if len(after) == len(before):
        exchanged = (before[0], before[-1], *before[1:-1])
        moved = after == exchanged != before and _ends_in_features(view)
        return (("scrambled", "view"), (before, after), view) if moved else None
    if len(after) != 2:
        return None
    classes = after[1]
    if before[1] != classes or classes < 2 or after[0] == before[0]:
        return None
    # The last axis may hold the classes of several heads, but not after a convolution.
    if before[-1] % classes == 0 and (given is None or kind(given) != "ConvolutionBackward"):
        return None
    return ("scrambled", "view"), (before, after), view


def _is_bias(node: Node) -> bool:
    return kind(node) == "AddBackward" and adds_bias(node)


def _ends_in_features(after: Node) -> bool:
    """Return True if a linear layer gave the input of an operation: the last axis holds its
    classes."""
    node = first = after.next_functions[0][0]
    while node is not None and (kind(node) in _SAME_AXES or _is_bias(node)):
        node = node.next_functions[0][0]
    scores = None if first is None else shape_of(first)
    given = None if node is None else shape_of(node)
    if node is None or kind(node) not in _LINEAR or not scores or not given:
        return False
    return scores[-1] == given[-1]  # or else a view has split the features into classes
