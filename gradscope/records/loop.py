"""Records of a training loop: the events of every step, in order, and facts on its objects.

A round is the sequence of events between two steps of any optimizer. Most rounds of a loop are
equal, so each kind of round is stored once, with its count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradscope.records.answers import Answer
from gradscope.records.loop_figures import (
    Course,
    Draw,
    EqualUnits,
    FrozenAdapters,
    LoopBatches,
    LoopClipping,
    LoopCopy,
    LoopDepth,
    LoopFact,
    LoopFunction,
    LoopInputs,
    LoopTokens,
    LoopWeights,
    LossOperation,
    LossTargets,
    Reach,
)


@dataclass(frozen=True, slots=True, eq=False)
class LoopEvent:
    """An event of the loop. Equal events share one object.

    Attributes:
        kind: the kind of event:

            - "zero": the gradients of an optimizer or a model were cleared
            - "call": a model was called with gradients enabled
            - "evaluation": a model was called without gradients
            - "backward": backward was called on a loss
            - "clip": the gradients of an optimizer's parameters were clipped
            - "unscale", "scaler-update": a gradient scaler handled an optimizer
            - "schedule": a learning-rate scheduler made a step
            - "epoch": the iteration over a data loader started
            - "step": an optimizer made a step

        of: the name of an optimizer, a model or a scheduler; "" without one.
        facts: words that distinguish events of one kind; the file in ``training/loop/`` that makes
            the event explains them.
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

    Equal events in a row are stored once.

    Attributes:
        events: its events.
        count: the number of such rounds.
        first: the first step that ended one.
        last: the last one.
    """

    events: tuple[LoopEvent, ...]
    count: int
    first: int
    last: int

    @property
    def step(self) -> LoopEvent:
        """The event of the step that ended the round."""
        return self.events[-1]


@dataclass(frozen=True, slots=True)
class LoopParameter:
    """A parameter with a fact that held in every step so far.

    Attributes:
        name: its name in the model; "" if it belongs to no living model.
        model: the model's name.
        shape: its size.
        facts: words: "no-gradient" (it had none at any step), "removed" (though backward gave
            it one), "zero-gradient" (exactly zero at
            the last readings, at least half of all), "unheld" (it requires a gradient, but no
            optimizer holds it), "held-twice", "orphan" (an optimizer holds it, but it belongs
            to no model that ran), "moved" (it is frozen, but an optimizer moved it),
            "untrained" (it requires no gradient), "idle" (its module was never called),
            "graded" (it has a gradient now), "library" (an installed library's code decides
            whether it gets one).
        optimizers: the names of the optimizers that hold it.
        steps: the number of steps in which it was read, or moved.
        since: the first step at which the fact holds.
        made: the line of the script that made it, if known; ``late`` is True if that was after
            an optimizer.
        hook: the line of the only hook of the script on its gradient, if that is zero.
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
    hook: str | None = None


