"""What a run leaves behind: frozen, plain data that every view renders and every rule reads.

Standard library only. Add a field here when a view or a rule needs one more fact; reports.py
writes and reads whatever stands here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: A number as a record keeps it. Non-finite entries of ``TensorStats.values`` are the strings
#: "nan", "inf" and "-inf", complex ones are ``(real, imaginary)``: JSON has no token for them.
Value = float | str | tuple[float | str, float | str]

#: Of a field that few records fill: JSON leaves it out where it has its default.
SPARSE = {"sparse": True}


@dataclass(frozen=True, slots=True)
class TensorStats:
    """One tensor reduced to numbers.

    ``norm`` is L2, ``std`` is the population's; both and ``mean``, ``min``, ``max`` are taken over
    the finite elements. ``zeros``, ``nan`` and ``inf`` count elements. Whatever does not exist
    (the mean of an empty tensor, anything on the ``meta`` device) is None.
    """

    shape: tuple[int, ...]
    dtype: str
    numel: int
    norm: float | None = None
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    zeros: int | None = None
    nan: int | None = None
    inf: int | None = None
    values: tuple[Value, ...] | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor that went into or came out of a call, as it was then, and its gradient.

    ``path`` is its place in the arguments or the result: ``""`` for a bare tensor, else ``0``,
    ``last_hidden_state``, ``1.boxes``. ``gradient`` is None where none arrived.
    """

    path: str
    activation: TensorStats
    gradient: TensorStats | None = None
    grad_fn: str | None = None
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One execution of one module's ``forward``; ``order`` counts entries into forward from 0."""

    name: str
    type: str
    call: int
    order: int
    aliases: tuple[str, ...] = ()
    training: bool = True
    notes: tuple[str, ...] = ()
    inputs: tuple[TensorRecord, ...] = ()
    outputs: tuple[TensorRecord, ...] = ()
    saved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ParameterStats:
    """One parameter, what the run added to its ``.grad``, and how far the optimizer moved it."""

    name: str
    shape: tuple[int, ...]
    requires_grad: bool
    value: TensorStats
    gradient: TensorStats | None = None
    update_ratio: float | None = None
    aliases: tuple[str, ...] = ()
    in_optimizer: bool | None = None
    #: Whether the optimizer's step changed any element; None without one, or outside it.
    moved: bool | None = field(default=None, metadata=SPARSE)
    #: Plain attributes that were meant to be ``requires_grad`` and say otherwise than it does.
    misspelt: tuple[str, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """A module as the run found it, whatever the layer patterns select.

    ``kinds`` are the classes of ``torch.nn`` that it descends from, nearest first. ``parameters``
    are its own, by full name; ``written`` are its own buffers that the run's forward wrote to.
    ``settings`` are plain attributes that rules read, such as a dropout's ``p``; ``misspelt`` are
    those that were meant to be ``requires_grad`` and that a parameter below does not follow.
    ``library`` is the installed package, other than PyTorch, that its class is of.
    """

    name: str
    type: str
    kinds: tuple[str, ...] = ()
    training: bool = True
    calls: int = 0
    aliases: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    written: tuple[str, ...] = field(default=(), metadata=SPARSE)
    settings: dict[str, Any] = field(default_factory=dict, metadata=SPARSE)
    misspelt: tuple[str, ...] = field(default=(), metadata=SPARSE)
    library: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Link:
    """Two operations of the autograd graph that meet: what ``op`` computed went into ``into``.

    Operations that only move numbers (views, casts, permutations) are passed over. A name is the
    innermost module that made the operation, None outside every module.
    """

    op: str
    into: str
    name: str | None = None
    call: int | None = None
    into_name: str | None = None
    into_call: int | None = None
    #: Whether other operations read the same result too.
    shared: bool = field(default=False, metadata=SPARSE)
    #: The user's line that made the operation, where a rule asked for it.
    location: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Tensors that backward reaches and that the model does not know as its parameters.

    ``name`` is the module in whose plain ``attribute`` they are kept.
    """

    name: str
    attribute: str
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class UnitActivity:
    """How the units (channels, or features of the last axis) behind one nonlinearity behave.

    ``dead`` units are off, at zero, for all but a stated share of ``samples`` values of each
    unit; ``saturated`` ones lie at a flat end. A softmax has its distributions for units.
    """

    op: str
    name: str | None
    call: int | None
    units: int
    samples: int
    dead: int = 0
    saturated: int = 0
    location: str | None = None
    #: Of a sigmoid or a tanh: the share of all values whose slope is under 6 % of the steepest.
    near: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class PrecisionForecast:
    """What a cast would do to one tensor's non-zero elements, as shares from 0 to 1.

    ``kind`` is "activation" or "gradient"; a gradient is multiplied by ``scale``, the loss scale,
    before the cast. ``name`` is a module with its ``call``, or a parameter, which has none.
    ``numel`` counts the elements that the shares are of. "total" is all gradients together, named
    "**": ``underflow`` of the parameters', ``overflow`` of the calls' outputs as well.
    """

    name: str
    kind: str
    dtype: str
    scale: float
    numel: int
    underflow: float
    overflow: float
    call: int | None = None


@dataclass(frozen=True, slots=True)
class Birth:
    """Where a NaN or an infinity came out of finite numbers, and what it then spread to.

    ``phase`` is input, parameter, forward, loss, backward or step. ``name`` is the module that was
    executing, or the parameter. ``reason`` is the arithmetic, such as "sqrt at 0".
    """

    kind: str  # nan | inf
    phase: str
    message: str
    op: str | None = None
    name: str | None = None
    call: int | None = None
    location: str | None = None
    reason: str | None = None
    count: int | None = None
    inputs: tuple[TensorStats, ...] = ()
    spread: tuple[str, ...] = ()
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """Two plain steps and one observed: do the plain ones repeat, and is the observed one equal?"""

    repeatable: bool
    identical: bool
    max_difference: float | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """How the run was made. ``notices`` says what was inferred or mended on the way."""

    model: str
    device: str
    dtype: str
    mode: str
    seed: int
    steps: int
    loss: str
    autocast: str | None = None
    optimizer: str | None = None
    repeats: int = 1
    verified: Verification | None = None
    notices: tuple[str, ...] = ()
    #: Whether gradscope chose the loss, and the numbers in the output that it could not choose
    #: because they have no graph.
    loss_inferred: bool = field(default=False, metadata=SPARSE)
    without_graph: tuple[str, ...] = field(default=(), metadata=SPARSE)
    #: What names the model: a config, or the source file of a spec. None: neither, or a live model.
    file: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall-clock time of the observed run, all steps together."""

    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Of the whole model, whatever the layer patterns select."""

    parameters: int = 0
    trainable: int = 0
    gradient_norm: float | None = None
    saved_bytes: int | None = None
    modules: int = 0
    calls: int = 0
    seconds: Seconds = Seconds()


@dataclass(frozen=True, slots=True)
class StepParameter:
    """A parameter's part in one step: its gradient's norm so far and its update ratio."""

    name: str
    gradient_norm: float | None = None
    update_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One backward of a run with several: ``backward`` counts repeats within ``step``, from 0.

    Gradients are those accumulated in the step so far; ``inputs`` are the model's own.
    """

    step: int
    backward: int
    loss: float | None
    loss_nonfinite: str | None = None
    gradient_norm: float | None = None
    inputs: tuple[TensorRecord, ...] = ()
    parameters: tuple[StepParameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says: the layer where the trouble starts, the figures, and the next step."""

    code: str
    rule: str
    severity: str
    name: str
    message: str
    advice: str
    call: int | None = None
    value: float | None = None
    threshold: float | None = None
    source: str | None = None
    cause: str | None = None
    location: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's own code that was executing."""

    file: str
    line: int
    function: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class RelatedLine:
    """A line that had a part in an error: it saved what another mutated or freed, or made it."""

    role: str  # saved | mutated | freed | carried | made
    file: str
    line: int
    code: str | None = None
    name: str | None = None
    call: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Why a run failed: ``phase`` is construction, input, forward, loss, backward or step.

    ``details`` are sentences that say what met what; ``related`` are lines other than the one that
    raised.
    """

    kind: str
    message: str
    phase: str
    name: str | None = None
    call: int | None = None
    location: str | None = None
    advice: str | None = None
    exception: str | None = None
    inputs: tuple[TensorStats, ...] = ()
    frames: tuple[Frame, ...] = ()
    details: tuple[str, ...] = field(default=(), metadata=SPARSE)
    related: tuple[RelatedLine, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """What a node keeps for backward: the attribute's name without ``_saved_``.

    Tensors with one ``storage`` share memory; ``bytes`` is the whole storage's. 0 bytes: a
    parameter's own memory, which costs nothing more. A buffer's counts, as it does for autograd.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    storage: int


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of the autograd graph; ``to`` follows ``next_functions``: (id, input number).

    ``grad_norm`` is that of the gradient that reached the node in backward, over its finite
    elements; None where none did. ``saved_bytes`` is None where what it saved could not be read.
    ``inner`` has the outputs of the graph that a reentrant checkpoint built in backward.
    """

    id: int
    op: str
    kind: str  # function | parameter | input
    name: str | None = None
    module: str | None = None
    call: int | None = None
    shape: tuple[int, ...] | None = None
    to: tuple[tuple[int, int] | None, ...] = ()
    saved_bytes: int | None = None
    grad_norm: float | None = None
    grad_nonfinite: int = field(default=0, metadata=SPARSE)
    saved: tuple[SavedTensor, ...] = field(default=(), metadata=SPARSE)
    inner: tuple[tuple[int, int], ...] = field(default=(), metadata=SPARSE)
    #: The user's file and line that made it, where they were asked for.
    location: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A module's call that the graph's nodes point to; ``parent`` is the index of the one around.

    -1 is outside every call.
    """

    name: str
    call: int
    type: str
    parent: int = -1


@dataclass(frozen=True, slots=True)
class Answer:
    """Why something has no useful gradient, and where: one cause for all names ``behind`` it."""

    name: str
    kind: str  # parameter | module
    state: str  # missing | zero | non-finite | healthy
    message: str
    cause: str | None = None
    module: str | None = None
    call: int | None = None
    location: str | None = None
    behind: tuple[str, ...] = ()
    advice: str | None = None
    #: Of a zero gradient: whether one arrives after an optimizer step. None: nobody looked.
    recovers: bool | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class WhyReport:
    """Everything one ``gradscope why`` learned; ``checked`` counts what was looked at."""

    run: RunInfo
    schema: str = "gradscope.why/1"
    status: str = "ok"  # ok | findings | failed
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    checked: int = 0
    frozen: int = 0
    answers: tuple[Answer, ...] = ()
    error: ErrorRecord | None = None


@dataclass(frozen=True, slots=True)
class AutogradGraph:
    """The autograd graph behind the loss, or behind another output, as one backward found it.

    ``nodes`` come in topological order: each before those that it leads to; ``root`` is the first
    one's id, None where there is no graph. ``answers`` say why parameters that could have a
    gradient got none from it.

    ``part`` says which paths were kept of a larger graph. Edges to what was left out are None then,
    ``names``, ``frozen`` and ``answers`` speak only of what is in the part or was asked for.
    """

    run: RunInfo
    root: int | None = None
    nodes: tuple[GraphNode, ...] = ()
    start: str = "loss"
    schema: str = "gradscope.graph/1"
    status: str = "ok"  # ok | failed
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    loss: float | None = None
    loss_nonfinite: str | None = None
    saved_bytes: int | None = None  # of the whole graph, each storage once
    calls: tuple[GraphCall, ...] = ()
    names: tuple[str, ...] = ()  # of every parameter of the model, in the graph or not
    frozen: tuple[str, ...] = ()  # of those, which require no gradient
    answers: tuple[Answer, ...] = ()
    error: ErrorRecord | None = None
    part: str | None = field(default=None, metadata=SPARSE)

    @property
    def complete(self) -> bool:
        """Whether the run came to its end, so that what is not here is not there.

        A loss without a graph is an answer too.
        """
        if self.error is None:
            return self.status == "ok"
        return self.error.kind == "no-grad-root" and self.error.phase == "backward"


@dataclass(frozen=True, slots=True)
class Chain:
    """The autograd graph from one output of one call back to its leaves; the root comes first."""

    name: str
    call: int
    path: str
    nodes: tuple[GraphNode, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassScore:
    """One class as the model sees the picture: its logit, and its share after softmax."""

    id: int
    score: float
    probability: float
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Attribution:
    """One map: where the score of the target class comes from.

    ``min`` and ``max`` are of the raw map; ``file`` is where it was saved. ``note`` says what keeps
    the map from being believed, such as why it is blank. ``checks`` are figures by name.
    """

    method: str
    layer: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    min: float | None = None
    max: float | None = None
    signed: bool = False
    note: str | None = None
    checks: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImageAttribution:
    """One picture and its maps. ``score`` is the logit of the target; ``top`` the best classes."""

    path: str
    target: int
    score: float
    target_name: str | None = None
    top: tuple[ClassScore, ...] = ()
    maps: tuple[Attribution, ...] = ()


@dataclass(frozen=True, slots=True)
class SaliencyReport:
    """Everything one ``gradscope saliency`` learned, but for the maps themselves."""

    run: RunInfo
    images: tuple[ImageAttribution, ...] = ()
    schema: str = "gradscope.saliency/1"
    status: str = "ok"  # ok | failed
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    error: ErrorRecord | None = None


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """A module as patterns see it; ``parameters`` are its own: name, shape, requires_grad."""

    name: str
    type: str
    aliases: tuple[str, ...] = ()
    parameters: tuple[tuple[str, tuple[int, ...], bool], ...] = ()
    total: int = 0  # parameters of it and all below


@dataclass(frozen=True, slots=True)
class Report:
    """Everything one ``gradscope inspect`` learned."""

    status: str  # ok | findings | failed
    run: RunInfo
    schema: str = "gradscope.report/1"
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    loss: float | None = None
    loss_nonfinite: str | None = None
    totals: Totals = Totals()
    calls: tuple[ModuleCall, ...] = ()
    parameters: tuple[ParameterStats, ...] = ()
    history: tuple[StepRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    chains: tuple[Chain, ...] = ()
    error: ErrorRecord | None = None
    modules: tuple[ModuleFacts, ...] = field(default=(), metadata=SPARSE)
    links: tuple[Link, ...] = field(default=(), metadata=SPARSE)
    unregistered: tuple[Unregistered, ...] = field(default=(), metadata=SPARSE)
    #: Parameters without a gradient here that other seeds or batches reach. None: nobody looked.
    elsewhere: tuple[str, ...] | None = field(default=None, metadata=SPARSE)
    activity: tuple[UnitActivity, ...] = field(default=(), metadata=SPARSE)
    precision: tuple[PrecisionForecast, ...] = field(default=(), metadata=SPARSE)
    answers: tuple[Answer, ...] = field(default=(), metadata=SPARSE)
    births: tuple[Birth, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule as formats describe it that carry the rule book along."""

    code: str
    name: str
    severity: str
    summary: str
    help: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """A finding that is put up with: the same one has other figures on another day."""

    model: str
    code: str
    name: str
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """One model's verdict. ``known`` are findings that the baseline holds: they do not count."""

    status: str  # ok | findings | failed
    run: RunInfo
    config: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    known: tuple[Finding, ...] = ()
    error: ErrorRecord | None = None
    answers: tuple[Answer, ...] = field(default=(), metadata=SPARSE)
    births: tuple[Birth, ...] = field(default=(), metadata=SPARSE)
    precision: tuple[PrecisionForecast, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Everything one ``gradscope check`` learned.

    ``rules`` are the codes of those that looked, ``stale`` the entries of ``baseline`` that no
    finding answers to any more.
    """

    schema: str = "gradscope.check/1"
    status: str = "ok"  # ok | findings | failed
    versions: dict[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    models: tuple[CheckedModel, ...] = ()
    baseline: str | None = None
    stale: tuple[BaselineEntry, ...] = ()
