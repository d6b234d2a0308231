"""Figures on the losses and gradients of a training loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LossOperation:
    """An operation between the models and the loss that is always a mistake.

    Attributes:
        kind: "broadcast" ([N, 1] was combined with [N]), "single-softmax" (over an axis of
            size one), "softmax-axis" (over another axis than the classes' of the loss),
            "negated" (a loss that should be minimised is maximised),
            "scores" (a layer's output instead of log-probabilities), "number" (a
            term of the loss is a Python number that a tensor gave), "penalty" (a term is made of
            gradients that have no graph), or one of those with figures:

            - "divided": the loss is divided by this number, "twice", or after its "mean" over as
              many samples
            - "cosine": the scores are cosines times the first number, of as many classes
            - "learned-weight": a parameter weights a term alone; the weight
            - "posterior": how often a divergence outweighs the error's sum, the root mean square
              of the means, and how far the variances are from 1
            - "cut-encoder": nothing but this term depends on an encoder before a quantizer
            - "bootstrapped": the target of a distance has a maximum through which gradients flow
            - "scrambled": a view takes axis 1 for the last; ``shapes`` are before and after it
            - "kl-input", "kl-target", "kl-log-target": what a divergence is given is not what it
              takes: probabilities for logarithms, or the other way round; the least and the
              greatest value, and of how many calls that were read this is the last
        name: the operation's; of a number what gave it.
        shapes: of a broadcast the column, the row and the result; of a softmax the result.
        count: in how many of the graphs that were read.
        alone: whether nothing beside it links the loss with a model.
        inside: whether the call of a model made it.
        location: ``file:line``, where it is known.
        first, figures: those of the first loss that was read, and of the last.
    """

    kind: str
    name: str
    shapes: tuple[tuple[int, ...], ...]
    count: int
    alone: bool = False
    inside: bool = False
    location: str | None = None
    first: tuple[float, ...] = ()
    figures: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopFact:
    """An exact fact on a loop.

    Attributes:
        kind: what it is, and then what the others are:

            - "scrambled": the module ``name`` of ``model`` gets a view of an input with its axes
              in another order, though no number moved; ``shapes`` are before and after the view
            - "padding": the embedding ``name`` has a padding index (the first figure) that is
              between other tokens in ``count`` of so many sequences (the second figure)
            - "unused-activation": the modules ``words`` of ``model`` never ran, and the layer
              ``name`` gets the output of the last word with nothing but linear operations between
            - "repeated": the list ``name`` has one module ``count`` times
            - "written-data": the training's data set, of the class ``name``, is written to when
              it gives a batch: in ``count`` of so many (the figure); ``words`` is the attribute
            - "used-up": the iterator ``name`` was at its end, and was asked ``count`` times more
            - "seeded": the random numbers were set to a seed (the figure) in ``count`` steps
            - "written-dropout": a call in the script's text; ``words`` is the call
        name, model: of a module and of its model; "" without one.
        count: how often.
        words, figures, shapes: as above.
        location: ``file:line``, where it is known.
    """

    kind: str
    name: str = ""
    model: str = ""
    count: int = 1
    words: tuple[str, ...] = ()
    figures: tuple[float, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """Targets of a loss whose output has bounds.

    Attributes:
        by: the function that bounds the output: "sigmoid", "tanh", "relu", …; or the loss that
            takes probabilities as targets: "binary_cross_entropy_with_logits".
        low, high: its bounds, which may be infinite.
        least, greatest: of all targets that were read.
        readings: how many batches were read.
        outside: in how many of them targets lay out of bounds.
        share: the least share of targets out of bounds in one of these.
        inside: whether the call of a model computes the loss.
        location: ``file:line`` of the loss, where it is known.
    """

    by: str
    low: float
    high: float
    least: float
    greatest: float
    readings: int
    outside: int
    share: float
    inside: bool = False
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """``sample()`` of a distribution that has ``rsample()``, whose parameters want a gradient.

    Attributes:
        kind: the distribution's class.
        steps: in how many steps it was called.
        used: whether a model made the sample, or was given it.
        location: where it was first.
    """

    kind: str
    steps: int
    location: str | None = None
    used: bool = False


@dataclass(frozen=True, slots=True)
class LossTargets:
    """The targets of the losses of one kind on one layer's scores, in the graphs that were read.

    Attributes:
        loss: "cross_entropy", "binary_cross_entropy" or "mse_loss".
        classes: how many there are; 0 of numbers.
        batches: how many batches were read.
        targets: how many targets they had, of which ``ignored`` are the ignored index.
        least: how many targets the smallest batch had that were not ignored; 0 where all were.
        empty: in how many batches all were ignored.
        ignore_index: the class that is ignored; None where there is none.
        value: the value of all targets that are not ignored; None where they differ.
        location: ``file:line`` of the loss, where it is known.
        inside: whether the call of a model computes the loss.
        judged: how many batches had eight targets or more; in ``single`` of them all were alike,
            of ``kinds`` classes together.
        beside: whether something else in the loss depends on a model, too.
        constant: the loss of the best answer that ignores the input: the entropy of the classes'
            frequencies, or the variance of the numbers. None where the loss is more than the mean
            of this, or weights it.
        rms: the root mean square of numbers.
        weights: of weighted classes the weight of each, and ``counts`` how often each came.
    """

    loss: str
    classes: int
    batches: int
    targets: int
    least: int = 0
    ignored: int = 0
    empty: int = 0
    ignore_index: int | None = None
    value: float | None = None
    location: str | None = None
    inside: bool = False
    judged: int = 0
    single: int = 0
    kinds: int = 0
    beside: bool = False
    constant: float | None = None
    rms: float | None = None
    weights: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """A loss over the run: the mean of its ``began`` first steps, of its third and last quarter.

    ``error`` is the standard error of the difference of these two, ``spread`` the deviation of
    single steps from the mean of their block, ``lowest`` the least mean of a block. Together they
    are of ``steps`` steps, from ``since`` on.
    """

    first: float
    began: int
    middle: float
    last: float
    error: float
    spread: float
    lowest: float
    since: int
    steps: int


@dataclass(frozen=True, slots=True)
class LoopClipping:
    """Clipping of an optimizer's gradients.

    Attributes:
        optimizer: its name.
        clips: how often they were clipped, or read; of the last ``known`` the factor is known.
        shortened: how many of these were made smaller.
        factor: the median factor by which they were, 1 where they were not.
        bound: the bound of their norm; None if the script clips with its own code.
        location: where.
    """

    optimizer: str
    clips: int
    known: int
    shortened: int
    factor: float
    bound: float | None = None
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LayerGradient:
    """A layer with a weight, in the order of forward.

    Attributes:
        name: the module's.
        ratio: the largest gradient over weight, in norms, of this layer and those before it, over
            the largest of those downstream: of both the root mean square over all samples.
    """

    name: str
    ratio: float


@dataclass(frozen=True, slots=True)
class LoopDepth:
    """Decrease of a model's gradients over depth, in the samples of one optimizer's steps.

    Attributes:
        model: its number in the run.
        optimizer: the optimizer's name.
        samples: how many there were.
        layers: in the order of forward, but for the last.
        last: the name of the last.
    """

    model: int
    optimizer: str
    samples: int
    layers: tuple[LayerGradient, ...]
    last: str


@dataclass(frozen=True, slots=True)
class LoopWeights:
    """Updates by an optimizer of a model's weights with two or more axes.

    Attributes:
        model: its number in the run.
        optimizer: the optimizer's name.
        samples: how many there were.
        first, last: the norm of all of these weights, in the first sample and in the last.
        ratio: the mean over the samples of the median weight's update over its norm.
        decay: the share of weight decay of the median weight, the least over the second half of the
            samples; 0 without weight decay, or if it is not known.
        rms: the mean over the samples of the root mean square of the median weight's update.
        rate, weight_decay: of the first group, in the last sample.
        steps: how many steps of the run lie between the first sample and the last.
    """

    model: int
    optimizer: str
    samples: int
    first: float
    last: float
    ratio: float
    rms: float
    decay: float
    rate: float
    weight_decay: float
    steps: int