@dataclass(frozen=True, slots=True)
class LoopOptimizer:
    """An optimizer of the script.

    Attributes:
        name: the name of its variable, else of its class.
        kind: its class.
        location: the line that made it; ``set_at``: the line that sets its variable, if a function
            elsewhere made it; ``rate_at``: the line of the number that is its learning rate, if
            that is another one.
        steps: the number of its steps.
        parameters: the number of its parameters.
        zero_rates: by group, the number of steps with a learning rate of 0.
        sizes: by group, the number of parameters.
        backwards: the number of backwards that gave its parameters gradients, although it made
            no step.
        reached: the line of the first of these backwards, if known.
        stepping: the line of the script with its ``step()``, if there is one.
        shared: the number of its parameters that another optimizer holds too.
        peak: the highest learning rate of its first group so far; ``rate``: the latest.
        rises: True if the rate still rose at its last changes.
        gone: the number of its step from which the rate was below a hundredth of the highest; 0
            if it is not.
        held: by group, the parameters that belong to a model: the model's number and the name.
        mixed: the lines of two backwards whose gradients one step uses together, although
            another optimizer made a step between them; None if that never happened.
        readings: the number of its steps in which all gradients were read; ``scaled``: the
            number of these with a gradient scaler's factor in the gradients.
        maximizes: True with ``maximize=True``.
        loaded_at: the line that last called its ``load_state_dict``; ``restored``: the learning
            rate of its first group before and after that.
        trained: True if each of its parameters had a gradient at one of its steps.
        anew: the number of optimizers made before it on the same line, each for the same
            parameters and one step.
        betas: the betas of the first group, for an optimizer like Adam.
        momentum: the momentum of the first group, without dampening; 0 without one.
    """

    name: str
    kind: str
    location: str | None
    steps: int
    parameters: int
    set_at: str | None = None
    rate_at: str | None = None
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
    momentum: float = 0.0


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """A trained tensor in a plain attribute of a module.

    Attributes:
        module: the module's name in the model; "" for the model.
        attribute: the attribute's name.
        shape: its size.
        leaf: True if it is a leaf, False if an operation computed it from one.
        location: the line that sets it, if known.
    """

    module: str
    attribute: str
    shape: tuple[int, ...]
    leaf: bool
    location: str | None


