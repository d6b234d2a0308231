"""Record of a training loop: ordered facts of every step, which need no statistics.

A round is the sequence of events between two steps of any optimizer. Most rounds of a loop are
alike, so each kind of round is kept once, with its count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradscope.records.answers import Answer
from gradscope.records.loop_data import (
    EqualUnits,
    FrozenAdapters,
    LoopBatches,
    LoopCopy,
    LoopFunction,
    LoopInputs,
)
from gradscope.records.loop_figures import (
    Course,
    Draw,
    LoopClipping,
    LoopDepth,
    LoopFact,
    LoopWeights,
    LossOperation,
    LossTargets,
    Reach,
)
from gradscope.records.loop_tokens import LoopTokens


@dataclass(frozen=True, slots=True, eq=False)
class LoopEvent:
    """One thing that the loop did. There is one object for all that are alike.

    Attributes:
        kind: what was done, and then what ``of`` is:

            - "zero": gradients were cleared, of an optimizer or a model
            - "call": a model was called with gradients enabled
            - "evaluation": a model was called without them
            - "backward": backward was called on a loss
            - "clip": gradients were clipped, of the optimizer that holds the parameters
            - "unscale", "scaler-update": by a gradient scaler, of an optimizer
            - "schedule": a learning-rate scheduler made a step; its name
            - "epoch": a data loader was begun anew
            - "step": an optimizer made a step

        of: the name of an optimizer, a model or a scheduler; "" without one.
        facts: words that distinguish the event; the file in ``training/loop/`` that makes the event
            explains them.
        location: ``file:line`` of the script where it happened first; of "zero", "clip",
            "backward" and "epoch" each line has a separate event.
    """

    kind: str
    of: str = ""
    facts: frozenset[str] = frozenset()
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """A kind of round: its events in order, with the step last.

    Of equal events in a row there is one.

    Attributes:
        events: what happened.
        count: in how many rounds.
        first: the number of the first step that ended one.
        last: that of the last.
    """

    events: tuple[LoopEvent, ...]
    count: int
    first: int
    last: int

    @property
    def step(self) -> LoopEvent:
        """The step that ended it."""
        return self.events[-1]


@dataclass(frozen=True, slots=True)
class LoopParameter:
    """A parameter with a fact that held in every step so far.

    Attributes:
        name: in its model; "" where it is of no model that is alive.
        model: the model's name.
        shape: its size.
        facts: words: "no-gradient" (it had none at any step), "zero-gradient" (exactly zero at the
            last readings, half of all or more), "unheld" (it wants a gradient, and no optimizer
            holds it), "held-twice",
            "orphan" (an optimizer holds it, and it is of no model that ran),
            "moved" (frozen, and an optimizer moved it), "untrained" (it wants no gradient),
            "idle" (the module that owns it was never called), "graded" (it has a gradient now),
            "library" (an installed library's code decides whether it gets one).
        optimizers: the names of those that hold it.
        steps: in how many steps it was read, or moved.
        since: the step from which on the fact holds.
        made: the line of the script that made it, where that is known; ``late`` whether that was
            after an optimizer.
    """

    name: str
    model: str
    shape: tuple[int, ...]
    facts: frozenset[str]
    optimizers: tuple[str, ...] = ()
    steps: int = 0
    since: int = 1
    made: str | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class LoopOptimizer:
    """An optimizer that was made.

    Attributes:
        name: its variable's, else its class.
        kind: its class.
        location: where it was made.
        steps: how many it made.
        parameters: how many it holds.
        zero_rates: by group, in how many steps its learning rate was 0.
        sizes: by group, how many parameters.
        backwards: how many there were while its parameters had gradients, and it made no step.
        reached: where the first of these backwards is, where that is known.
        stepping: the line of the script that would have it make a step, where it is written.
        shared: how many of its parameters another optimizer holds too.
        peak: the highest learning rate of its first group so far; ``rate``: the latest.
        rises: whether the rate still went up at its last changes.
        gone: the number of its step from which on the rate was below a hundredth of the highest; 0
            where it is not.
        held: by group, the parameters that are of a model: its number, and the name there.
        mixed: where the two backwards are whose gradients its steps use together, though another
            optimizer made a step between them; None where that never came.
        readings: in how many of its steps all gradients were read; ``scaled``: in how many of these
            a gradient scaler's factor was in them.
        maximizes: whether it goes up the gradient (``maximize=True``).
        loaded_at: the line that called its ``load_state_dict`` last; ``restored`` the learning rate
            of its first group before and after that.
        trained: whether each of its parameters had a gradient at one of its steps.
        anew: how many were made before it on the same line, each for the same parameters and for
            one step.
        betas: those of the first group, of an optimizer like Adam.
    """

    name: str
    kind: str
    location: str | None
    steps: int
    parameters: int
    zero_rates: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    backwards: int = 0
    reached: str | None = None
    stepping: str | None = None
    shared: int = 0
    peak: float = 0.0
    rate: float = 0.0
    rises: bool = False
    gone: int = 0
    held: tuple[tuple[tuple[int, str], ...], ...] = ()
    mixed: tuple[str | None, str | None] | None = None
    readings: int = 0
    scaled: int = 0
    maximizes: bool = False
    loaded_at: str | None = None
    restored: tuple[float, float] | None = None
    trained: bool = False
    anew: int = 0
    betas: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """A tensor that trains and that a module keeps in a plain attribute.

    Attributes:
        module: the module's name in the model; "" for the model.
        attribute: what it calls it.
        shape: its size.
        leaf: whether it is the leaf itself, and not what an operation made of one.
        location: the line that sets it, where that is known.
    """

    module: str
    attribute: str
    shape: tuple[int, ...]
    leaf: bool
    location: str | None


@dataclass(frozen=True, slots=True)
class LeftState:
    """The state of an optimizer in a checkpoint of which only the weights were loaded.

    Attributes:
        optimizer: the name of the optimizer that has its settings and its parameters.
        parameters: how many parameters have a state there.
        location: the line that reads the checkpoint.
    """

    optimizer: str
    parameters: int
    location: str | None


@dataclass(frozen=True, slots=True)
class EmptyLoad:
    """A call of ``load_state_dict`` with ``strict=False`` that loaded nothing.

    Attributes:
        module: the class of the module.
        missing: how many of its keys were not in the state.
        unexpected: how many keys of the state it does not have.
        examples: a key of each.
        location: the line.
    """

    module: str
    missing: int
    unexpected: int
    examples: tuple[str, str]
    location: str | None


@dataclass(frozen=True, slots=True)
class LoopModel:
    """A model that trains, or could.

    Attributes:
        id: its number in the run.
        name: its variable's, else its class.
        kind: its class.
        calls: how often it was called with gradients enabled.
        evaluations: how often without.
        steps: in how many steps of any optimizer it was called with gradients.
        trainable: how many of its parameters want a gradient.
        held: how many of those an optimizer holds.
        parameters: how many it has.
        replaced: the names of modules that were set in it after the first optimizer was made, with
            where.
        twins: the numbers of models of the same class and shapes, alive or not.
        made: the line of the script that made it, where that is known.
        kept_in: the plain list, tuple or dict of another model that has it: "net.blocks (list)".
        plain_tensors: what it keeps in plain attributes and gets gradients.
        undone: how often ``load_state_dict`` gave it weights that it had before, and undid steps;
            ``undone_at`` is the line.
        eval_at: the line of the script that puts it into eval mode, where one is written.
        unchanged: whether it was called without gradients alone, and has the weights that it had
            when it was found.
        fixed_norms: the batch norms whose momentum is 0, with the running statistics that they were
            made with.
    """

    id: int
    name: str
    kind: str
    calls: int
    evaluations: int
    trainable: int
    held: int
    parameters: int
    replaced: tuple[tuple[str, str | None], ...] = ()
    twins: tuple[int, ...] = ()
    made: str | None = None
    kept_in: str | None = None
    plain_tensors: tuple[PlainTensor, ...] = ()
    undone: int = 0
    undone_at: str | None = None
    eval_at: str | None = None
    unchanged: bool = False
    fixed_norms: tuple[str, ...] = ()
    steps: int = 0


@dataclass(frozen=True, slots=True)
class LoopScheduler:
    """A learning-rate scheduler.

    Attributes:
        name: its variable's, else its class.
        kind: its class.
        location: where it makes its steps, else where it was made.
        optimizer: the name of the one whose rate it sets.
        steps: how many it made.
        settings: the plain numbers that it was made with: ``step_size``, ``gamma``, …
        made: where it was made.
        target: the learning rate of the first group that it scales, or rises to.
    """

    name: str
    kind: str
    location: str | None
    optimizer: str
    steps: int
    settings: dict[str, float] = field(default_factory=dict)
    made: str | None = None
    target: float | None = None


@dataclass(frozen=True, slots=True)
class LoopCause:
    """Cause of missing or zero gradients, found by the trace of one step.

    Attributes:
        model: the model's name.
        answer: the cause, its place, and the parameters ``upstream`` of it, by their names in the
            model.
    """

    model: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class LoopRecord:
    """A training loop as it went so far.

    Attributes:
        steps: of all optimizers.
        backwards: how many there were.
        rounds: the kinds of rounds, in the order in which they came first.
        rest: the events since the last step.
        optimizers, models, schedulers: those that were made, or found.
        parameters: those that a fact holds of.
        same_batch: number of calls, from the first on, whose models got the same input; 0
            where inputs differed, or it is unknown.
        same_tensor: whether it was the same tensor each time, of which it was all.
        loader: the most batches of a data loader that was iterated over; 0 without one.
        loader_at: the line that assigns the first data loader, if it keeps the data in their order.
        same_loss: how many backwards from the first on began with the same loss, to the last bit;
            ``first_loss`` is the first.
        kept_graphs: of how many backwards the graph is kept alive.
        kept_since: the step of the first of them.
        kept_of: how many backwards there were since that.
        kept_by: the variable that keeps them, and where it does.
        kept_evaluations: of how many calls in eval mode, with gradients enabled, the graph is kept
            alive by something else, since ``evaluation_rounds`` different steps, the first of
            which is ``evaluations_since``.
        causes: why parameters get no useful gradient, as far as steps were traced for it.
        untraced: why no step can be traced; "" where one can.
        batches_differ: whether the models were given others than the first.
        graphs: of how many backwards the graph of the loss was read, and ``operations``,
            ``targets`` and ``reaches`` what was seen in them.
        clippings: of each optimizer whose gradients are clipped, or were read.
        tokens: how the targets of models that take tokens lie to these.
        inputs: of models that are evaluated, how those inputs lie to the ones of the training.
        adapters: of low rank, frozen at zero.
        made_in_forward: lines that made parameters within a call of a model, and in how many steps.
        draws: samples of distributions that let no gradient through, and whose ``log_prob`` is
            unused.
        batches: what the models are given and give, in the sampled steps.
        equal_units: the weights whose rows are all equal.
        functions: the script's own whose backward is wrong.
        copies: of models, which no optimizer holds.
        empty_loads: calls of ``load_state_dict`` that loaded nothing.
        left_states: states of optimizers that checkpoints hold, and that nothing loaded.
        facts: exact facts of other kinds.
        course: of the losses of all backwards; None where there were too few.
        depths, weights: of each model and optimizer, over the samples.
        ended: whether the script has ended.
        cut: whether gradscope ended it, so that its end is unknown.
    """

    steps: int
    backwards: int = 0
    rounds: tuple[Round, ...] = ()
    rest: tuple[LoopEvent, ...] = ()
    optimizers: tuple[LoopOptimizer, ...] = ()
    models: tuple[LoopModel, ...] = ()
    schedulers: tuple[LoopScheduler, ...] = ()
    parameters: tuple[LoopParameter, ...] = ()
    same_batch: int = 0
    same_tensor: bool = False
    loader: int = 0
    loader_at: str | None = None
    same_loss: int = 0
    first_loss: float | None = None
    kept_graphs: int = 0
    kept_since: int = 0
    kept_of: int = 0
    kept_by: tuple[str, str | None] | None = None
    kept_evaluations: int = 0
    evaluation_rounds: int = 0
    evaluations_since: int = 0
    causes: tuple[LoopCause, ...] = ()
    untraced: str = ""
    batches_differ: bool = False
    graphs: int = 0
    operations: tuple[LossOperation, ...] = ()
    targets: tuple[LossTargets, ...] = ()
    reaches: tuple[Reach, ...] = ()
    clippings: tuple[LoopClipping, ...] = ()
    draws: tuple[Draw, ...] = ()
    batches: tuple[LoopBatches, ...] = ()
    tokens: tuple[LoopTokens, ...] = ()
    inputs: tuple[LoopInputs, ...] = ()
    adapters: tuple[FrozenAdapters, ...] = ()
    made_in_forward: tuple[tuple[str, int], ...] = ()
    equal_units: tuple[EqualUnits, ...] = ()
    functions: tuple[LoopFunction, ...] = ()
    copies: tuple[LoopCopy, ...] = ()
    empty_loads: tuple[EmptyLoad, ...] = ()
    left_states: tuple[LeftState, ...] = ()
    facts: tuple[LoopFact, ...] = ()
    course: Course | None = None
    depths: tuple[LoopDepth, ...] = ()
    weights: tuple[LoopWeights, ...] = ()
    ended: bool = False
    cut: bool = False

    def rounds_of(self, optimizer: str) -> Iterator[Round]:
        """The kinds of rounds that a step of this optimizer ended."""
        return (one for one in self.rounds if one.step.of == optimizer)

    def facts_of(self, kind: str) -> Iterator[LoopFact]:
        """The facts of a kind."""
        return (one for one in self.facts if one.kind == kind)

    def steps_with(self, optimizer: str, fact: str) -> tuple[int, int, int]:
        """Return in how many of the optimizer's steps a fact held, the first and the last."""
        found = [one for one in self.rounds_of(optimizer) if fact in one.step.facts]
        if not found:
            return 0, 0, 0
        return sum(r.count for r in found), min(r.first for r in found), max(r.last for r in found)
