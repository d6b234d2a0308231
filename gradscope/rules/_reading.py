"""Views of a report for rules: layers in order, modules as a tree, inputs of losses; kinds of
optimizers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from gradscope.records.modules import Link, ModuleCall, ModuleFacts, ParameterStats
from gradscope.records.report import Report
from gradscope.records.tensors import TensorStats

#: Tables that are read by index: a row that no sample uses needs no gradient.
_TABLES = ("Embedding", "EmbeddingBag")
#: Containers of parameters have no forward: modules read their parameters by name.
_HOLDERS = ("ParameterList", "ParameterDict")


@dataclass(frozen=True, slots=True)
class Layer:
    """A call of a module that owns a weight: the gradient at its output, and its outputs' std."""

    call: ModuleCall
    gradient: float | None
    spread: float | None

    @property
    def name(self) -> str:
        return self.call.name


def complete(report: Report) -> bool:
    """Return True if forward and backward completed, so that a missing gradient is missing."""
    return report.error is None


def layers(report: Report) -> list[Layer]:
    """Return the calls of modules with a weight of two or more axes, in execution order."""
    owners = {
        name.rpartition(".")[0]
        for parameter in report.parameters
        if len(parameter.shape) > 1
        for name in (parameter.name, *parameter.aliases)
    }
    found = []
    for call in sorted(report.calls, key=lambda call: call.order):
        if call.name in owners and call.outputs and call.type not in _TABLES:
            norms = [o.gradient.norm for o in call.outputs if o.gradient and o.gradient.norm]
            gradient = math.hypot(*norms) if norms else None
            found.append(Layer(call, gradient, call.outputs[0].activation.std))
    return found


def rms(stats: TensorStats | None) -> float | None:
    """Return the root mean square of the finite elements."""
    if stats is None or stats.norm is None:
        return None
    finite = stats.numel - (stats.nan or 0) - (stats.inf or 0)
    return stats.norm / math.sqrt(finite) if finite else None


def largest(stats: TensorStats) -> float | None:
    """Return the largest absolute value of the finite elements."""
    if stats.min is None or stats.max is None:
        return None
    return max(abs(stats.min), abs(stats.max))


def is_zero(parameter: ParameterStats) -> bool:
    """Return True if a gradient arrived and every element of it is exactly zero."""
    stats = parameter.gradient
    return stats is not None and stats.numel > 0 and stats.zeros == stats.numel


def nonfinite(stats: TensorStats | None) -> int:
    """Return the number of NaN and Inf elements."""
    return (stats.nan or 0) + (stats.inf or 0) if stats is not None else 0


def missing(report: Report) -> list[ParameterStats]:
    """Return the trainable parameters that got no gradient."""
    if not complete(report):
        return []
    return [p for p in report.parameters if p.requires_grad and p.gradient is None]


def middle(values: Iterable[float]) -> float | None:
    """Return the median; None without values."""
    found = list(values)
    return median(found) if found else None


def is_half(report: Report) -> bool:
    """Return True if the run computed in float16."""
    return "float16" in (report.run.dtype, report.run.autocast)


def is_inferred(report: Report) -> bool:
    """Return True if gradscope chose the loss, not the user."""
    return report.run.loss_inferred


def is_guessed(report: Report) -> bool:
    """Return True if the loss is a guess: neither the model nor the user gave one, nor a target."""
    run = report.run
    return run.loss_inferred and (run.target_drawn or run.loss == "sum")


def of_library(report: Report, names: Iterable[str]) -> bool:
    """Return True if an installed library's code decides about all these modules and parameters.

    The library's authors intend what such a model leaves out or freezes. The nearest class around a
    name that is not PyTorch's own decides.
    """
    modules = {name: facts for facts in report.modules for name in (facts.name, *facts.aliases)}
    decided = []
    for name in names:
        around = (modules[one] for one in (name, *ancestors(name)) if one in modules)
        own = (facts for facts in around if not facts.kinds or facts.kinds[0] != facts.type)
        nearest = next(own, None)
        decided.append(nearest is not None and nearest.library is not None)
    return bool(decided) and all(decided)


def in_library_code(report: Report, location: str | None) -> bool:
    """Return True if a line is in an installed library that defines one of the model's classes."""
    packages = {facts.library for facts in report.modules} - {None}
    return location is not None and location.partition("/")[0] in packages