@dataclass(frozen=True, slots=True)
class LeftState:
    """An optimizer's state in a checkpoint, if the script loaded only the weights.

    Attributes:
        optimizer: the name of the optimizer with the same settings and parameters.
        parameters: the number of parameters with a state in the checkpoint.
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
        missing: the number of its keys that the state lacks.
        unexpected: the number of the state's keys that the module lacks.
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
        name: the name of its variable, else of its class.
        kind: its class.
        calls: the number of calls with gradients enabled.
        evaluations: the number of calls without.
        steps: the number of steps, of any optimizer, with a call with gradients.
        trainable: the number of its parameters that require a gradient.
        held: the number of these that an optimizer holds.
        parameters: the number of its parameters.
        replaced: the names of modules that were replaced after the first optimizer was made,
            with the lines; "" is the model itself.
        twins: the numbers of models of the same class and shapes, alive or not.
        made: the line of the script that made it, if known.
        lost_at: the line of a function that makes it as a deep copy and does not return it.
        kept_in: the plain list, tuple or dict of another model that contains it: "net.blocks
            (list)"; ``kept_at`` is the line that sets that.
        plain_tensors: tensors in plain attributes that get gradients.
        undone: the number of times that ``load_state_dict`` restored weights of an earlier step;
            ``undone_at`` is the line.
        eval_at: the line of the script that puts it into eval mode, if there is one; ``train_at``:
            the line that puts it into train mode before it is evaluated, in the same function.
        unchanged: True if it was called only without gradients, and its weights have not
            changed since it was found.
        fixed_norms: the batch norms with momentum 0 whose running statistics are still the
            initial ones.
        slow_norms: the batch norms whose running statistics are still for more than half the
            initial ones; ``slow_norm`` is the momentum of the first, and the number of batches
            that it has read.
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
    lost_at: str | None = None
    kept_in: str | None = None
    kept_at: str | None = None
    plain_tensors: tuple[PlainTensor, ...] = ()
    undone: int = 0
    undone_at: str | None = None
    eval_at: str | None = None
    train_at: str | None = None
    unchanged: bool = False
    fixed_norms: tuple[str, ...] = ()
    slow_norms: tuple[str, ...] = ()
    slow_norm: tuple[float, int] = (0.0, 0)
    steps: int = 0


@dataclass(frozen=True, slots=True)
class LoopScheduler:
    """A learning-rate scheduler.

    Attributes:
        name: the name of its variable, else of its class.
        kind: its class.
        location: the line of its steps, else the line that made it.
        optimizer: the name of its optimizer.
        steps: the number of its steps.
        settings: its plain numeric arguments: ``step_size``, ``gamma``, … made: the line that made
            it.
        milestones: the counts of its steps at which it changes the rate, if it has such a list.
        target: the learning rate of the first group that it scales, or rises to.
        warmup: the line of the script with the length of its warm-up, if there is a single one.
    """

    name: str
    kind: str
    location: str | None
    optimizer: str
    steps: int
    settings: dict[str, float] = field(default_factory=dict)
    made: str | None = None
    target: float | None = None
    warmup: str | None = None
    milestones: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopCause:
    """A cause of missing or zero gradients, from the trace of one step.

    Attributes:
        model: the model's name.
        answer: the cause, its place, and the parameters ``upstream`` of it, by their names in the
            model.
    """

    model: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class LoopRecord:
    """A training loop so far.

    Attributes:
        steps: the number of steps of all optimizers.
        backwards: the number of backwards.
        rounds: the kinds of rounds, in order of their first occurrence.
        rest: the events since the last step.
        optimizers, models, schedulers: those that were made or found.
        parameters: the parameters with a fact.
        same_batch: the number of calls, from the first on, with equal inputs; 0 if inputs
            differ, or if it is unknown.
        same_tensor: True if it was the same full tensor each time.
        loader: the largest number of batches of an iterated data loader; 0 without one.
        loader_at: the line that assigns the first data loader, if it does not shuffle.
        same_loss: the number of backwards, from the first on, with the same loss in every bit;
            ``first_loss`` is the first.
        kept_graphs: the number of backwards whose graph is kept alive.
        kept_since: the step of the first of them.
        kept_of: the number of backwards since then.
        kept_by: the variable that keeps them, with its line.
        kept_evaluations: the number of calls in eval mode, with gradients enabled, whose graph
            something else keeps alive, in ``evaluation_rounds`` different steps from
            ``evaluations_since`` on.
        causes: why parameters get no useful gradient, from traced steps.
        untraced: why no step can be traced; "" if one can.
        batches_differ: True if the models got other inputs than the first.
        graphs: the number of backwards whose loss graph was read; ``operations``, ``targets``
            and ``reaches`` have the results.
        clippings: clipping of each optimizer's gradients.
        tokens: the relation of targets to the tokens of a model's input.
        inputs: the relation of inputs in evaluations to those in training.
        adapters: low-rank adapters that are frozen at zero.
        made_in_forward: lines that made parameters during a model's call, with the number of
            steps.
        draws: samples of distributions that pass no gradient, and whose ``log_prob`` is unused.
        batches: inputs and outputs of the models in the sampled steps.
        equal_units: weights whose rows are all equal.
        functions: autograd functions of the script with a wrong backward.
        copies: copies of models that no optimizer holds.
        empty_loads: calls of ``load_state_dict`` that loaded nothing.
        left_states: optimizer states in checkpoints that the script did not load.
        facts: exact facts of other kinds.
        course: the course of the losses of all backwards; None if there were too few.
        depths, weights: figures of each model and optimizer over the samples.
        ended: True if the script has ended.
        cut: True if gradscope ended it, so its end is unknown.
        frozen_at: the first line of the script that freezes parameters, at the end.
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
    frozen_at: str | None = None

    def rounds_of(self, optimizer: str) -> Iterator[Round]:
        """Return the kinds of rounds that a step of this optimizer ended."""
        return (one for one in self.rounds if one.step.of == optimizer)

    def facts_of(self, kind: str) -> Iterator[LoopFact]:
        """Return the facts of a kind."""
        return (one for one in self.facts if one.kind == kind)

    def steps_with(self, optimizer: str, fact: str) -> tuple[int, int, int]:
        """Return the number of the optimizer's steps at which a fact held, the first and the
        last."""
        found = [one for one in self.rounds_of(optimizer) if fact in one.step.facts]
        if not found:
            return 0, 0, 0
        return sum(r.count for r in found), min(r.first for r in found), max(r.last for r in found)
