"""Guided backpropagation: the gradient along paths that are positive at every ReLU.

The rules for ReLU, which deconvnet has too, are set on the nodes of the graph, so that ``F.relu``,
in-place and reused ReLUs and ``nn.ReLU`` all count, and nothing of the model is replaced. ReLU6,
``clamp(min=0)`` and ``threshold(0, 0)`` are ReLUs too; GELU, SiLU and their like are not, and are
counted separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor
from torch.autograd.graph import Node

from gradscope.capture.graph import edge_of, walk
from gradscope.capture.hooks import hook_node
from gradscope.errors import OptionError
from gradscope.saliency._gradients import strongest
from gradscope.saliency._subject import Subject
from gradscope.typeset.numbers import plural

#: (what the node would send on, what it got) → what it sends on instead.
Rule = Callable[[Tensor, Tensor], Tensor]

#: Activations that are no ReLU, by the name of their node.
OTHERS = {
    "GeluBackward0": "GELU",
    "SiluBackward0": "SiLU",
    "LeakyReluBackward0": "leaky ReLU",
    "PreluKernelBackward0": "PReLU",
    "RreluWithNoiseBackward0": "RReLU",
    "EluBackward0": "ELU or SELU",
    "CeluBackward0": "CELU",
    "HardswishBackward0": "hardswish",
    "MishBackward0": "Mish",
    "SoftplusBackward0": "softplus",
}

#: Nodes that hold their own graph, whose operations cannot be seen from outside.
CLOSED = ("CheckpointFunctionBackward", "CompiledFunctionBackward")


def deconvnet_rule(sent: Tensor, got: Tensor) -> Tensor:
    """The deconvnet rule: relu(R), without the mask of the forward ReLU."""
    return got.relu()


def guided_rule(sent: Tensor, got: Tensor) -> Tensor:
    """1[A > 0] · relu(R)."""
    return sent.relu()


@dataclass(slots=True)
class Coverage:
    """Count of operations that followed the rule, and the activations that did not."""

    relus: int = 0
    relu6s: int = 0
    others: Counter[str] = field(default_factory=Counter)
    closed: int = 0

    def __str__(self) -> str:
        covered = self.relus + self.relu6s
        sentence = f"{covered} of {plural(covered, 'ReLU operation')} followed the rule"
        if self.relu6s:
            sentence += f" ({self.relu6s} of them ReLU6)"
        if self.others:
            listed = ", ".join(f"{count} {name}" for name, count in sorted(self.others.items()))
            sentence += f"; not ReLU and left alone: {listed}"
        if self.closed:
            sentence += f"; {plural(self.closed, 'checkpointed or compiled part')} may hide others"
        return sentence


def ruled_gradient(subject: Subject, rule: Rule) -> tuple[Tensor, Coverage]:
    """Return the input's gradient [N, C, H, W] under a rule for ReLU, and the rule's coverage.

    Raises:
        OptionError: the model has no ReLU, so that this would be the plain gradient.
    """
    return subject.once(("relu", rule), lambda: _ruled(subject, rule))


def _ruled(subject: Subject, rule: Rule) -> tuple[Tensor, Coverage]:
    score, inputs = subject.graph_to_input()
    coverage, handles = Coverage(), []

    def change(sent: tuple[Tensor | None, ...], got: tuple[Tensor | None, ...]) -> object:
        if sent[0] is None or got[0] is None:
            return None
        return (rule(sent[0], got[0]), *sent[1:])

    try:
        for node in walk([edge_of(score)], set()).nodes:
            if _counted(node, coverage):
                handles.append(hook_node(node, change))
        if not handles:
            raise OptionError(
                f"the model has no ReLU, and the rule would change nothing: {coverage}",
                help="the result would be that of method gradient",
            )
        return subject.gradient_of(score, inputs), coverage
    finally:
        for handle in handles:
            handle.remove()


def _counted(node: Node, coverage: Coverage) -> bool:
    """Count a node; return True if it is a ReLU."""
    name = node.name()
    low, high = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
    if name == "HardtanhBackward0":
        low, high = getattr(node, "_saved_min_val", None), getattr(node, "_saved_max_val", None)
    if name == "ThresholdBackward0":
        low = getattr(node, "_saved_threshold", None)
    bounded = name in ("HardtanhBackward0", "ClampBackward1", "ClampMinBackward0")
    if name == "ReluBackward0" or (
        (bounded or name == "ThresholdBackward0") and low == 0 and high is None
    ):
        coverage.relus += 1
        return True
    if bounded and low == 0 and high == 6:
        coverage.relu6s += 1
        return True
    if name in OTHERS:
        coverage.others[OTHERS[name]] += 1
    coverage.closed += name in CLOSED
    return False


paper = "Springenberg et al. 2015, arXiv 1412.6806"
signed = False
reads = ("input",)


def attribute(subject: Subject) -> Tensor:
    """max over channels of |R₀|, [N, H, W], where R passes a ReLU of input A as 1[A>0]·relu(R).

    The maps hardly depend on the weights of the upper layers (Adebayo et al., arXiv 1810.03292).
    captum and pytorch-grad-cam change ``nn.ReLU`` modules alone and leave the channels separate;
    here the operations change, so ``F.relu``, reused and in-place ReLUs and ReLU6 follow the rule.
    """
    relevance, coverage = ruled_gradient(subject, guided_rule)
    subject.notes.append(str(coverage))
    return strongest(relevance)