class Tree:
    """The modules by name, with the modules inside each."""

    def __init__(self, report: Report) -> None:
        self.modules = {facts.name: facts for facts in report.modules}
        self.known = {name: p for p in report.parameters for name in (p.name, *p.aliases)}
        self._below: dict[str, list[str]] = {name: [] for name in self.modules}
        for facts in report.modules:
            for above in (facts.name, *ancestors(facts.name)):
                if facts.parameters and above in self._below:
                    self._below[above] += facts.parameters

    def below(self, name: str) -> list[str]:
        """Return the names of all parameters in and below a module."""
        return self._below[name]

    def parameters(self, name: str) -> list[ParameterStats] | None:
        """Return the parameters as records; None if the layer patterns left one out."""
        if any(parameter not in self.known for parameter in self._below[name]):
            return None
        return [self.known[parameter] for parameter in self._below[name]]

    def inside(self, name: str) -> Iterator[ModuleFacts]:
        """Yield the modules in a module, with itself."""
        for facts in self.modules.values():
            if not name or facts.name == name or facts.name.startswith(f"{name}."):
                yield facts

    def frozen(self, name: str) -> bool:
        """Return True if a module has parameters and all are frozen."""
        parameters = self.parameters(name)
        return bool(parameters) and not any(p.requires_grad for p in parameters or ())

    def gathered(self, names: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Group parameters by the outermost module that holds only these; a single one keeps its
        own name."""
        left = dict.fromkeys(names)
        for name in sorted(self.modules, key=lambda name: (bool(name), name.count("."))):
            inside = [p for p in self._below[name] if p in left]
            if len(inside) > 1 and len(inside) == len(self._below[name]):
                yield name, tuple(inside)
                for parameter in inside:
                    left.pop(parameter, None)
        for name in left:
            yield name, (name,)


def ancestors(name: str) -> Iterator[str]:
    """Yield the names of the modules around one, innermost first, the root last."""
    while name:
        name = name.rpartition(".")[0]
        yield name


#: Causes that may depend on chance or on the data, so that there is no mistake.
LENIENT = (None, "not-in-loss", "not-called")


def asks_elsewhere(report: Report) -> bool:
    """Return True if it is unknown whether a gradient is missing with other seeds and batches
    too."""
    lost = {p.name for p in missing(report)} if report.elsewhere is None else set()
    return any(
        a.state == "missing" and a.cause in LENIENT and lost.intersection((a.name, *a.upstream))
        for a in report.answers
    )


def never_called(report: Report) -> dict[str, tuple[str, ...]]:
    """Return the outermost modules that never ran, with their trainable parameters without a
    gradient.

    A module whose parameters were used anyway (such as ``MultiheadAttention.out_proj``) is not
    among them.
    """
    lost = {p.name for p in missing(report)}
    if not lost or not report.modules:
        return {}
    used = {n for a in report.answers if a.cause not in (None, "not-called") for n in a.upstream}
    tree = Tree(report)
    idle = {name for name in tree.modules if _idle(tree, name, lost - used)}
    return {
        name: tuple(p for p in tree.below(name) if p in lost)
        for name in tree.modules
        if name in idle and not any(above in idle for above in ancestors(name))
    }


def _idle(tree: Tree, name: str, lost: set[str]) -> bool:
    """Return True if a module has trainable parameters and nothing in it ran."""
    facts, parameters = tree.modules[name], tree.parameters(name)
    if facts.calls or not parameters or any(kind in _HOLDERS for kind in facts.kinds):
        return False
    trains = [p for p in parameters if p.requires_grad]
    ran = any(inner.calls for inner in tree.inside(name))
    return bool(trains) and not ran and all(p.name in lost for p in trains)


LOG_SOFTMAX = "LogSoftmaxBackward0"


def into_cross_entropy(report: Report) -> Iterator[Link]:
    """Yield the links that compute the scores of a cross entropy: log-softmax before NLL."""
    losses = {
        (link.name, link.call)
        for link in report.links
        if link.op == LOG_SOFTMAX and link.into.startswith("NllLoss")
    }
    for link in unique(report):
        if link.into == LOG_SOFTMAX and (link.into_name, link.into_call) in losses:
            yield link


def unique(report: Report) -> Iterator[Link]:
    """Yield each link of the graph once, in order."""
    yield from dict.fromkeys(report.links)


def output_of(report: Report, name: str | None, call: int | None) -> TensorStats | None:
    """Return the first output of a call; the model's output if the operation is in no module."""
    found: ModuleCall | None = None
    for one in report.calls:
        if one.name == (name or "") and (call is None or name is None or one.call == call):
            found = one
    return found.outputs[0].activation if found and found.outputs else None


def where(link: Link) -> str:
    """Return the module that the finding names: the operation's own, else the module that gets its
    result."""
    return link.name if link.name is not None else link.into_name or ""


def whose(link: Link) -> str:
    """Return the owner of the operation: the module, or the loss outside every module."""
    return "its" if link.name is not None else "the loss's own"


#: In addition to the classes with Adam in their name.
_SCALE_FREE = (
    *("rmsprop", "adagrad", "adadelta", "adafactor", "lion", "lamb", "lars", "rprop"),
    *("sophia", "muon", "shampoo", "soap", "signsgd", "prodigy", "novograd"),
)


def divides(kind: str | None) -> bool:
    """Return True if the optimizer divides by the root of a second moment plus epsilon."""
    name = (kind or "").lower()
    return "adam" in name or name == "rmsprop"


def is_scale_free(kind: str | None) -> bool:
    """Return True if the step's length does not depend on the gradients' scale."""
    name = (kind or "").lower()
    return "adam" in name or any(one in name for one in _SCALE_FREE)
